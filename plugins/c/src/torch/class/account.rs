//! Amounts, the limit, and which memory is where.

use super::pools::TorchVisit;
use crate::call::status;
use crate::status::{Answer, Failure, Status};
use crate::texts::{clear, give};
use crate::torch::process::{DEVICES, Device, device, devices, limit, used};
use crate::torch::table::{self, GPU_VMM_TORCH_FREE, GPU_VMM_TORCH_PENDING, TorchBlock};
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
    /// The number and the size of freed blocks that wait for work on a stream: those of up to 1 MiB, and the larger ones.
    pub pending_blocks: [u64; 2],
    pub pending_bytes: [u64; 2],
    /// The number of pages of physical memory that were ever created, and returned to the driver.
    pub created: u64,
    pub released: u64,
    /// The size of a page.
    pub page: u64,
}

fn of_device(number: c_int, work: impl FnOnce(&'static Device) -> Answer) -> Status {
    status(|| work(device(number)?))
}

/// Returns a device, or none if nothing was allocated there.
fn known(number: c_int) -> Answer<Option<&'static Device>> {
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
        let (small, large) = (now.pending_small, now.pending_large);
        let found = TorchUsage {
            held: now.held,
            peak_held: now.peak_held,
            held_small: now.held_small,
            pending_blocks: [small.blocks, large.blocks],
            pending_bytes: [small.bytes, large.bytes],
            created: now.created,
            released: now.released,
            page: now.page,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give("usage", usage, found) }
    })
}

/// Sets the peak of a device's held memory to what is held now.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_reset_peak(number: c_int) -> Status {
    status(|| known(number)?.map_or(Ok(()), |device| Ok(device.pool.blocks.reset_peak()?)))
}

/// Sets the largest amount of physical memory that PyTorch's pool of a device may hold, in bytes; at most the budget of
/// gpu_vmm_torch_configure. Memory beyond it stays, and no more is created.
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

/// Returns all free memory of every device to the driver, that of destroyed graphs included.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_collect() -> Status {
    status(|| {
        devices().try_for_each(|device| {
            device.private.clear()?;
            device.pool.blocks.trim(Bytes::ZERO)?;
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
        let mut blocks = Vec::new();
        table::each(number as u8, |entry| blocks.push(TorchBlock::of(entry)));
        device.private.each_free(|id, free| {
            let (address, capacity) = (free.address().0, free.capacity().0);
            let stream = free.stream().as_raw();
            blocks.push(TorchBlock {
                stream,
                pool: id,
                state: GPU_VMM_TORCH_FREE,
                ..TorchBlock::at(number, address, capacity)
            });
        })?;
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
