//! The driver's status codes as errors: its own name and text for a code, and the kind of error.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{CuResult, Functions};
use crate::{CudaBackend, memory_info};
use gpu_vmm_core::{
    AddressRange, Backend, Bytes, Detail, DeviceId, DriverError, Error, ErrorKind, MemoryInfo, Operation,
    Result,
};
use std::borrow::Cow;
use std::ffi::{CStr, c_char};

/// Returns a status code with the driver's name and text for it.
#[cold]
pub(crate) fn answer(functions: &Functions, call: &'static str, result: CuResult) -> DriverError {
    let name = describe(functions.get_error_name, result);
    DriverError {
        call,
        code: i64::from(result.0),
        name: name.unwrap_or(Cow::Borrowed("a code without a name in this driver")),
        description: describe(functions.get_error_string, result).unwrap_or_default(),
    }
}

type Describe = unsafe extern "system" fn(CuResult, *mut *const c_char) -> CuResult;

fn describe(function: Describe, result: CuResult) -> Option<Cow<'static, str>> {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is valid for one pointer; the functions need no started driver and take any number.
    let asked = unsafe { function(result, &raw mut text) };
    if asked != CuResult::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver returns a string of its own that ends in a zero and lives as long as the library, which is never closed.
    Some(unsafe { CStr::from_ptr::<'static>(text) }.to_string_lossy())
}

/// Returns an error for a status code. A lost device and a capture in the way have details of their own.
#[cold]
pub(crate) fn failed(operation: Operation, source: DriverError, context: String) -> Error {
    if CuResult::LOST.iter().any(|lost| i64::from(lost.0) == source.code) {
        Error::new(operation, Detail::DeviceLost { source })
    } else if CuResult::CAPTURING.iter().any(|code| i64::from(code.0) == source.code) {
        Error::new(operation, Detail::Capturing { source: Some(source) })
    } else {
        Error::new(operation, Detail::Driver { source, context })
    }
}

impl CudaBackend {
    /// Checks the result of a call in `operation`; `context` describes the call's arguments.
    #[inline]
    pub(crate) fn check(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            Ok(())
        } else {
            Err(failed(operation, answer(self.functions(), call, result), context()))
        }
    }

    /// Checks the result of a call that takes `size` of memory of `device` or of the host. If memory is short, the error has the
    /// numbers.
    #[inline]
    pub(crate) fn check_memory(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        device: DeviceId,
        size: Bytes,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            return Ok(());
        }
        Err(self.memory_error(operation, call, result, (device, size), format!("{size} of {device}")))
    }

    /// Checks the result of a call on addresses that needs memory of `device`. If memory is short, the error has the numbers.
    #[inline]
    pub(crate) fn check_memory_at(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        device: DeviceId,
        part: AddressRange,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            return Ok(());
        }
        Err(self.memory_error(operation, call, result, (device, part.size), format!("{part}, {device}")))
    }

    #[cold]
    fn memory_error(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        (device, requested): (DeviceId, Bytes),
        context: String,
    ) -> Error {
        let source = answer(self.functions(), call, result);
        if result != CuResult::OUT_OF_MEMORY {
            return failed(operation, source, context);
        }
        if device.is_host() {
            return match memory_info::of_host() {
                Some(MemoryInfo { free, total }) => {
                    Error::new(operation, Detail::OutOfMemory { device, requested, free, total, source })
                }
                None => failed(operation, source, context),
            };
        }
        // Querying free memory needs a context. If the device is too full for one, no memory is free on it.
        let MemoryInfo { free, total } = self.memory_info(device).unwrap_or_else(|_| MemoryInfo {
            free: Bytes::ZERO,
            total: self.devices().get(device.0 as usize).map_or(Bytes::ZERO, |device| device.total_memory),
        });
        Error::new(operation, Detail::OutOfMemory { device, requested, free, total, source })
    }

    /// Records the failure of a call in a destructor. A driver that has shut down, at the end of the process, has already released
    /// everything.
    #[inline]
    pub(crate) fn log(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        context: impl FnOnce() -> String,
    ) {
        if result == CuResult::DEINITIALIZED {
            return;
        }
        if let Err(error) = self.check(operation, call, result, context) {
            self.inner.drop_log.record(error);
        }
    }
}

impl CudaBackend {
    /// Records the failure of a destructor that enters a context. In a forked child the object is the parent's; if the device is
    /// lost or the driver shut down, the object is already gone.
    pub(crate) fn log_end(&self, ended: Result<()>) {
        let Err(error) = ended else { return };
        let is_shut_down = |source: &DriverError| source.code == i64::from(CuResult::DEINITIALIZED.0);
        let is_gone = matches!(error.kind(), ErrorKind::Forked | ErrorKind::DeviceLost);
        if !is_gone && !error.driver_error().is_some_and(is_shut_down) {
            self.inner.drop_log.record(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(code: u32) -> DriverError {
        DriverError { call: "cuMemMap", code: i64::from(code), name: "A_NAME".into(), description: "".into() }
    }

    #[test]
    fn a_dead_device_is_told_from_other_answers() {
        for code in [214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 911] {
            assert!(
                matches!(
                    failed(Operation::Map, source(code), String::new()).detail(),
                    Detail::DeviceLost { .. }
                ),
                "{code}"
            );
        }
        // 720 is a kernel that was not started, 999 is an unknown error, and no driver uses 123456 yet.
        for code in [1, 2, 201, 400, 720, 800, 801, 999, 123_456] {
            let error = failed(Operation::Map, source(code), "4 MiB".into());
            assert!(matches!(error.detail(), Detail::Driver { context, .. } if context == "4 MiB"), "{code}");
            assert_eq!(error.driver_error().map(|source| source.code), Some(i64::from(code)));
        }
    }

    #[test]
    fn a_code_without_a_name_is_shown_as_its_number() {
        unsafe extern "system" fn knows_nothing(_: CuResult, text: *mut *const c_char) -> CuResult {
            // SAFETY: `describe` gives a pointer to one pointer.
            unsafe { *text = std::ptr::null() };
            CuResult(1)
        }
        assert_eq!(describe(knows_nothing, CuResult(123_456)), None);
    }
}
