//! Page-locked host memory, and asynchronous copies between it and a device.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipHostMallocPortable, hipMemcpyKind, hipStreamNonBlocking};
use crate::stream::{OwnStream, needed};
use gpu_vmm_core::extend::host_out_of_memory;
use gpu_vmm_core::{
    Access, Address, Bytes, CopyStream, Detail, DeviceId, Error, Event, Operation, Pinned, Result, Stream,
};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::Arc;

/// Page-locked memory. In a forked child dropping it does nothing: the pages belong to the parent.
#[derive(Debug)]
struct HipPinned {
    driver: Arc<Driver>,
    start: NonNull<u8>,
    size: Bytes,
    free: ffi::hipHostFree,
}

// SAFETY: the memory belongs to the process and to no thread; callers access it through pointers, by promises of their
// own.
unsafe impl Send for HipPinned {}
// SAFETY: as above.
unsafe impl Sync for HipPinned {}

/// Allocates page-locked host memory that all devices copy from and to at full speed.
pub(crate) fn pin(driver: &Arc<Driver>, size: Bytes) -> Result<Box<dyn Pinned>> {
    const OPERATION: Operation = Operation::PinMemory;
    if size.is_zero() {
        return Err(Error::new(OPERATION, Detail::ZeroSize));
    }
    driver.process.check(OPERATION)?;
    let allocate = needed(OPERATION, "hipHostMalloc", driver.hip.hipHostMalloc)?;
    let free = needed(OPERATION, "hipHostFree", driver.hip.hipHostFree)?;
    let _relaxed = driver.relax(OPERATION)?;
    let mut start = null_mut();
    // SAFETY: HIP writes one address; a size that cannot be allocated is an error.
    let code = unsafe { allocate(&raw mut start, size.0 as usize, hipHostMallocPortable) };
    let context = || format!("{size} of host memory");
    driver.check_short(OPERATION, "hipHostMalloc", code, context, |source, _| {
        host_out_of_memory(OPERATION, size, source)
    })?;
    let start = NonNull::new(start.cast()).ok_or_else(|| {
        let what = format!("hipHostMalloc returned success and a null address for {size}");
        Error::new(OPERATION, Detail::DriverContractViolated { what })
    })?;
    Ok(Box::new(HipPinned { driver: Arc::clone(driver), start, size, free }))
}

// SAFETY: the memory was allocated with this size, and only dropping frees it.
unsafe impl Pinned for HipPinned {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn size(&self) -> Bytes {
        self.size
    }
}

impl Drop for HipPinned {
    fn drop(&mut self) {
        const OPERATION: Operation = Operation::FreePinned;
        // In a forked child the memory belongs to the parent.
        if !self.driver.process.is_usable() {
            return;
        }
        let freed = self.driver.relax(OPERATION).and_then(|_relaxed| {
            // SAFETY: this object allocated the memory, which is freed once, here; no copy uses it any more, as the
            // caller that queued it promised.
            let code = unsafe { (self.free)(self.start.as_ptr().cast()) };
            self.driver.check(OPERATION, "hipHostFree", code, || self.size.to_string())
        });
        if let Err(error) = freed {
            self.driver.drop_log.record(error);
        }
    }
}

/// Copies on a stream of their own. If another device would perform them (quirk `pinned-copies-by-first`), they go
/// through memory that is not locked and are synchronous.
#[derive(Debug)]
struct HipCopyStream {
    stream: OwnStream,
    copy: ffi::hipMemcpyAsync,
}

/// Creates a copy stream of a device, which exists.
pub(crate) fn copy_stream(driver: &Arc<Driver>, device: DeviceId) -> Result<Box<dyn CopyStream>> {
    const OPERATION: Operation = Operation::CreateStream;
    let copy = needed(OPERATION, "hipMemcpyAsync", driver.hip.hipMemcpyAsync)?;
    Ok(Box::new(HipCopyStream {
        stream: OwnStream::new(OPERATION, driver, device, hipStreamNonBlocking)?,
        copy,
    }))
}

impl HipCopyStream {
    /// Returns whether copies bypass the stream, because device 0 would do them (quirk `pinned-copies-by-first`). If so, waits for
    /// the stream first, which may wait for an event.
    fn bypasses(&self, operation: Operation) -> Result<bool> {
        let bypasses = self.stream.driver.copies_astray(self.stream.device);
        if bypasses {
            self.stream.wait(operation)?;
        }
        Ok(bypasses)
    }

    /// Queues one copy. The memory belongs to the copy stream's device, as all versions require.
    ///
    /// # Safety
    ///
    /// As for [`CopyStream::copy_to_host`]; both sides are of the memory types that `kind` says.
    unsafe fn queue(
        &self,
        operation: Operation,
        (to, from): (*mut c_void, *const c_void),
        length: Bytes,
        kind: hipMemcpyKind,
    ) -> Result<()> {
        let driver = &self.stream.driver;
        let _current = self.stream.enter(operation)?;
        if length.is_zero() {
            return Ok(());
        }
        let _relaxed = driver.relax(operation)?;
        // SAFETY: both sides are valid for the length and not used until the stream has finished, as the caller
        // promises.
        let code = unsafe { (self.copy)(to, from, length.0 as usize, kind, self.stream.raw()) };
        let context = || format!("{length} from {from:p} to {to:p} by {}", self.stream.device);
        driver.check(operation, "hipMemcpyAsync", code, context)
    }
}

// SAFETY: finishing waits for the stream on which all copies are queued.
unsafe impl CopyStream for HipCopyStream {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::QueueCopyToHost;
        let (driver, device) = (&self.stream.driver, self.stream.device);
        if self.bypasses(OPERATION)? {
            // SAFETY: both sides are valid for the length and not used elsewhere, as the caller promises.
            return unsafe {
                driver.copy_to_host(device, slice::from_raw_parts_mut(to, length.0 as usize), from)
            };
        }
        driver.check_owner(OPERATION, device, from, Access::Read)?;
        let sides = (to.cast(), from.as_ptr::<c_void>().cast_const());
        // SAFETY: the caller's promise.
        unsafe { self.queue(OPERATION, sides, length, hipMemcpyKind::hipMemcpyDeviceToHost) }
    }

    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::QueueCopyFromHost;
        let (driver, device) = (&self.stream.driver, self.stream.device);
        if self.bypasses(OPERATION)? {
            // SAFETY: as above.
            return unsafe {
                driver.copy_from_host(device, to, slice::from_raw_parts(from, length.0 as usize))
            };
        }
        driver.check_owner(OPERATION, device, to, Access::ReadWrite)?;
        let sides = (to.as_ptr(), from.cast());
        // SAFETY: the caller's promise.
        unsafe { self.queue(OPERATION, sides, length, hipMemcpyKind::hipMemcpyHostToDevice) }
    }

    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()> {
        // SAFETY: the stream lives as long as this object, and the event is of the same driver, as the caller promises.
        event.hold(unsafe { Stream::from_raw(self.stream.raw().cast()) })
    }

    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()> {
        // SAFETY: as above.
        event.record(unsafe { Stream::from_raw(self.stream.raw().cast()) })
    }

    fn finish(&mut self) -> Result<()> {
        self.stream.wait(Operation::FinishCopies)
    }
}
