//! Other memory at the same addresses: swaps, moves to another device, fills and copies between regions.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::region::{Region, taken_away};
use crate::status::{CallResult, Failure, Status};
use crate::texts::object;
use gpu_vmm::{AnyBackend, Bytes, DeviceId, MovePath, Operation, Region as Memory, Result, WaitFor};

/// Calls `work` with two regions, which are locked in the order of their addresses: two threads that name them in different orders do
/// not wait for each other.
pub(crate) fn both(
    operation: Operation,
    one: &Region,
    other: &Region,
    force: bool,
    work: impl FnOnce(&mut Memory<AnyBackend>, &mut Memory<AnyBackend>) -> Result<()>,
) -> CallResult {
    let [at, other_at] = [one, other].map(|region| std::ptr::from_ref(region).addr());
    if at == other_at {
        return Err(Failure::invalid(format!("{operation}: both regions are the same one")));
    }
    let (first, second) = if at < other_at { (one, other) } else { (other, one) };
    let answer = first.memory.change(operation, force, |first| {
        second.memory.change(operation, force, |second| {
            if at < other_at { work(first, second) } else { work(second, first) }
        })
    });
    answer.map_err(taken_away)
}

/// Exchanges the memory of a range with the memory of a range of another region, after waiting for the devices. The addresses stay the
/// same, and no byte is copied. Both ranges must consist of whole mappings. With `force`, tensors may exist; they then have the
/// other contents.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_SUSPENDED,
/// GPU_VMM_INVALID_ARGUMENT for the same region twice or for a part of a mapping, and GPU_VMM_BUSY for a tensor, a capture, or if an
/// observer refuses.
///
/// # Safety
///
/// `region` and `other` are null or regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_swap(
    region: *const Region,
    offset: u64,
    other: *const Region,
    other_offset: u64,
    length: u64,
    force: bool,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, other) = unsafe { (object("region", region)?, object("other", other)?) };
        both(Operation::Swap, region, other, force, |region, other| {
            region.swap(Bytes(offset), other, Bytes(other_offset), Bytes(length), WaitFor::all_devices())
        })
    })
}

/// Exchanges all memory of two regions, which must be mapped at the same offsets, as gpu_vmm_region_swap does for a range.
///
/// Returns the statuses of gpu_vmm_region_swap.
///
/// # Safety
///
/// `region` and `other` are null or regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_swap_all(
    region: *const Region,
    other: *const Region,
    force: bool,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, other) = unsafe { (object("region", region)?, object("other", other)?) };
        both(Operation::Swap, region, other, force, |region, other| {
            region.swap_all(other, WaitFor::all_devices())
        })
    })
}

/// Moves the contents of a region to memory of another device, at the same addresses, after waiting for the devices. From then on
/// the region grows with memory of that device. Fails while a tensor of the region exists: tensors name their device.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_SUSPENDED, and GPU_VMM_BUSY for a
/// tensor, for memory that is exported, imported or held elsewhere, for a capture, or if an observer refuses.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_move_to_device(region: *const Region, device: u32) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        region.memory.change(Operation::MoveToDevice, false, |region| {
            region.move_to_device(DeviceId(device), MovePath::Fastest(None), WaitFor::all_devices())
        })?;
        Ok(())
    })
}

/// Sets every byte of a range to `value` and waits until that is done. It does not wait for work on streams. CUDA: cuMemsetD8; HIP:
/// hipMemset.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_fill(
    region: *const Region,
    offset: u64,
    length: u64,
    value: u8,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let fill = |region: &mut Memory<AnyBackend>| region.fill(Bytes(offset), Bytes(length), value);
        Ok(region.memory.change(Operation::Fill, true, fill)?)
    })
}

/// Copies a range of the region `from` into the region `to` and waits for the copy. It does not wait for work on streams. The
/// device that owns the target copies, and must have read access to the source. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for the
/// same region twice.
///
/// # Safety
///
/// `to` and `from` are null or regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_copy(
    to: *const Region,
    offset: u64,
    from: *const Region,
    from_offset: u64,
    length: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (to, from) = unsafe { (object("to", to)?, object("from", from)?) };
        both(Operation::Copy, to, from, true, |to, from| {
            to.copy_from(Bytes(offset), from, Bytes(from_offset), Bytes(length))
        })
    })
}
