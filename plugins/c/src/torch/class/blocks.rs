//! Allocating, freeing and finding blocks.

use crate::call::status;
use crate::status::{
    CallResult, Failure, GPU_VMM_NOT_FOUND, GPU_VMM_OK, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_OUT_OF_MEMORY,
    Status,
};
use crate::texts::{check_place, clear, give_if_wanted};
use crate::torch::graphs::MempoolId;
use crate::torch::process::{ALIGNMENT, Device, block_tagged, device, devices};
use crate::torch::table::{self, Entry, TorchBlock};
use gpu_vmm::{Address, Bytes, Stream};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

fn seen(address: Address) -> CallResult<TorchBlock> {
    table::with(address, |entry| TorchBlock::of(entry)).ok_or_else(|| missing("find", address))
}

fn missing(operation: &str, address: Address) -> Failure {
    Failure::new(GPU_VMM_NOT_FOUND, format!("{operation}: no live block of PyTorch begins at {address}"))
}

/// Allocates `size` bytes in the order of a stream: from a private pool, or, if `pool` is null, under this thread's tag. `block`
/// receives the new block.
///
/// # Safety
///
/// `stream` is null or a live stream of the device's vendor. `pool` is null or points to an identifier. `block` is null or points
/// to a writable block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_allocate(
    number: c_int,
    size: u64,
    stream: *mut c_void,
    pool: *const MempoolId,
    block: *mut TorchBlock,
) -> Status {
    let work = |place: &mut MaybeUninit<TorchBlock>| {
        let device = device(number)?;
        // SAFETY: guaranteed by the caller; PyTorch keeps its streams for as long as the process runs.
        let (stream, pool) = unsafe { (Stream::from_raw(stream), pool.as_ref()) };
        match pool {
            Some(id) => place.write(device.private.alloc(*id, Bytes(size), ALIGNMENT, stream)?),
            None => allocate(device, number as u8, Bytes(size), stream, place)?,
        };
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { receive(block, work) }
}

/// Has `work` write `block`, which is all zeros after a failure. It is not cleared before: allocations are frequent.
///
/// # Safety
///
/// `block` is null or points to a writable block.
#[inline]
unsafe fn receive(
    block: *mut TorchBlock,
    work: impl FnOnce(&mut MaybeUninit<TorchBlock>) -> CallResult,
) -> Status {
    let status = status(|| {
        check_place("block", block)?;
        // SAFETY: it is not null, and writable, as the caller guarantees.
        work(unsafe { &mut *block.cast() })
    });
    if status != GPU_VMM_OK {
        // SAFETY: null or writable, as the caller guarantees; all fields can be zero.
        unsafe { clear(block) };
    }
    status
}

#[inline]
fn allocate<'a>(
    device: &Device,
    number: u8,
    size: Bytes,
    stream: Stream<'static>,
    place: &'a mut MaybeUninit<TorchBlock>,
) -> CallResult<&'a mut TorchBlock> {
    let entry = Entry::new(block_tagged(device, size, stream)?, number);
    let seen = place.write(TorchBlock::of(&entry));
    table::insert(entry)?;
    Ok(seen)
}

/// Allocates as gpu_vmm_torch_allocate without a private pool does, after everything that frees memory: blocks whose graphs are
/// destroyed, and then the free blocks of private pools that gpu_vmm_torch_pool_use_on_oom has named.
///
/// # Safety
///
/// As for gpu_vmm_torch_allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_allocate_at_last(
    number: c_int,
    size: u64,
    stream: *mut c_void,
    block: *mut TorchBlock,
) -> Status {
    let work = |place: &mut MaybeUninit<TorchBlock>| {
        let device = device(number)?;
        // SAFETY: guaranteed by the caller; PyTorch keeps its streams for as long as the process runs.
        let stream = unsafe { Stream::from_raw(stream) };
        device.private.clear()?;
        match allocate(device, number as u8, Bytes(size), stream, place) {
            Err(failure)
                if matches!(failure.status, GPU_VMM_OUT_OF_MEMORY | GPU_VMM_OUT_OF_ADDRESS_SPACE) =>
            {
                place.write(device.private.alloc_spare(Bytes(size), stream)?.ok_or(failure)?);
            }
            answer => drop(answer?),
        }
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { receive(block, work) }
}

/// Frees the block with this first address, in the order of its stream and after the work on other streams that
/// gpu_vmm_torch_record_use has noted. `block` receives what it was; it may be null.
///
/// # Safety
///
/// `block` is null or points to a writable block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_deallocate(address: u64, block: *mut TorchBlock) -> Status {
    let mut found = false;
    let status = status(|| {
        let address = Address(address);
        let entry = table::remove(address)?.ok_or_else(|| missing("free", address))?;
        found = true;
        // SAFETY: null or writable, as the caller guarantees.
        unsafe { give_if_wanted(block, TorchBlock::of(&entry)) };
        if entry.is_plain() {
            drop(entry);
            return Ok(());
        }
        let private = &device(c_int::from(entry.device))?.private;
        match entry.private() {
            Some(id) => private.free(entry, id),
            None => private.free_after(entry),
        }
    });
    if !found {
        // SAFETY: null or writable, as the caller guarantees; all fields can be zero.
        unsafe { clear(block) };
    }
    status
}

/// Notes that work on another stream uses a block. After it is freed, its memory is reused once that stream has done the work that
/// was queued on it at the free.
///
/// # Safety
///
/// `stream` is null or a live stream of the vendor of the block's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_record_use(address: u64, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let stream = unsafe { Stream::from_raw(stream) };
        let address = Address(address);
        table::with(address, |entry| entry.note_use(stream)).ok_or_else(|| missing("record use", address))
    })
}

/// Finds the live block that contains an address. Addresses other than a block's first are slow to find.
///
/// # Safety
///
/// `block` is null or points to a writable block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_find(address: u64, block: *mut TorchBlock) -> Status {
    let work = |place: &mut MaybeUninit<TorchBlock>| {
        let address = Address(address);
        let base = || devices().find_map(|device| device.pool.blocks.find(address)).map(|found| found.base);
        place.write(seen(address).or_else(|_| seen(base().ok_or_else(|| missing("find", address))?))?);
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { receive(block, work) }
}
