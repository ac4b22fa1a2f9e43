//! The driver's status codes as errors: its own name and text for a code, and the detail of the error.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{CuResult, Functions};
use gpu_vmm_core::extend::call_failed;
use gpu_vmm_core::{Detail, DriverError, Error, Operation};
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
    let result_code = unsafe { function(result, &raw mut text) };
    if result_code != CuResult::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver returns a string of its own that ends in a zero and lives as long as the library, which is never closed.
    Some(unsafe { CStr::from_ptr::<'static>(text) }.to_string_lossy())
}

/// Returns an error for a status code. A driver that shuts down, a lost device and a capture in the way have details of their own.
#[cold]
pub(crate) fn failed(operation: Operation, source: DriverError, context: String) -> Error {
    if source.code == i64::from(CuResult::DEINITIALIZED.0) {
        Error::new(operation, Detail::Exiting)
    } else if CuResult::LOST.iter().any(|lost| i64::from(lost.0) == source.code) {
        Error::new(operation, Detail::DeviceLost { source })
    } else if CuResult::CAPTURING.iter().any(|code| i64::from(code.0) == source.code) {
        Error::new(operation, Detail::Capturing { source: Some(source) })
    } else {
        call_failed(operation, source, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(code: u32) -> DriverError {
        DriverError { call: "cuMemMap", code: i64::from(code), name: "A_NAME".into(), description: "".into() }
    }

    #[test]
    fn dead_device_answers_are_recognized() {
        for code in [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911] {
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
    fn driver_that_shuts_down_has_own_detail() {
        let error = failed(Operation::Map, source(4), String::new());
        assert!(matches!(error.detail(), Detail::Exiting), "{error}");
    }

    #[test]
    fn capture_answers_are_recognized() {
        for (code, captures) in
            [(899, false), (900, true), (901, true), (902, false), (906, true), (907, false)]
        {
            let error = failed(Operation::Map, source(code), String::new());
            assert_eq!(matches!(error.detail(), Detail::Capturing { .. }), captures, "{code}");
            assert_eq!(error.driver_error().map(|source| source.code), Some(i64::from(code)));
        }
    }

    #[test]
    fn unnamed_code_is_shown_as_number() {
        unsafe extern "system" fn knows_nothing(_: CuResult, text: *mut *const c_char) -> CuResult {
            // SAFETY: `describe` gives a pointer to one pointer.
            unsafe { *text = std::ptr::null() };
            CuResult(1)
        }
        assert_eq!(describe(knows_nothing, CuResult(123_456)), None);
    }
}
