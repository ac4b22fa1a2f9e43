//! The result codes of the driver's functions, with their names and texts.

use std::ffi::CStr;

/// `CUresult`: a number, since settings can make a call return any.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Code(pub(crate) u32);

/// The result of a driver function.
pub(crate) type Answer<T = ()> = Result<T, Code>;

const fn c(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

macro_rules! codes {
    ($($name:ident $number:literal $text:literal)*) => {
        // Some are only returned if `FAKE_CUDA_FAIL` says so.
        #[allow(dead_code)]
        impl Code { $(pub(crate) const $name: Self = Self($number);)* }

        const KNOWN: &[(u32, &CStr, &CStr)] = &[
            (0, c"CUDA_SUCCESS", c"no error"),
            $(($number, c(concat!("CUDA_ERROR_", stringify!($name), "\0")), c(concat!($text, "\0")))),*
        ];
    };
}

codes! {
    INVALID_VALUE 1 "invalid argument"
    OUT_OF_MEMORY 2 "out of memory"
    NOT_INITIALIZED 3 "initialization error"
    DEINITIALIZED 4 "driver shutting down"
    STUB_LIBRARY 34 "CUDA driver is a stub library"
    DEVICE_UNAVAILABLE 46 "CUDA-capable device(s) is/are busy or unavailable"
    MULTICAST_RESOURCE_FULL 47 "no room for another multicast object"
    NO_DEVICE 100 "no CUDA-capable device is detected"
    INVALID_DEVICE 101 "invalid device ordinal"
    INVALID_IMAGE 200 "device kernel image is invalid"
    INVALID_CONTEXT 201 "invalid device context"
    NO_BINARY_FOR_GPU 209 "no kernel image is available for execution on the device"
    ECC_UNCORRECTABLE 214 "uncorrectable ECC error encountered"
    INVALID_PTX 218 "a PTX JIT compilation failed"
    NVLINK_UNCORRECTABLE 220 "uncorrectable NVLink error detected during the execution"
    CONTAINED 226 "Invalid access of peer GPU memory over nvlink or a hardware error"
    INVALID_HANDLE 400 "invalid resource handle"
    ILLEGAL_STATE 401 "the operation cannot be performed in the present state"
    NOT_FOUND 500 "named symbol not found"
    NOT_READY 600 "device not ready"
    ILLEGAL_ADDRESS 700 "an illegal memory access was encountered"
    LAUNCH_TIMEOUT 702 "the launch timed out and was terminated"
    CONTEXT_IS_DESTROYED 709 "context is destroyed"
    ASSERT 710 "device-side assert triggered"
    HOST_MEMORY_ALREADY_REGISTERED 712 "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED 713 "pointer does not correspond to a registered memory region"
    HARDWARE_STACK_ERROR 714 "hardware stack error"
    ILLEGAL_INSTRUCTION 715 "an illegal instruction was encountered"
    MISALIGNED_ADDRESS 716 "misaligned address"
    INVALID_ADDRESS_SPACE 717 "operation not supported on global/shared address space"
    INVALID_PC 718 "invalid program counter"
    LAUNCH_FAILED 719 "unspecified launch failure"
    NOT_PERMITTED 800 "operation not permitted"
    NOT_SUPPORTED 801 "operation not supported"
    SYSTEM_NOT_READY 802 "system not yet initialized"
    SYSTEM_DRIVER_MISMATCH 803 "system has unsupported display driver / cuda driver combination"
    COMPAT_NOT_SUPPORTED_ON_DEVICE 804 "forward compatibility was attempted on non supported HW"
    STREAM_CAPTURE_UNSUPPORTED 900 "operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED 901 "operation failed due to a previous error during capture"
    STREAM_CAPTURE_UNMATCHED 903 "capture was not ended in the same stream as it began"
    STREAM_CAPTURE_IMPLICIT 906 "operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT 907 "operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD 908 "attempt to terminate a thread-local capture sequence from another thread"
    EXTERNAL_DEVICE 911 "external device failed"
    UNKNOWN 999 "unknown error"
}

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);

    /// Returns the name and the text of a known code.
    pub(crate) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
        KNOWN.iter().find(|known| known.0 == self.0).map(|(_, name, text)| (*name, *text))
    }
}
