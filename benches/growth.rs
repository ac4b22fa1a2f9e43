//! Memory that is there at once, that grows, that is kept: through the library, beside the best sequence of the driver's own calls
//! for virtual memory, and beside what a program does without it. And what looking a mapping up costs as a region fills.
//!
//! `cargo bench --bench growth` on a machine with an NVIDIA GPU that has 50 GiB free; on another it says so. Both sides have their addresses reserved before the clock runs, but for memory that is
//! there at once, which is beside `cuMemAlloc`. What is cleared away is in no time.
#![allow(unsafe_code)]

mod measure;
mod raw;

use cudarc::driver::sys;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Access, Address, Backend, Bytes, DeviceId, Done, Error, Physical, Properties, Region, Result};
use measure::{Summary, check, in_turn, in_turn_timed, on_cuda, timed};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);

fn main() {
    on_cuda(run);
}

fn run(cuda: &CudaBackend) -> Result<()> {
    enter();
    // Makes the device's context.
    let mut region = room(cuda, Bytes::mib(2))?;
    region.grow_to(Bytes::mib(2))?;
    region.fill(Bytes::ZERO, Bytes::mib(2), 0)?;
    println!("times in \u{b5}s, median [middle half]; ratios of the library to what is beside it");
    println!(
        "{:<34} {:<24} {:>32} {:>32} {:>8} {:>8}",
        "what", "beside", "beside", "library", "median", "quarter"
    );
    at_once(cuda, Bytes::gib(8))?;
    let steps: Vec<Bytes> = (1..=128).map(|step| Bytes::mib(64 * step)).collect();
    growth(cuda, "growth to 8 GiB by 64 MiB", &steps, 3)?;
    let doubling: Vec<Bytes> = (1..=15).map(|power| Bytes::mib(1 << power)).collect();
    growth(cuda, "growth from 2 MiB to 32 GiB by doubling", &doubling, 10)?;
    kept(cuda, Bytes::gib(1))?;
    lookup(cuda)
}

fn row(what: &str, beside: &str, [theirs, ours]: &[Summary; 2]) {
    let [median, quarter] = ours.over(theirs);
    println!(
        "{what:<34} {beside:<24} {:>32} {:>32} {median:>8.4} {quarter:>8.4}",
        theirs.to_string(),
        ours.to_string()
    );
}

fn room(cuda: &CudaBackend, size: Bytes) -> Result<Region<CudaBackend>> {
    Region::builder(cuda).reserve(size).build()
}

/// SAFETY of all its uses: nothing is queued on any memory here.
fn nothing_runs() -> Done<'static> {
    // SAFETY: as said.
    unsafe { Done::promised() }
}

/// Memory with its addresses.
fn at_once(cuda: &CudaBackend, size: Bytes) -> Result<()> {
    let plain = || {
        let start = Instant::now();
        let at = alloc(size);
        let took = start.elapsed();
        free(at);
        Ok(took)
    };
    let library = || {
        let start = Instant::now();
        let mut region = room(cuda, size)?;
        region.grow_to(size)?;
        let took = start.elapsed();
        region.close(nothing_runs())?;
        Ok(took)
    };
    row(&format!("fresh {size}"), "cuMemAlloc", &in_turn_timed::<Error>(40, plain, library)?);
    Ok(())
}

/// Growth in steps: beside the driver's calls, one create, map and set access for each step; and beside copying.
fn growth(cuda: &CudaBackend, what: &str, steps: &[Bytes], copies: usize) -> Result<()> {
    let whole = *steps.last().unwrap_or(&Bytes::ZERO);
    let by_hand_room = room(cuda, whole)?;
    let mut region = room(cuda, whole)?;
    let mut library = || -> Result<Duration> {
        let took = timed(|| steps.iter().try_for_each(|size| region.grow_to(*size).map(drop)))?;
        region.shrink_to(Bytes::ZERO, nothing_runs())?;
        Ok(took)
    };
    let by_hand = || Ok(by_hand(by_hand_room.address(), steps));
    row(what, "driver's own calls", &in_turn_timed::<Error>(20, by_hand, &mut library)?);
    row(what, "alloc, copy, free", &in_turn_timed::<Error>(copies, || Ok(copying(steps)), &mut library)?);
    Ok(())
}

