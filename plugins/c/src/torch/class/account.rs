//! Amounts, the limit, and which memory is where.

use super::pools::TorchVisit;
use crate::call::status;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{clear, give};
use crate::torch::amounts::{Amounts, TorchAmounts};
use crate::torch::process::{Device, device, devices, limit, used};
use crate::torch::table::{self, DEVICES, GPU_VMM_TORCH_PENDING, TorchBlock};
use gpu_vmm::pool::PoolUsage;
use gpu_vmm::{Bytes, DeviceId};
use std::ffi::{c_int, c_void};

/// The amounts of one device's memory. All sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchUsage {
    /// All physical memory.
    pub held: u64,
    /// The most physical memory since gpu_vmm_torch_reset_peak.
    pub peak_held: u64,
    /// The physical memory that contains blocks of up to 1 MiB.
    pub held_small: u64,
    /// The number and the size of freed blocks that wait for work on a stream: blocks of up to 1 MiB, and larger ones.
    pub pending_blocks: [u64; 2],
    pub pending_bytes: [u64; 2],
    /// The number of pages of physical memory that were ever created, and returned to the driver.
    pub created: u64,
    pub released: u64,
    /// The size of a page.
    pub page: u64,
    /// The live blocks.
    pub live: TorchAmounts,
}

impl TorchUsage {
    fn of(now: &PoolUsage, live: TorchAmounts) -> Self {
        let (small, large) = (now.pending_small, now.pending_large);
        Self {
            held: now.held,
            peak_held: now.peak_held,
            held_small: now.held_small,
            pending_blocks: [small.blocks, large.blocks],
            pending_bytes: [small.bytes, large.bytes],
            created: now.created,
            released: now.released,
            page: now.page,
            live,
        }
    }
}

fn of_device(number: c_int, work: impl FnOnce(&'static Device) -> CallResult) -> Status {
    status(|| work(device(number)?))
}

/// Returns a device, or none if nothing was allocated there.
fn known(number: c_int) -> CallResult<Option<&'static Device>> {
    if !(0..DEVICES as c_int).contains(&number) {
        return Err(Failure::invalid(format!("query: there is no device {number}")));
    }
    Ok(used(number))
}

/// Returns the amounts of a device's memory, without searching; zeros if nothing was allocated there.
///
/// # Safety
///
/// `usage` is null or points to a writable gpu_vmm_torch_usage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_measure(number: c_int, usage: *mut TorchUsage) -> Status {
    // SAFETY: null or writable, as the caller guarantees; all fields can be zero.
    unsafe { clear(usage) };
    status(|| {
        let now = known(number)?.map_or_else(PoolUsage::default, |device| device.pool.blocks.usage());
        let live = table::with_amounts(number as usize, |amounts| amounts.read()).unwrap_or_default();
        let found = TorchUsage::of(&now, live);
        // SAFETY: guaranteed by the caller.
        unsafe { give("usage", usage, found) }
    })
}

/// Sets the peaks of a device's held memory and of its live blocks to the current amounts.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_reset_peak(number: c_int) -> Status {
    status(|| {
        let known = known(number)?;
        table::with_amounts(number as usize, Amounts::reset_peak);
        known.map_or(Ok(()), |device| Ok(device.pool.blocks.reset_peak()?))
    })
}

/// Sets to zero what a device's blocks have allocated and freed.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_reset_accumulated(number: c_int) -> Status {
    status(|| {
        known(number)?;
        table::with_amounts(number as usize, Amounts::reset_accumulated);
        Ok(())
    })
}

/// Counts a block of another allocator as allocated or freed, in the amounts that gpu_vmm_torch_measure returns. PyTorch's private
/// pools may have allocators of their own.
///
/// # Safety
///
/// `block` is null or points to a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_count(block: *const TorchBlock, allocated: bool) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { block.as_ref() }.ok_or_else(|| Failure::invalid("count: block is null"))?;
        known(block.device)?;
        let (size, capacity) = (Bytes(block.size), Bytes(block.capacity));
        table::with_amounts(block.device as usize, |amounts| match allocated {
            true => amounts.add(size, capacity),
            false => amounts.remove(size, capacity),
        });
        Ok(())
    })
}

/// Sets the largest amount of physical memory that PyTorch's pool of a device may hold, in bytes; at most the budget of
/// gpu_vmm_torch_configure. Free memory beyond it returns to the driver at once, and the memory of blocks as they are freed. Blocks of
/// private pools stay.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_set_limit(number: c_int, bytes: u64) -> Status {
    of_device(number, |device| {
        let bytes = limit()?.map_or(bytes, |configured| configured.min(bytes));
        Ok(device.pool.blocks.set_budget(Bytes(bytes))?)
    })
}

