//! The functions of an allocator for the whole process, which `CUDAPluggableAllocator` and its setters take.

use super::graphs::MempoolId;
use super::process::{ALIGNMENT, Device, alloc_tagged, device, devices};
use super::throw::throw;
use crate::call::{run, status};
use crate::status::{CallResult, Failure};
use gpu_vmm::pool::PoolError;
use gpu_vmm::{Address, Bytes, Error, Operation, Stream, SyncCalls};
use std::ffi::{c_int, c_void};

/// Allocates memory for a tensor in the order of a stream. If memory is short, throws a C++ exception (std::runtime_error) with
/// the pool's statistics, which Python gets as a RuntimeError. Returns null for a size of 0.
///
/// # Safety
///
/// `stream` is null or a live stream of the device's vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpu_vmm_torch_alloc(
    size: isize,
    number: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let result = run(|| {
        let device = device(number)?;
        // SAFETY: guaranteed by the caller; PyTorch keeps its streams for as long as the process runs.
        let stream = unsafe { Stream::from_raw(stream) };
        match captured(device, size, stream)? {
            Some(block) => Ok(block),
            None => alloc_tagged(device, size, stream),
        }
    });
    result.unwrap_or_else(throw)
}

/// Allocates for the graph that the stream captures. Returns `None` if the stream captures none.
fn captured(device: &Device, size: isize, stream: Stream<'static>) -> CallResult<Option<*mut c_void>> {
    if size <= 0 || !device.graphs.is_begun() || !device.pool.backend.is_capturing(stream)? {
        return Ok(None);
    }
    let address = device.graphs.alloc(Bytes(size.unsigned_abs() as u64), ALIGNMENT, stream)?;
    Ok(address.map(Address::as_ptr))
}

/// Frees a block of gpu_vmm_torch_alloc in the order of the stream that it was allocated for. Null does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_free(block: *mut c_void, _size: isize, number: c_int, _stream: *mut c_void) {
    let _ = status(|| {
        let device = device(number)?;
        if device.graphs.free(Address(block.addr() as u64))? { Ok(()) } else { device.free(block) }
    });
}

/// Records that work on another stream uses a block. For set_record_stream_fn.
///
/// # Safety
///
/// `stream` is null or a live stream of the vendor of the block's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    let _ = status(|| {
        // SAFETY: guaranteed by the caller.
        let stream = unsafe { Stream::from_raw(stream) };
        let address = Address(block.addr() as u64);
        let mut last = Failure::from(Error::of_extension(
            Operation::RecordUse,
            PoolError::NotABlock { address, inside: None },
        ));
        for device in devices() {
            if device.graphs.record_use(address, stream)? {
                return Ok(());
            }
            match device.pool.blocks.record_use_at(address, stream) {
                Ok(()) => return Ok(()),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    });
}

/// Returns all free memory to the driver. For set_reset_fn, whose function torch.cuda.empty_cache() calls.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_empty_cache() {
    for device in devices() {
        let _ = status(|| {
            device.graphs.clear()?;
            device.pool.blocks.trim(Bytes::ZERO)?;
            Ok(())
        });
    }
}

/// Begins a capture: until its end, memory that is allocated on capturing streams belongs to its graph alone. For
/// set_begin_allocate_to_pool. `_filter`, PyTorch's predicate that selects streams, is not called: the driver reports which
/// streams capture.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_begin_allocate_to_pool(number: c_int, id: MempoolId, _filter: *const c_void) {
    of_device(number, |device| {
        device.graphs.begin(id);
        Ok(())
    });
}

/// Ends a capture. For set_end_allocate_to_pool_fn.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_end_allocate_to_pool(number: c_int, id: MempoolId) {
    of_device(number, |device| {
        device.graphs.end(id);
        Ok(())
    });
}

/// Releases the memory of a capture whose graph was destroyed. For set_release_pool.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_release_pool(number: c_int, id: MempoolId) {
    of_device(number, |device| device.graphs.release(id));
}

fn of_device(number: c_int, work: impl FnOnce(&Device) -> CallResult) {
    // PyTorch takes no status; the text stays the thread's last error.
    let _ = status(|| work(device(number)?));
}
