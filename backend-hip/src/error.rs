//! HIP's error codes as the core's errors.
#![allow(unsafe_code)] // asks HIP for the texts of its codes

use crate::driver::Driver;
use crate::ffi::hipError_t;
use crate::quirks::{ERROR_STICKS, workaround_enabled};
use gpu_vmm_core::extend::call_failed;
use gpu_vmm_core::{Bytes, Detail, DeviceId, DriverError, Error, ErrorKind, Operation, Result};
use std::borrow::Cow;
use std::ffi::{CStr, c_char};

/// Codes after which the device, or this process's context on it, is unusable.
const LOST: [hipError_t; 6] = [
    hipError_t::hipErrorECCNotCorrectable,
    hipError_t::hipErrorIllegalAddress,
    hipError_t::hipErrorLaunchTimeOut,
    hipError_t::hipErrorContextIsDestroyed,
    hipError_t::hipErrorAssert,
    hipError_t::hipErrorLaunchFailure,
];

/// True for the codes after which a device is unusable.
fn is_lost(code: i64) -> bool {
    LOST.iter().any(|lost| i64::from(lost.0) == code)
}

/// True for the codes of calls that are refused because a stream captures.
fn is_capture(code: i64) -> bool {
    let codes = [
        hipError_t::hipErrorStreamCaptureUnsupported,
        hipError_t::hipErrorStreamCaptureInvalidated,
        hipError_t::hipErrorStreamCaptureImplicit,
    ];
    codes.iter().any(|capture| i64::from(capture.0) == code)
}

/// True for `hipErrorInvalidValue`, which HIP returns for arguments that it does not know.
pub(crate) fn is_invalid_value(error: &Error) -> bool {
    let invalid = i64::from(hipError_t::hipErrorInvalidValue.0);
    error.driver_error().is_some_and(|source| source.code == invalid)
}

/// Returns HIP's text for a code; empty if the pointer is null.
fn text(pointer: *const c_char) -> Cow<'static, str> {
    if pointer.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: not null, and HIP's texts are constants that end with a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_string_lossy()
}

impl Driver {
    /// Turns the result of a HIP call into a `Result`.
    ///
    /// This error reports the failure, so the function clears it in HIP. Otherwise `hipGetLastError` would return it to
    /// other code that checks a call of its own, since 7.0 even after calls that succeeded.
    pub(crate) fn answer(&self, call: &'static str, code: hipError_t) -> Result<(), DriverError> {
        if code == hipError_t::hipSuccess {
            return Ok(());
        }
        if workaround_enabled(&ERROR_STICKS) {
            // SAFETY: the function takes no arguments and returns a number.
            unsafe { (self.hip.hipGetLastError)() };
        }
        // SAFETY: both functions take a number and return a constant text.
        let (name, description) =
            unsafe { (text((self.hip.hipGetErrorName)(code)), text((self.hip.hipGetErrorString)(code))) };
        Err(DriverError { call, code: i64::from(code.0), name, description })
    }

    /// Turns the result of a HIP call into an error of an operation, with context about its arguments.
    pub(crate) fn check(
        &self,
        operation: Operation,
        call: &'static str,
        code: hipError_t,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        self.answer(call, code).map_err(|source| {
            if code == hipError_t::hipErrorDeinitialized {
                Error::new(operation, Detail::Exiting)
            } else if is_lost(source.code) {
                Error::new(operation, Detail::DeviceLost { source })
            } else if is_capture(source.code) {
                Error::new(operation, Detail::Capturing { source: Some(source) })
            } else if code == hipError_t::hipErrorOutOfMemory {
                // Without descriptors as well: releasing memory releases some.
                Error::new(operation, Detail::Driver { source, context: context() })
            } else {
                call_failed(operation, source, context())
            }
        })
    }

    /// Logs the error of a destructor. Ignores errors in a forked child, where the object belongs to the parent, and of
    /// a lost device, with which the object has died. The log itself ignores errors while the process exits.
    pub(crate) fn log_end(&self, ended: Result<()>) {
        match ended {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Forked | ErrorKind::DeviceLost) => {}
            Err(error) => self.drop_log.record(error),
        }
    }

    /// Like [`check`](Self::check), for a call that allocates memory.
    pub(crate) fn check_memory(
        &self,
        operation: Operation,
        call: &'static str,
        code: hipError_t,
        device: DeviceId,
        requested: Bytes,
    ) -> Result<()> {
        let context = || format!("{requested} on {device}");
        self.check_short(operation, call, code, context, |source, context| {
            let detail = match self.memory_info(device) {
                Ok(info) => {
                    Detail::OutOfMemory { device, requested, free: info.free, total: info.total, source }
                }
                Err(unknown) => {
                    let context = format!("{context}; the free memory is unknown: {unknown}");
                    Detail::Driver { source, context }
                }
            };
            Error::new(operation, detail)
        })
    }

    /// Like [`check`](Self::check). If HIP says that memory is short, `short` makes the error of HIP's answer and the context.
    pub(crate) fn check_short(
        &self,
        operation: Operation,
        call: &'static str,
        code: hipError_t,
        context: impl FnOnce() -> String,
        short: impl FnOnce(DriverError, String) -> Error,
    ) -> Result<()> {
        self.check(operation, call, code, context).map_err(|error| match error.into_detail() {
            Detail::Driver { source, context } if code == hipError_t::hipErrorOutOfMemory => {
                short(source, context)
            }
            other => Error::new(operation, other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_devices_differ_from_wrong_arguments() {
        assert!([214, 700, 702, 709, 710, 719].into_iter().all(is_lost));
        assert!(![1, 2, 720, 900, 999, i64::MAX].into_iter().any(is_lost));
        // Of ROCm 10.0: one stream or one call is wrong.
        assert!(![914, 915, 916, 1054, 1055].into_iter().any(|code| is_lost(code) || is_capture(code)));
    }

    #[test]
    fn capture_answers_are_recognized() {
        assert!([900, 901, 906].into_iter().all(is_capture));
        assert!(![1, 719, 899, 902, 907, 999].into_iter().any(is_capture));
    }

    #[test]
    fn a_missing_text_is_empty() {
        assert_eq!(text(std::ptr::null()), "");
        assert_eq!(text(c"hipErrorUnknown".as_ptr()), "hipErrorUnknown");
    }
}