/// Gives the device `peer` access to all memory of PyTorch's pool of another device, present and future.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_allow_access(number: c_int, peer: c_int) -> Status {
    of_device(number, |device| {
        let invalid = || Failure::invalid(format!("allow access: there is no device {peer}"));
        let peer = u32::try_from(peer).map_err(|_| invalid())?;
        Ok(device.pool.blocks.allow_access(DeviceId(peer))?)
    })
}

/// Returns all free memory of every device to the driver, including the memory of destroyed graphs.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_collect() -> Status {
    status(|| {
        devices().try_for_each(|device| {
            device.private.clear()?;
            device.private.take_ended()?;
            device.pool.blocks.trim(Bytes::ZERO)?;
            Ok(())
        })
    })
}

/// Returns free memory to the driver: on each device, as many whole pages as ended private pools have returned to the general pool
/// since the last collection. If their own pages are in use again, other free pages are returned.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_collect_ended() -> Status {
    status(|| {
        devices().try_for_each(|device| {
            device.private.clear()?;
            let (ended, page) = (device.private.take_ended()?, device.pool.blocks.usage().page);
            let goes = ended.0 / page * page;
            if goes > 0 {
                // Empties the caches of threads, whose memory is not free until then.
                device.pool.blocks.trim(Bytes(u64::MAX))?;
                let kept = device.pool.blocks.stats().kept;
                device.pool.blocks.trim(Bytes(kept.saturating_sub(goes)))?;
            }
            Ok(())
        })
    })
}

/// A run of physical memory that is mapped at consecutive addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchRun {
    /// The first address; zero if the memory is mapped nowhere.
    pub address: u64,
    /// The size.
    pub size: u64,
    /// Whether blocks lie in the run.
    pub used: bool,
    /// Whether the blocks are of up to 1 MiB each.
    pub small: bool,
}

/// A function that receives runs one by one, with the context of its caller; null for none.
pub type TorchVisitRun = Option<unsafe extern "C" fn(*mut c_void, *const TorchRun)>;

