//! The memory of records: the growth of the C library's allocations after many objects of a kind were created. It includes
//! the driver's records, and the driver's part alone is the comparison.

use crate::scene::{Scene, nothing_runs};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Bytes, Operation, PhysicalMemory, Properties, Region};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::TestKit;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let (backend, device) = (scene.backend, scene.device);
    let granule = backend.device(Operation::QueryDevice, device)?.granularity.bytes();
    let memory = PhysicalMemory::create(backend, granule, Properties::on(device))?;
    let raw = scene.raw.clone();
    let handle = raw.create(granule)?;
    // The C library counts its caches for small allocations as allocated, so that few objects show nothing. A process is
    // limited to some 65,530 mappings of host memory.
    let most = if scene.is_host() { 30_000 } else { 50_000 };
    for count in [100, 1_000, most] {
        let places = || (0..count).map(|place| Bytes(granule.0 * place));
        let whole = Bytes(granule.0 * count);
        let mut region = Region::builder(backend).on(device).reserve(whole).build()?;
        let before = in_use()?;
        places().try_for_each(|place| region.map(place, &memory))?;
        let ours = in_use()?.saturating_sub(before);
        region.close(nothing_runs())?;
        let at = raw.reserve(whole)?;
        let before = in_use()?;
        places().try_for_each(|place| raw.map(at + place, handle))?;
        let others = in_use()?.saturating_sub(before);
        places().try_for_each(|place| raw.unmap(at + place, granule))?;
        raw.free_addresses(at, whole)?;
        let each = [ours, others].map(|bytes| bytes as f64 / count as f64);
        scene.memory_row(format!("a mapping of {count}"), "driver's own calls", each);
    }
    raw.release(handle)?;
    for (size, count) in [(Bytes(512), 1_000_000), (Bytes::kib(64), 10_000), (Bytes::mib(4), 1_000)] {
        scene.needs(Bytes(size.0 * count * 5 / 4))?;
        let pool = Pool::builder(backend).device(device).build()?;
        let mut blocks = Vec::with_capacity(count as usize);
        let before = in_use()?;
        for _ in 0..count {
            blocks.push(pool.alloc(size)?);
        }
        let each = in_use()?.saturating_sub(before) as f64 / count as f64;
        scene.memory_row(
            format!("a block of {count}, with the driver's part"),
            format!("the block of {size}"),
            [each, size.0 as f64],
        );
    }
    Ok(())
}

/// Returns the bytes that the process has from the C library's allocator.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn in_use() -> StepResult<u64> {
    type Report = unsafe extern "C" fn() -> libc::mallinfo2;
    // glibc has the function from 2.33 on. The command as one file is linked to an older one.
    let program = libloading::os::unix::Library::this();
    #[allow(unsafe_code)]
    // SAFETY: the function has this type in glibc's header.
    let report = unsafe { program.get::<Report>(b"mallinfo2\0") };
    let Ok(report) = report else {
        return Err(Stop::Skipped(
            "glibc before 2.33 does not report how much memory it has allocated".to_owned(),
        ));
    };
    #[allow(unsafe_code)]
    // SAFETY: it takes no argument.
    let found = unsafe { report() };
    Ok((found.uordblks + found.hblkhd) as u64)
}

/// Returns an error: other C libraries do not report it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn in_use() -> StepResult<u64> {
    Err(Stop::Skipped("only glibc reports how much memory it has allocated".to_owned()))
}
