//! HIP's types and codes, and the end of a process.
//!
//! Handles, streams and addresses of devices are plain numbers here: no caller may dereference them.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt::Arguments;
use std::mem::{MaybeUninit, offset_of};

/// `hipError_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HipError(c_int);

impl HipError {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const UNKNOWN: Self = Self(999);

    pub(crate) const fn from_code(code: c_int) -> Self {
        Self(code)
    }
}

/// The result of a HIP function.
pub(crate) type Answer<T = ()> = Result<T, HipError>;

/// `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `hipMemLocationTypeDevice`, `hipMemLocationTypeHost`, `hipMemLocationTypeHostNuma`.
pub(crate) const DEVICE: c_int = 1;
pub(crate) const HOST: c_int = 2;
pub(crate) const HOST_NODE: c_int = 3;

/// `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

/// `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: c_int,
    pub(crate) handle_kind: c_int,
    pub(crate) location: Location,
    metadata: *mut c_void,
    flags: u64,
}

impl Properties {
    /// Describes memory without flags.
    pub(crate) const fn new(kind: c_int, handle_kind: c_int, location: Location) -> Self {
        Self { kind, handle_kind, location, metadata: std::ptr::null_mut(), flags: 0 }
    }
}

/// `hipPointerAttribute_t`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PointerAttributes {
    pub(crate) kind: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: usize,
    pub(crate) host_pointer: usize,
    pub(crate) is_managed: c_int,
    pub(crate) flags: c_uint,
}

// As AMD's headers have them since 5.3.
const _: () = {
    assert!(size_of::<AccessDescription>() == 12 && offset_of!(AccessDescription, flags) == 8);
    assert!(size_of::<Properties>() == 32 && offset_of!(Properties, location) == 8);
    assert!(size_of::<PointerAttributes>() == 32 && offset_of!(PointerAttributes, device_pointer) == 8);
};

/// An output parameter.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result to an output parameter.
pub(crate) fn give<T>(to: Out<'_, T>, value: T) -> Answer {
    let Some(to) = to else { stop(format_args!("an output pointer is null")) };
    to.write(value);
    Ok(())
}

/// Ends the process with a message.
pub(crate) fn stop(why: Arguments<'_>) -> ! {
    eprintln!("fake-hip: {why}");
    std::process::abort()
}

/// Ends the process if a call breaks a rule that gpu-vmm-hip must keep on every version.
macro_rules! rule {
    ($holds:expr, $($broken:tt)+) => {
        if !$holds {
            $crate::c::stop(format_args!($($broken)+));
        }
    };
}

/// Ends the process with the message of a GPU fault, as ROCr does.
pub(crate) fn fault(device: usize, address: usize, reason: &str) -> ! {
    stop(format_args!("Memory access fault by GPU node-{device} on address {address:#x}. Reason: {reason}."))
}
