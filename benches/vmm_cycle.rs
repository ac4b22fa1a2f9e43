//! What gpu-vmm adds to the driver's own time: a cycle of create, map, set access, unmap and release through the
//! library beside the same five calls of the CUDA driver, alternating in one run.
//!
//! `cargo bench --bench vmm_cycle` on a machine with an NVIDIA GPU; on another it says so. The figures are the ratios of
//! the two medians and of the two lower quartiles: at 1 GiB the driver's own time jumps between 0.4 and 6 ms, and with
//! it whatever the median falls on.
#![allow(unsafe_code)]

mod measure;
mod raw;

use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{
    Access, Address, AnyBackend, Backend, Bytes, DeviceId, Done, Physical, Properties, Region, Result,
};
use measure::{in_turn, on_cuda};

const DEVICE: DeviceId = DeviceId(0);

fn main() {
    on_cuda(measure_all);
}

fn measure_all(cuda: &CudaBackend) -> Result<()> {
    println!("one cycle: create, map, set access, unmap, release; µs, median [middle half]");
    println!(
        "{:>8} {:>7}  {:<11} {:>24} {:>24} {:>8} {:>8}",
        "size", "cycles", "library", "driver alone", "with the library", "median", "quarter"
    );
    let any = AnyBackend::from(cuda.clone());
    // Without a context on the device the driver sets the GPU up and down around each cycle.
    println!("without a context");
    measure("CudaBackend", cuda, Bytes::mib(2), 200)?;
    println!("with one");
    make_context(cuda)?;
    for (size, cycles) in
        [(Bytes::mib(2), 4000), (Bytes::mib(32), 2000), (Bytes::mib(256), 500), (Bytes::gib(1), 200)]
    {
        measure("CudaBackend", cuda, size, cycles)?;
        measure("AnyBackend", &any, size, cycles)?;
    }
    Ok(())
}

/// The first use of a region's memory makes the device's primary context.
fn make_context(cuda: &CudaBackend) -> Result<()> {
    let mut region = Region::builder(cuda).reserve(Bytes::mib(2)).build()?;
    region.grow_to(Bytes::mib(2))?;
    region.fill(Bytes::ZERO, Bytes::mib(2), 0)
}

/// Both work at the same addresses.
fn measure<B: Backend>(library: &str, backend: &B, size: Bytes, cycles: usize) -> Result<()> {
    let mut region = Region::builder(backend).reserve(size).build()?;
    let at = region.address();
    let alone = || {
        by_hand(at, size);
        Ok(())
    };
    let [alone, with] = in_turn(cycles, alone, || cycle(backend, &mut region, size))?;
    let [median, quarter] = with.over(&alone);
    println!("{size:>8} {cycles:>7}  {library:<11} {alone:>24} {with:>24} {median:>8.4} {quarter:>8.4}");
    Ok(())
}

fn cycle<B: Backend>(backend: &B, region: &mut Region<B>, size: Bytes) -> Result<()> {
    let memory = Physical::create(backend, size, Properties::on(DEVICE))?;
    region.map(Bytes::ZERO, &memory)?;
    region.set_access(Bytes::ZERO, size, DEVICE, Access::ReadWrite)?;
    // SAFETY: nothing was queued on the memory.
    region.unmap(Bytes::ZERO, size, unsafe { Done::promised() })
}

/// The same five calls without the library.
fn by_hand(at: Address, size: Bytes) {
    let handle = raw::create(size);
    raw::map(at, size, handle);
    raw::open(at, size);
    raw::unmap(at, size);
    raw::release(handle);
}
