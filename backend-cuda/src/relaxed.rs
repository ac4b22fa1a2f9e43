//! Relaxed capture mode, in which calls invalidate no capture.
//!
//! Measured on CUDA 13.0: `cuEventQuery`, `cuEventSynchronize`, `cuStreamQuery`, `cuStreamSynchronize`, `cuMemAlloc`, `cuMemFree`,
//! `cuMemHostAlloc` and `cuMemFreeHost` fail and invalidate the capture of an unrelated stream. A capture in global mode is
//! invalidated from any thread, one in thread-local mode from the capturing thread. While the calling thread is in relaxed mode,
//! these calls succeed and invalidate nothing. `cuCtxSynchronize` and `cuCtxRecordEvent` invalidate a capture of their context in
//! every mode.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::CAPTURE_RELAXED;
use gpu_vmm_core::{ErrorKind, Operation, Result};

/// A guard that keeps the calling thread in relaxed capture mode.
#[derive(Debug)]
pub(crate) struct Relaxed<'a> {
    backend: &'a Opened,
    before: u32,
}

impl Opened {
    /// Puts the calling thread into relaxed capture mode.
    pub(crate) fn relax(&self, operation: Operation) -> Result<Relaxed<'_>> {
        let before = self.exchange_mode(operation, CAPTURE_RELAXED)?;
        Ok(Relaxed { backend: self, before })
    }

    /// Sets the thread's capture mode and returns the previous one.
    fn exchange_mode(&self, operation: Operation, mut mode: u32) -> Result<u32> {
        // SAFETY: the pointer is valid for one mode.
        let result = unsafe { (self.functions().thread_exchange_capture_mode)(&raw mut mode) };
        self.check(operation, "cuThreadExchangeStreamCaptureMode", result, || "this thread".into())?;
        Ok(mode)
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let restored = self.backend.exchange_mode(Operation::RestoreCaptureMode, self.before);
        // If the device has died, the call made under this guard has already reported it.
        if let Err(error) = restored
            && error.kind() != ErrorKind::DeviceLost
        {
            self.backend.drop_log.record(error);
        }
    }
}
