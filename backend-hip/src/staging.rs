//! Page-locked memory of the host, and copies between it and a device that go on while the caller does something else.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipHostMallocPortable, hipMemcpyKind, hipStreamNonBlocking};
use crate::stream::{OwnStream, needed};
use gpu_vmm_core::{Access, Address, Bytes, CopyStream, Detail, DeviceId, Error, Operation, Pinned, Result};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::Arc;

/// Page-locked memory. In a forked child dropping does nothing: the pages are the parent's.
#[derive(Debug)]
struct HipPinned {
    driver: Arc<Driver>,
    start: NonNull<u8>,
    size: Bytes,
    free: ffi::hipHostFree,
}

// SAFETY: the memory is the process's and bound to no thread; who reaches it does so through pointers, by promises of
// its own.
unsafe impl Send for HipPinned {}
// SAFETY: as above.
unsafe impl Sync for HipPinned {}

/// Memory of the host that all devices copy to and from at full speed.
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
    // SAFETY: HIP writes one address; a size that cannot be had is an error.
    let code = unsafe { allocate(&raw mut start, size.0 as usize, hipHostMallocPortable) };
    driver.check(OPERATION, "hipHostMalloc", code, || format!("{size} of the host"))?;
    let start = NonNull::new(start.cast()).ok_or_else(|| {
        let what = format!("hipHostMalloc answered success and a null address for {size}");
        Error::new(OPERATION, Detail::DriverContractViolated { what })
    })?;
    Ok(Box::new(HipPinned { driver: Arc::clone(driver), start, size, free }))
}

// SAFETY: the bytes were allocated with this size, and are given back by dropping alone.
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
        // In a forked child it is the parent's.
        if !self.driver.process.is_this() {
            return;
        }
        let freed = self.driver.relax(OPERATION).and_then(|_relaxed| {
            // SAFETY: the memory was allocated by this and is given back once, here; no copy uses it any more, by the
            // promise of the caller that queued it.
            let code = unsafe { (self.free)(self.start.as_ptr().cast()) };
            self.driver.check(OPERATION, "hipHostFree", code, || self.size.to_string())
        });
        if let Err(error) = freed {
            self.driver.drop_log.record(error);
        }
    }
}

/// Copies on a stream of their own. Where another device would do them (quirk `pinned-copies-by-first`), they are done when
/// they are queued, through memory that is not locked.
#[derive(Debug)]
struct HipCopyStream {
    stream: OwnStream,
    copy: ffi::hipMemcpyAsync,
}

/// A queue of copies of a device, which exists.
pub(crate) fn copy_stream(driver: &Arc<Driver>, device: DeviceId) -> Result<Box<dyn CopyStream>> {
    const OPERATION: Operation = Operation::CreateStream;
    let copy = needed(OPERATION, "hipMemcpyAsync", driver.hip.hipMemcpyAsync)?;
    Ok(Box::new(HipCopyStream {
        stream: OwnStream::new(OPERATION, driver, device, hipStreamNonBlocking)?,
        copy,
    }))
}

impl HipCopyStream {
    /// Queues one copy, of memory that begins at `at` and is the copy stream's device's own, as on all versions it must be.
    ///
    /// # Safety
    ///
    /// As for [`CopyStream::copy_to_host`]; both sides are what the kind of copy says that they are.
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
        // SAFETY: both sides are good for the length and left alone until the stream has been waited for, by the caller's
        // promise.
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
        if driver.copies_astray(device) {
            // SAFETY: both sides are good for the length, and nobody else uses them, by the caller's promise.
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
        if driver.copies_astray(device) {
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

    fn finish(&mut self) -> Result<()> {
        self.stream.wait(Operation::FinishCopies)
    }
}