/// Calls `run` for all memory of a device, each part once, by address, and then `block` for its live blocks, the free blocks of
/// private pools, and freed blocks that wait for a stream. Other threads may allocate and free meanwhile.
///
/// # Safety
///
/// The functions accept `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_walk(
    number: c_int,
    run: TorchVisitRun,
    block: TorchVisit,
    context: *mut c_void,
) -> Status {
    status(|| {
        let Some(device) = known(number)? else { return Ok(()) };
        // A block that is freed meanwhile may be in two lists.
        let mut blocks = table::blocks(number as u8, None);
        blocks.extend(device.private.kept()?);
        let layout = device.pool.blocks.layout();
        for (address, size) in layout.pending {
            let state = GPU_VMM_TORCH_PENDING;
            blocks.push(TorchBlock { state, ..TorchBlock::at(number, address.0, size.0) });
        }
        blocks.sort_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        for found in layout.runs {
            let found = TorchRun {
                address: found.address.0,
                size: found.size.0,
                used: found.used,
                small: found.small,
            };
            if let Some(run) = run {
                // SAFETY: guaranteed by the caller.
                unsafe { run(context, &raw const found) };
            }
        }
        if let Some(block) = block {
            // SAFETY: guaranteed by the caller.
            blocks.iter().for_each(|found| unsafe { block(context, found) });
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::status::{GPU_VMM_INVALID_ARGUMENT, GPU_VMM_OK, GPU_VMM_OUT_OF_MEMORY};
    use crate::torch::amounts::TorchQuantity;
    use crate::torch::class::blocks::{gpu_vmm_torch_allocate, gpu_vmm_torch_deallocate};
    use crate::torch::class::pools::{gpu_vmm_torch_pool_acquire, gpu_vmm_torch_pool_release};
    use crate::torch::graphs::MempoolId;
    use crate::torch::process::gpu_vmm_torch_configure;
    use crate::torch::table::{GPU_VMM_TORCH_FREE, GPU_VMM_TORCH_LIVE};
    use std::collections::BTreeMap;
    use std::mem::MaybeUninit;
    use std::ptr::{null, null_mut};

    const ID: MempoolId = MempoolId { first: 3, second: 4 };

    /// What `gpu_vmm_torch_walk` reports.
    #[derive(Default)]
    struct Walked {
        runs: Vec<TorchRun>,
        blocks: Vec<TorchBlock>,
    }

    unsafe extern "C" fn note_run(context: *mut c_void, run: *const TorchRun) {
        // SAFETY: the context is a `Walked`, and the run is valid for the call.
        unsafe { (*context.cast::<Walked>()).runs.push(*run) }
    }

    unsafe extern "C" fn note_block(context: *mut c_void, block: *const TorchBlock) {
        // SAFETY: as in `note_run`.
        unsafe { (*context.cast::<Walked>()).blocks.push(*block) }
    }

    fn walk() -> Walked {
        let mut walked = Walked::default();
        let context = (&raw mut walked).cast();
        // SAFETY: the functions accept the context.
        let status = unsafe { gpu_vmm_torch_walk(0, Some(note_run), Some(note_block), context) };
        assert_eq!(status, GPU_VMM_OK);
        walked
    }

    fn measured() -> TorchUsage {
        let mut usage = MaybeUninit::<TorchUsage>::uninit();
        // SAFETY: the usage is writable.
        assert_eq!(unsafe { gpu_vmm_torch_measure(0, usage.as_mut_ptr()) }, GPU_VMM_OK);
        // SAFETY: the call has written it.
        unsafe { usage.assume_init() }
    }

    fn alloc(size: u64, private: bool) -> Result<TorchBlock, Status> {
        let mut block = TorchBlock::at(0, 0, 0);
        let own = ID;
        let id = if private { &raw const own } else { null() };
        // SAFETY: the identifier and the block are valid for the call; null is the default stream.
        match unsafe { gpu_vmm_torch_allocate(0, size, null_mut(), id, &raw mut block) } {
            GPU_VMM_OK => Ok(block),
            status => Err(status),
        }
    }

    fn free(address: u64) {
        // SAFETY: the description of the freed block is not wanted.
        assert_eq!(unsafe { gpu_vmm_torch_deallocate(address, null_mut()) }, GPU_VMM_OK);
    }

    /// Returns the number, the rounded and the requested sizes.
    fn quantities(usage: &TorchUsage) -> [TorchQuantity; 3] {
        [usage.live.blocks, usage.live.bytes, usage.live.requested]
    }

    /// Compares a walk with the blocks that must exist, by address, each with its size, its pool and its state.
    #[track_caller]
    fn agrees(expected: &BTreeMap<u64, (u64, MempoolId, u32)>) {
        let Walked { runs, blocks } = walk();
        let found: Vec<_> =
            blocks.iter().map(|block| (block.address, (block.size, block.pool, block.state))).collect();
        let expected: Vec<_> = expected.iter().map(|(address, block)| (*address, *block)).collect();
        assert_eq!(found, expected);
        assert!(blocks.is_sorted_by(|one, next| one.address + one.capacity <= next.address));
        let mapped: Vec<_> = runs.iter().filter(|run| run.address > 0).collect();
        assert!(mapped.is_sorted_by(|one, next| one.address + one.size <= next.address), "{mapped:?}");
        let usage = measured();
        assert_eq!(runs.iter().map(|run| run.size).sum::<u64>(), usage.held);
        assert_eq!(
            runs.iter().filter(|run| run.small).map(|run| run.size).sum::<u64>(),
            usage.held_small,
            "{runs:?}"
        );
        assert_eq!(usage.held, (usage.created - usage.released) * usage.page);
        assert!(usage.held <= usage.peak_held);
        let mut live = [[0; 2]; 3];
        for block in blocks.iter().filter(|block| block.state == GPU_VMM_TORCH_LIVE) {
            let kind = usize::from(block.capacity > 1 << 20);
            for (sum, amount) in live.iter_mut().zip([1, block.size.next_multiple_of(512), block.size]) {
                sum[kind] += amount;
            }
        }
        for (live, now) in live.iter().zip(quantities(&usage)) {
            assert_eq!(*live, now.live);
            assert_eq!([0, 1].map(|kind| now.allocated[kind] - now.freed[kind]), *live);
            assert!((0..2).all(|kind| live[kind] <= now.peak[kind]));
            assert!(now.peak_of_all >= live.iter().sum() && now.peak_of_all <= now.peak.iter().sum());
        }
        // Every live block lies in memory that is in use.
        for block in blocks.iter().filter(|block| block.state == GPU_VMM_TORCH_LIVE) {
            let (mut at, end) = (block.address, block.address + block.capacity);
            for run in mapped.iter().filter(|run| run.used) {
                if run.address <= at && at < run.address + run.size {
                    at = run.address + run.size;
                }
            }
            assert!(at >= end, "{block:?} lies in no used run of {mapped:?}");
        }
    }

    /// The functions of the process's own pool, so that all of them are in one test.
    #[test]
    fn walks_and_amounts_follow_the_blocks() {
        assert_eq!(measured().held, 0, "nothing was allocated");
        assert!(walk().blocks.is_empty());
        // SAFETY: the name is a string, and null means the default options.
        assert_eq!(unsafe { gpu_vmm_torch_configure(c"host".as_ptr(), null()) }, GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        let mut expected = BTreeMap::new();
        for number in 0..48_u64 {
            let size = [512, 70_000, 3 << 20, 5000][number as usize % 4] + number * 512;
            let private = number.is_multiple_of(3);
            let block = alloc(size, private).unwrap();
            let id = if private { ID } else { MempoolId::default() };
            assert_eq!((block.size, block.pool), (size, id));
            expected.insert(block.address, (block.size, id, GPU_VMM_TORCH_LIVE));
            agrees(&expected);
        }
        let most = quantities(&measured());
        for now in &most {
            // Nothing was freed: all peaks are the live amount.
            assert_eq!((now.peak, now.peak_of_all), (now.live, now.live.iter().sum()));
        }
        let all: Vec<u64> = expected.keys().copied().collect();
        for address in all.iter().copied().step_by(2) {
            free(address);
            // Blocks of a private pool stay its own, in the size that they occupy.
            match expected.remove(&address) {
                Some((_, ID, _)) => {
                    let walked = walk();
                    let kept = walked.blocks.iter().find(|block| block.address == address).unwrap();
                    expected.insert(address, (kept.capacity, ID, GPU_VMM_TORCH_FREE));
                }
                plain => assert!(plain.is_some()),
            }
            agrees(&expected);
        }
        let before = measured();
        assert_eq!(quantities(&before).map(|now| now.peak_of_all), most.map(|now| now.peak_of_all));
        counts_blocks_of_others(&before);
        assert_eq!(gpu_vmm_torch_set_limit(0, before.held), GPU_VMM_OK);
        assert_eq!(alloc(before.held, false).unwrap_err(), GPU_VMM_OUT_OF_MEMORY);
        assert_eq!(gpu_vmm_torch_set_limit(0, u64::MAX), GPU_VMM_OK);
        expected
            .iter()
            .filter(|(_, block)| block.2 == GPU_VMM_TORCH_LIVE)
            .for_each(|(address, _)| free(*address));
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect(), GPU_VMM_OK);
        agrees(&BTreeMap::new());
        let after = measured();
        assert_eq!((after.held, after.released), (0, after.created));
        assert!(after.peak_held >= before.held);
        assert_eq!(gpu_vmm_torch_reset_peak(0), GPU_VMM_OK);
        let end = measured();
        assert_eq!(
            (end.peak_held, quantities(&end).map(|now| (now.peak, now.peak_of_all))),
            (0, [([0; 2], 0); 3])
        );
        assert!(end.live.blocks.allocated[0] > 0);
        assert_eq!(gpu_vmm_torch_reset_accumulated(0), GPU_VMM_OK);
        assert_eq!(measured().live, TorchAmounts::default());
    }

    /// Counts a block of another allocator as allocated and as freed.
    fn counts_blocks_of_others(before: &TorchUsage) {
        let block = TorchBlock { size: 1000, ..TorchBlock::at(0, 0, 2 << 20) };
        // SAFETY: it is a block.
        assert_eq!(unsafe { gpu_vmm_torch_count(&raw const block, true) }, GPU_VMM_OK);
        let larger = measured();
        for ((now, before), amount) in quantities(&larger).iter().zip(quantities(before)).zip([1, 1024, 1000])
        {
            assert_eq!(now.live, [before.live[0], before.live[1] + amount]);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { gpu_vmm_torch_count(&raw const block, false) }, GPU_VMM_OK);
        for (now, before) in quantities(&measured()).iter().zip(quantities(before)) {
            assert_eq!(now.live, before.live);
        }
        let nowhere = TorchBlock { device: 64, ..block };
        // SAFETY: null and a block.
        unsafe {
            assert_eq!(gpu_vmm_torch_count(null(), true), GPU_VMM_INVALID_ARGUMENT);
            assert_eq!(gpu_vmm_torch_count(&raw const nowhere, true), GPU_VMM_INVALID_ARGUMENT);
        }
    }

    /// Nothing is pending on host memory.
    #[test]
    fn pending_memory_is_small_or_large() {
        let mut now = PoolUsage::default();
        (now.pending_small.blocks, now.pending_small.bytes) = (1, 2);
        (now.pending_large.blocks, now.pending_large.bytes) = (3, 4);
        let usage = TorchUsage::of(&now, TorchAmounts::default());
        assert_eq!((usage.pending_blocks, usage.pending_bytes), ([1, 3], [2, 4]));
    }
}
