//! The functions of an allocator for the whole process: what `CUDAPluggableAllocator` and its setters take.

use super::graphs::MempoolId;
use super::process::{ALIGNMENT, Device, alloc_tagged, device, devices};
use super::throw::throw;
use crate::call::{run, status};
use crate::status::{Answer, Failure};
use gpu_vmm::pool::PoolError;
use gpu_vmm::{Address, Bytes, Error, Operation, Stream, SyncCalls};
use std::ffi::{c_int, c_void};

/// Memory for a tensor, in the order of a stream; where there is none, a C++ exception (std::runtime_error) with the account,
/// which Python gets as a RuntimeError. Null for a size of 0.
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
        // SAFETY: as the caller says; PyTorch keeps its streams for as long as the process runs.
        let stream = unsafe { Stream::from_raw(stream) };
        match captured(device, size, stream)? {
            Some(block) => Ok(block),
            None => alloc_tagged(device, size, stream),
        }
    });
    result.unwrap_or_else(throw)
}

/// Memory for a capture that is under way on the stream.
fn captured(device: &Device, size: isize, stream: Stream<'static>) -> Answer<Option<*mut c_void>> {
    if size <= 0 || !device.graphs.is_begun() || !device.pool.backend.is_capturing(stream)? {
        return Ok(None);
    }
    let address = device.graphs.alloc(Bytes(size.unsigned_abs() as u64), ALIGNMENT, stream)?;
    Ok(address.map(Address::as_ptr))
}

/// Frees it, in the order of the stream that it was allocated for. Null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_free(block: *mut c_void, _size: isize, number: c_int, _stream: *mut c_void) {
    let _ = status(|| {
        let device = device(number)?;
        if device.graphs.free(Address(block.addr() as u64))? { Ok(()) } else { device.free(block) }
    });
}

/// Notes that work on another stream uses a block: for set_record_stream_fn.
///
/// # Safety
///
/// `stream` is null or a live stream of the vendor of the block's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    let _ = status(|| {
        // SAFETY: as the caller says.
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

/// Gives memory back to the driver in which nothing is: for set_reset_fn, which torch.cuda.empty_cache() calls.
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

/// A capture begins: what is allocated from now on on streams that capture is its graph's alone. For
/// set_begin_allocate_to_pool. The last argument, PyTorch's question whether a stream is meant, is not asked: the driver says
/// which streams capture.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_begin_allocate_to_pool(number: c_int, id: MempoolId, _filter: *const c_void) {
    of_device(number, |device| {
        device.graphs.begin(id);
        Ok(())
    });
}

/// A capture has ended: for set_end_allocate_to_pool_fn.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_end_allocate_to_pool(number: c_int, id: MempoolId) {
    of_device(number, |device| {
        device.graphs.end(id);
        Ok(())
    });
}

/// The graph of a capture is gone: for set_release_pool.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_release_pool(number: c_int, id: MempoolId) {
    of_device(number, |device| device.graphs.release(id));
}

fn of_device(number: c_int, work: impl FnOnce(&Device) -> Answer) {
    // Nobody asks for the status; the text is the thread's last error.
    let _ = status(|| work(device(number)?));
}
