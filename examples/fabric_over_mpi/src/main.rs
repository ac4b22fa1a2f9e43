//! Two ranks of an MPI program share GPU memory: the first creates it, the second maps it, and both write.
//!
//! If the GPUs of both ranks are on one fabric (NVLink between machines), memory is sent as fabric handles of 64 bytes for each
//! piece, and the ranks may be on different machines. Otherwise both must be on one machine: the second rank takes the file
//! descriptors from the first one's process.
//!
//! ```text
//! cargo build --release -p gpu-vmm-example-mpi --features mpi
//! mpirun -n 2 target/release/fabric_over_mpi
//! ```

use gpu_vmm::share::{ImportMethod, ImportOptions, Offer, Offered};
use gpu_vmm::{
    AnyBackend, Backend, Bytes, Detail, DeviceId, Error, Feature, HandleTypes, Operation, Properties, Region,
    Result,
};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};

const DEVICE: DeviceId = DeviceId(0);
const PIECE: Bytes = Bytes::mib(32);
const PIECES: u64 = 4;

/// The seeds of the first rank's pattern, and of the second one's answer.
const QUESTION: u64 = 1;
const ANSWER: u64 = 2;

fn main() -> Result<()> {
    let unusable =
        |reason: &str| Error::new(Operation::Connect, Detail::Unsupported { reason: reason.to_owned() });
    let universe = mpi::initialize().ok_or_else(|| unusable("MPI cannot be initialized"))?;
    let world = universe.world();
    if world.size() != 2 {
        return Err(unusable("the program needs two ranks: mpirun -n 2"));
    }
    let backend = AnyBackend::open_best()?;
    if world.rank() == 0 { first(&world, &backend) } else { second(&world, &backend) }
}

fn first(world: &SimpleCommunicator, backend: &AnyBackend) -> Result<()> {
    let capabilities = backend.capabilities(DEVICE)?;
    let fabric = capabilities.iter().find(|capability| capability.feature == Feature::FabricHandle);
    let (types, by) = match fabric {
        Some(capability) if capability.available => (HandleTypes::FABRIC, ImportMethod::Fabric),
        Some(capability) => {
            println!("no fabric handles on {}: {}", backend.vendor(), capability.note);
            (HandleTypes::FILE_DESCRIPTOR, ImportMethod::Process)
        }
        None => (HandleTypes::FILE_DESCRIPTOR, ImportMethod::Process),
    };
    let mut region = Region::builder(backend).memory(Properties::on(DEVICE).exported_as(types)).build()?;
    for piece in 1..=PIECES {
        region.grow_to(Bytes(PIECE.0 * piece))?;
    }
    region.write_pattern(DEVICE, Bytes(0), region.end(), QUESTION)?;

    // The offer is valid as long as this object exists. It is plain data, which any network can transfer.
    let offered = Offered::new(&region, by)?;
    let bytes = offered.offer().to_bytes()?;
    println!(
        "rank 0: {} in {PIECES} pieces on {}, offered in {} bytes",
        region.end(),
        backend.vendor(),
        bytes.len()
    );
    world.process_at_rank(1).send(&bytes[..]);

    world.barrier(); // the second rank has mapped it and written
    let wrong = region.count_wrong(DEVICE, Bytes(0), region.end(), ANSWER)?;
    println!("rank 0: the answer has {wrong} wrong words");
    assert_eq!(wrong, 0);
    Ok(())
}

fn second(world: &SimpleCommunicator, backend: &AnyBackend) -> Result<()> {
    let (bytes, _) = world.process_at_rank(0).receive_vec::<u8>();
    let mut region = Offer::from_bytes(&bytes)?.import(backend, &ImportOptions::new())?;
    let wrong = region.count_wrong(DEVICE, Bytes(0), region.end(), QUESTION)?;
    println!("rank 1: {} mapped in one range, {wrong} wrong words", region.end());
    assert_eq!(wrong, 0);
    let end = region.end();
    region.write_pattern(DEVICE, Bytes(0), end, ANSWER)?;
    world.barrier();
    Ok(())
}