fn by_hand(at: Address, steps: &[Bytes]) -> Duration {
    let mut parts = Vec::with_capacity(steps.len());
    let start = Instant::now();
    let mut end = Bytes::ZERO;
    for size in steps {
        let more = *size - end;
        let handle = raw::create(more);
        raw::map(at + end, more, handle);
        raw::open(at + end, more);
        parts.push((end, more, handle));
        end = *size;
    }
    let took = start.elapsed();
    raw::unmap(at, end);
    parts.into_iter().for_each(|(_, _, handle)| raw::release(handle));
    took
}

/// What a program does that has no virtual memory management.
fn copying(steps: &[Bytes]) -> Duration {
    let start = Instant::now();
    let (mut old, mut filled) = (0, Bytes::ZERO);
    for size in steps {
        let new = alloc(*size);
        if !filled.is_zero() {
            // SAFETY: both are allocations of so many bytes at least.
            check(unsafe { sys::cuMemcpyDtoD_v2(new, old, filled.0 as usize) });
            free(old);
        }
        (old, filled) = (new, *size);
    }
    // SAFETY: it takes nothing.
    check(unsafe { sys::cuCtxSynchronize() });
    let took = start.elapsed();
    free(old);
    took
}

/// Memory that was kept is mapped, beside memory that is new.
fn kept(cuda: &CudaBackend, size: Bytes) -> Result<()> {
    let kept = Physical::create(cuda, size, Properties::on(DEVICE))?;
    let mut regions = [room(cuda, size)?, room(cuda, size)?];
    let [one, other] = &mut regions;
    let fresh = || {
        let took = timed(|| other.grow_to(size).map(drop))?;
        other.shrink_to(Bytes::ZERO, nothing_runs())?;
        Ok(took)
    };
    let again = || {
        let start = Instant::now();
        one.map(Bytes::ZERO, &kept)?;
        one.set_access(Bytes::ZERO, size, DEVICE, Access::ReadWrite)?;
        let took = start.elapsed();
        one.unmap(Bytes::ZERO, size, nothing_runs())?;
        Ok(took)
    };
    row(
        &format!("{size} of kept memory"),
        "fresh, by the library",
        &in_turn_timed::<Error>(100, fresh, again)?,
    );
    Ok(())
}

/// One granule is mapped at all places of a region; mappings are looked up here and there.
fn lookup(cuda: &CudaBackend) -> Result<()> {
    const LOOKUPS: u64 = 100_000;
    let granule = cuda.granularity().bytes();
    let memory = Physical::create(cuda, granule, Properties::on(DEVICE))?;
    let full = |count: u64| -> Result<_> {
        let mut region = room(cuda, Bytes(granule.0 * count))?;
        (0..count).try_for_each(|place| region.map(Bytes(granule.0 * place), &memory))?;
        Ok(region)
    };
    let few = full(10)?;
    for count in [10, 1_000, 100_000] {
        let many = full(count)?;
        let look = |region: &Region<CudaBackend>, count: u64| {
            let mut place = 0;
            for _ in 0..LOOKUPS {
                // Every place comes, in no order that a cache likes.
                place = (place + 61_803) % count;
                std::hint::black_box(region.mapping_at(Bytes(granule.0 * place + 5)));
            }
            Ok(())
        };
        let times = in_turn::<Error>(20, || look(&few, 10), || look(&many, count))?;
        row(&format!("{LOOKUPS} lookups, {count} mappings"), "10 mappings", &times);
        many.close(nothing_runs())?;
    }
    few.close(nothing_runs())
}

/// Makes the device's primary context this thread's, which the library does by itself.
fn enter() {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is good for one context, and device 0 is there, which was looked at.
    check(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) });
    // SAFETY: it was just retained, and is never released.
    check(unsafe { sys::cuCtxSetCurrent(context) });
}

/// `cuMemAlloc`.
fn alloc(size: Bytes) -> u64 {
    let mut at = 0;
    // SAFETY: the pointer is good for one address.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut at, size.0 as usize) });
    at
}

/// `cuMemFree`.
fn free(at: u64) {
    // SAFETY: it was allocated above, and is freed once.
    check(unsafe { sys::cuMemFree_v2(at) });
}
