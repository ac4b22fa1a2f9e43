//! Copies between two GPUs, out of memory that was given to the peer by the library, beside the driver's own peer copy
//! between plain allocations; and what giving costs.
//!
//! `cargo bench --bench peer_copy` on a machine with two NVIDIA GPUs; on another it says so.
#![allow(unsafe_code)]

mod measure;

use cudarc::driver::sys;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Access, Backend, Bytes, DeviceId, Done, Physical, Properties, Region, Result, Workbench};
use measure::{check, in_turn, on_cuda};

const OWNER: DeviceId = DeviceId(0);
const PEER: DeviceId = DeviceId(1);

fn main() {
    on_cuda(run);
}

fn run(cuda: &CudaBackend) -> Result<()> {
    let Some(peer) = cuda.devices().iter().find(|device| device.id == PEER) else {
        println!("skipped: there is one device");
        return Ok(());
    };
    if !(cuda.can_access(PEER, OWNER)? && cuda.can_access(OWNER, PEER)?) {
        println!("skipped: the two devices do not reach each other");
        return Ok(());
    }
    println!("the peer: {}", peer.name);
    println!("a copy by the peer; µs, median [middle half]");
    println!("{:>8} {:>28} {:>28} {:>8} {:>6}", "size", "plain, by the driver", "regions", "median", "GB/s");
    for (size, turns) in [(Bytes::mib(2), 1000), (Bytes::mib(64), 300), (Bytes::gib(1), 100)] {
        copies(cuda, size, turns)?;
    }
    println!("set access to 1 GiB that is mapped, and unmap; µs, median [middle half]");
    println!("{:>8} {:>28} {:>28} {:>8}", "handles", "owner alone", "owner and peer", "median");
    for handles in [1, 16, 512] {
        grants(cuda, Bytes::gib(1), handles)?;
    }
    Ok(())
}

fn copies(cuda: &CudaBackend, size: Bytes, turns: usize) -> Result<()> {
    let mut source = Region::builder(cuda).on(OWNER).reserve(size).access(PEER, Access::Read).build()?;
    let mut target = Region::builder(cuda).on(PEER).reserve(size).build()?;
    source.grow_to(size)?;
    target.grow_to(size)?;
    // Written by kernels, which also makes both devices' contexts.
    source.write_pattern(OWNER, Bytes::ZERO, size, 1)?;
    target.write_pattern(PEER, Bytes::ZERO, size, 2)?;
    let (from, to) = (cuda.allocate_plain(OWNER, size)?, cuda.allocate_plain(PEER, size)?);
    let [owner, peer] = [OWNER, PEER].map(|device| context(device.0 as i32));
    let length = size.to_usize().unwrap_or(0);
    let mut popped = std::ptr::null_mut();
    // Else the driver copies through the host.
    // SAFETY: both are contexts of their devices, one of which is made current and popped again.
    unsafe {
        check(sys::cuCtxPushCurrent_v2(peer));
        let enabled = sys::cuCtxEnablePeerAccess(owner, 0);
        assert!(
            enabled == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                || enabled == sys::CUresult::CUDA_SUCCESS
        );
        check(sys::cuCtxPopCurrent_v2(&raw mut popped));
    }
    let plain = || {
        // SAFETY: both sides are allocations of this size, in the contexts that are named; the copy is waited for in the
        // peer's.
        unsafe {
            check(sys::cuCtxPushCurrent_v2(peer));
            check(sys::cuMemcpyPeer(to.0, peer, from.0, owner, length));
            check(sys::cuCtxSynchronize());
            check(sys::cuCtxPopCurrent_v2(&raw mut popped));
        }
        Ok(())
    };
    let [plain, regions] =
        in_turn(turns, plain, || target.copy_from(Bytes::ZERO, &source, Bytes::ZERO, size))?;
    assert_eq!(target.count_wrong(PEER, Bytes::ZERO, size, 1)?, 0, "the copy has the bytes");
    let [median, _] = regions.over(&plain);
    let speed = size.0 as f64 / regions.median.as_secs_f64() / 1e9;
    println!("{size:>8} {plain:>28} {regions:>28} {median:>8.3} {speed:>6.0}");
    // SAFETY: both were allocated above, and nothing is in flight.
    unsafe {
        cuda.free_plain(OWNER, from, size)?;
        cuda.free_plain(PEER, to, size)
    }
}

/// The primary context of a device, which the library uses too.
fn context(device: i32) -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is good for one context. It is not released: the benchmark ends soon.
    check(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) });
    context
}

/// One size in so many handles, opened to its owner alone or to the peer too.
fn grants(cuda: &CudaBackend, size: Bytes, handles: u64) -> Result<()> {
    let piece = Bytes(size.0 / handles);
    let create = |_| Physical::create(cuda, piece, Properties::on(OWNER));
    let memory: Vec<Physical<CudaBackend>> = (0..handles).map(create).collect::<Result<_>>()?;
    let cycle = |devices: &[DeviceId]| {
        let mut region = Region::builder(cuda).on(OWNER).reserve(size).build()?;
        for memory in &memory {
            region.map(region.end(), memory)?;
        }
        for device in devices {
            region.set_access(Bytes::ZERO, size, *device, Access::ReadWrite)?;
        }
        // SAFETY: nothing was queued on the memory.
        region.close(unsafe { Done::promised() })
    };
    let [owner, both] = in_turn(20, || cycle(&[OWNER]), || cycle(&[OWNER, PEER]))?;
    let [median, _] = both.over(&owner);
    println!("{handles:>8} {owner:>28} {both:>28} {median:>8.1}");
    Ok(())
}
