//! One region of device memory in two processes: a parent creates it, a child maps it at the same address, both write, it
//! grows in both, and the child releases the memory on request.
//!
//! ```text
//! cargo run --release --example share_region
//! ```

use gpu_vmm::share::{Channel, Event, Exporter, ImportOptions, ReleaseOutcome};
use gpu_vmm::{
    Address, AnyBackend, Backend, Bytes, Detail, DeviceId, Error, Operation, Placement, Properties, Region,
    Result, WaitFor,
};
use std::process::Command;
use std::time::Duration;

const DEVICE: DeviceId = DeviceId(0);
const SMALL: Bytes = Bytes::mib(32);
const LARGE: Bytes = Bytes::mib(96);
const SOON: Duration = Duration::from_secs(30);

/// The environment variable that makes this program the child.
const CHILD: &str = "GPU_VMM_EXAMPLE_CHILD";

fn main() -> Result<()> {
    // Each process opens the driver for itself. Drivers do not work in a forked child, so the child is a new program.
    let backend = AnyBackend::open_best()?;
    if std::env::var_os(CHILD).is_some() { child(&backend) } else { parent(&backend) }
}

fn parent(backend: &AnyBackend) -> Result<()> {
    // A driver must know when memory is created that it will be shared. The address is one that other processes have free
    // too: systems put libraries, stacks and heaps elsewhere.
    let mut region = Region::builder(backend)
        .memory(Properties::on(DEVICE).shareable())
        .at(Placement::Prefer(Address(0x1000_0000_0000)))
        .reserve(Bytes::gib(1))
        .build()?;
    region.grow_to(SMALL)?;
    region.write(Bytes(0), b"from the parent")?;
    println!("parent: {} on {} at {}", region.end(), backend.vendor(), region.address());

    // A channel is a Unix socket. Here the child inherits one end; unrelated processes connect to a `Listener`, which accepts
    // processes of the same user unless told otherwise.
    let program = std::env::current_exe().map_err(failed)?;
    let (channel, mut process) = Channel::spawn(Command::new(program).env(CHILD, "1"))?;

    // The child receives the size, device and mappings of every piece of memory, each with a descriptor.
    let mut exporter = Exporter::share(channel, &region)?;
    exporter.wait_applied(SOON)?;

    // The child learns of growth when the parent publishes it, and applies it when it chooses.
    region.grow_to(LARGE)?;
    region.write(SMALL, b"in the new part")?;
    exporter.publish(&region)?;
    exporter.wait_applied(SOON)?;

    // The memory exists as long as an importer holds it. On request the importer releases it and reports that.
    exporter.request_release()?;
    let how = exporter.wait_released(SOON)?;
    assert_eq!(how, ReleaseOutcome::Released);
    let mut answer = [0; 14];
    region.read(Bytes(100), &mut answer)?;
    println!("parent: the child wrote {:?} and has released the memory", String::from_utf8_lossy(&answer));
    assert_eq!(&answer, b"from the child");
    let status = process.wait().map_err(failed)?;
    assert!(status.success(), "the child: {status}");
    Ok(())
}

fn child(backend: &AnyBackend) -> Result<()> {
    let channel = Channel::from_stdin()?;

    // At the same address, pointers into the region are valid in both processes. Reserving more than the region has now
    // leaves room for it to grow.
    let mut shared = ImportOptions::new().same_address().reserve(Bytes::gib(1)).receive(backend, channel)?;
    let mut text = [0; 15];
    shared.region().read(Bytes(0), &mut text)?;
    println!("child: {:?} at {}", String::from_utf8_lossy(&text), shared.region().address());
    shared.region_mut().write(Bytes(100), b"from the child")?;
    loop {
        match shared.next(SOON)? {
            Some(Event::Changed(change)) => {
                let grown = shared.apply(WaitFor::all_devices())?;
                shared.region().read(SMALL, &mut text)?;
                let text = String::from_utf8_lossy(&text);
                println!("child: {} now ({}), with {text:?}", change.end, grown.name());
            }
            Some(Event::ReleaseRequested) => return shared.release(WaitFor::all_devices()),
            Some(Event::Gone) => {
                println!("child: the parent has ended, and its memory is still mapped");
                return Ok(());
            }
            None => println!("child: nothing new"),
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::new(Operation::Connect, Detail::Unsupported { reason: error.to_string() })
}

#[test]
fn runs() -> Result<()> {
    main()
}
