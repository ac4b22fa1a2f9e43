//! Calls that spoil no capture, and waiting for a device during one.
//!
//! While a stream captures, HIP refuses some calls about other streams, and the attempt alone spoils the capture:
//! `hipStreamEndCapture` then returns `hipErrorStreamCaptureInvalidated`. What AMD's runtime does, 6.4.3 and 7.2.4 alike
//! unless a line says otherwise (`tests/hsa-sim/checks/capture.c` prints the whole table):
//!
//! | call | in a thread that captures | in another thread | in a thread in relaxed mode |
//! |---|---|---|---|
//! | `hipEventQuery`, 6.4.3 | harmless | harmless | harmless |
//! | `hipEventQuery`, 7.2.4 | spoils global and thread-local captures | spoils global captures | harmless |
//! | `hipEventQuery` and `hipEventSynchronize` of what was recorded on the stream before, 6.4.3 | spoil every capture | spoil every capture | spoil every capture |
//! | `hipStreamWaitEvent` of such an event, by another stream | fails, is harmless | fails, is harmless | fails, is harmless |
//! | `hipEventSynchronize`, `hipStreamSynchronize`, `hipStreamQuery`, `hipMalloc`, `hipFree`, `hipHostMalloc`, `hipHostFree` | spoils global and thread-local captures | spoils global captures | harmless |
//! | `hipStreamSynchronize(null)`, `hipStreamQuery(null)`, `hipEventRecord`, `hipStreamWaitEvent`, streams and events made and destroyed, virtual memory | harmless | harmless | harmless |
//! | `hipMemcpyAsync`, `hipMemsetAsync` of another stream, of memory that is not page-locked too | harmless | harmless | harmless |
//! | `hipDeviceSynchronize`, of any device; `hipMemcpy`, `hipMemset` | spoils every capture | spoils every capture | spoils every capture |
//! | `hipStreamIsCapturing(null)` | harmless; `hipErrorStreamCaptureImplicit` while a blocking stream captures | the same | the same |
//!
//! No call reports that a non-blocking stream captures, unless the stream is named.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{hipError_t, hipStreamCaptureMode};
use crate::quirks::{DEVICE_WAIT_SPOILS_CAPTURES, WAITS_SPOIL_CAPTURES, workaround_enabled};
use gpu_vmm_core::{DeviceId, Operation, Result};
use std::ptr::null_mut;

/// While this lives, the calling thread is in relaxed capture mode, if this HIP has such modes.
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    before: Option<hipStreamCaptureMode>,
}

impl Driver {
    /// True if a thread can be put into relaxed capture mode.
    pub(crate) fn can_relax(&self) -> bool {
        workaround_enabled(&WAITS_SPOIL_CAPTURES) && self.hip.hipThreadExchangeStreamCaptureMode.is_some()
    }

    /// Puts the calling thread into relaxed capture mode.
    pub(crate) fn relax(&self, operation: Operation) -> Result<Relaxed<'_>> {
        let relaxed = hipStreamCaptureMode::hipStreamCaptureModeRelaxed;
        let before = if self.can_relax() { self.exchange_mode(operation, relaxed)? } else { None };
        Ok(Relaxed { driver: self, before })
    }

    /// Sets the thread's capture mode, and returns what it was.
    fn exchange_mode(
        &self,
        operation: Operation,
        mut mode: hipStreamCaptureMode,
    ) -> Result<Option<hipStreamCaptureMode>> {
        let Some(exchange) = self.hip.hipThreadExchangeStreamCaptureMode else { return Ok(None) };
        // SAFETY: the pointer is good for one mode.
        let code = unsafe { exchange(&raw mut mode) };
        self.check(operation, "hipThreadExchangeStreamCaptureMode", code, || "this thread".to_owned())?;
        Ok(Some(mode))
    }

    /// Waits until a device has finished everything.
    ///
    /// `hipDeviceSynchronize` spoils every capture of the process, whichever device it waits for and whichever mode the
    /// thread is in (quirk `device-wait-spoils-captures`). `hipFree` "performs an implicit hipDeviceSynchronize() call", by
    /// AMD's header, and spoils none in relaxed mode. If no memory is left to free, the device is waited for directly.
    pub(crate) fn synchronize(&self, operation: Operation, device: DeviceId) -> Result<()> {
        let _current = self.on(operation, device)?;
        let frees = workaround_enabled(&DEVICE_WAIT_SPOILS_CAPTURES) && self.can_relax();
        if frees && self.wait_by_freeing(operation)? {
            return Ok(());
        }
        // SAFETY: the function takes nothing and waits.
        let code = unsafe { (self.hip.hipDeviceSynchronize)() };
        self.check(operation, "hipDeviceSynchronize", code, || device.to_string())
    }

    /// Waits for the current device by freeing an allocation. False if that could not be done.
    fn wait_by_freeing(&self, operation: Operation) -> Result<bool> {
        let _relaxed = self.relax(operation)?;
        let mut at = null_mut();
        // SAFETY: HIP writes one address.
        let made = unsafe { (self.hip.hipMalloc)(&raw mut at, 1) };
        if self.answer("hipMalloc", made).is_err() || at.is_null() {
            return Ok(false);
        }
        // SAFETY: allocated above, and freed once.
        let freed = unsafe { (self.hip.hipFree)(at) };
        Ok(self.answer("hipFree", freed).is_ok())
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let restored = self.driver.exchange_mode(Operation::RestoreCaptureMode, before);
            self.driver.log_end(restored.map(drop));
        }
    }
}

/// True for the answer to a question about the null stream while a blocking stream captures.
pub(crate) const fn is_implicit(code: hipError_t) -> bool {
    code.0 == hipError_t::hipErrorStreamCaptureImplicit.0
}
