//! Relaxed capture mode, in which calls do not invalidate captures, and waiting for a device during a capture.
//!
//! While a stream captures, HIP refuses some calls on other streams, and the attempt alone invalidates the capture:
//! `hipStreamEndCapture` then returns `hipErrorStreamCaptureInvalidated`. The table shows the behaviour of AMD's
//! runtime 6.4.3 and 7.2.4, which agree unless a line names a version (`tests/hsa-sim/checks/capture.c` prints the
//! whole table):
//!
//! | call | in the capturing thread | in another thread | in a thread in relaxed mode |
//! |---|---|---|---|
//! | `hipEventQuery`, 6.4.3 | harmless | harmless | harmless |
//! | `hipEventQuery`, 7.2.4 | invalidates global and thread-local captures | invalidates global captures | harmless |
//! | `hipEventQuery` and `hipEventSynchronize` of an event recorded on the stream earlier, 6.4.3 | invalidate every capture | invalidate every capture | invalidate every capture |
//! | `hipStreamWaitEvent` of such an event, by another stream | fails, harmless | fails, harmless | fails, harmless |
//! | `hipEventSynchronize`, `hipStreamSynchronize`, `hipStreamQuery`, `hipMalloc`, `hipFree`, `hipHostMalloc`, `hipHostFree` | invalidates global and thread-local captures | invalidates global captures | harmless |
//! | `hipStreamSynchronize(null)`, `hipStreamQuery(null)`, `hipEventRecord`, `hipStreamWaitEvent`, creation and destruction of streams and events, virtual memory | harmless | harmless | harmless |
//! | `hipMemcpyAsync`, `hipMemsetAsync` on another stream, also of memory that is not page-locked | harmless | harmless | harmless |
//! | `hipDeviceSynchronize` of any device; `hipMemcpy`, `hipMemset` | invalidates every capture | invalidates every capture | invalidates every capture |
//! | `hipStreamIsCapturing(null)` | harmless; `hipErrorStreamCaptureImplicit` while a blocking stream captures | the same | the same |
//!
//! HIP reports that a non-blocking stream captures only if the call names that stream.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{hipError_t, hipStreamCaptureMode};
use crate::quirks::{DEVICE_WAIT_SPOILS_CAPTURES, WAITS_SPOIL_CAPTURES, workaround_enabled};
use gpu_vmm_core::{DeviceId, Operation, Result};
use std::ptr::null_mut;

/// A guard: while it lives, the calling thread is in relaxed capture mode, if this HIP has capture modes.
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

    /// Sets the thread's capture mode and returns the previous one.
    fn exchange_mode(
        &self,
        operation: Operation,
        mut mode: hipStreamCaptureMode,
    ) -> Result<Option<hipStreamCaptureMode>> {
        let Some(exchange) = self.hip.hipThreadExchangeStreamCaptureMode else { return Ok(None) };
        // SAFETY: the pointer is valid for one mode.
        let code = unsafe { exchange(&raw mut mode) };
        self.check(operation, "hipThreadExchangeStreamCaptureMode", code, || "this thread".to_owned())?;
        Ok(Some(mode))
    }

    /// Waits until a device has finished all work.
    ///
    /// `hipDeviceSynchronize` invalidates every capture of the process, for any device and in any mode (quirk
    /// `device-wait-spoils-captures`). `hipFree` "performs an implicit hipDeviceSynchronize() call", by AMD's header,
    /// and invalidates none in relaxed mode. If no memory can be allocated for that, `hipDeviceSynchronize` is called.
    pub(crate) fn synchronize(&self, operation: Operation, device: DeviceId) -> Result<()> {
        let _current = self.on(operation, device)?;
        if self.waits_by_freeing() && self.wait_by_freeing(operation)? {
            return Ok(());
        }
        // SAFETY: the function takes no arguments and waits.
        let code = unsafe { (self.hip.hipDeviceSynchronize)() };
        self.check(operation, "hipDeviceSynchronize", code, || device.to_string())
    }

    /// True if a wait for a device invalidates no capture, as long as memory is left for an allocation.
    pub(crate) fn waits_by_freeing(&self) -> bool {
        workaround_enabled(&DEVICE_WAIT_SPOILS_CAPTURES) && self.can_relax()
    }

    /// Waits for the current device by freeing an allocation. Returns false if the allocation or the free failed.
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

/// True for the code that a query of the null stream returns while a blocking stream captures.
pub(crate) const fn is_implicit(code: hipError_t) -> bool {
    code.0 == hipError_t::hipErrorStreamCaptureImplicit.0
}
