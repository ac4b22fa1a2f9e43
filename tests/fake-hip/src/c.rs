//! HIP's types and codes, and the frame of every function: the lock, the last error, and the ways in which HIP ends.

use crate::state::{STATE, State};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt::Arguments;
use std::mem::offset_of;
use std::sync::PoisonError;

/// `hipError_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HipError(pub(crate) c_int);

impl HipError {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const UNKNOWN: Self = Self(999);
}

/// What a function of HIP's answers.
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

/// `hipMemAllocationTypePinned`; `hipMemHandleTypePosixFileDescriptor`.
pub(crate) const PINNED: c_int = 1;
pub(crate) const DESCRIPTOR: c_int = 1;

/// `hipPointerAttribute_t`.
#[repr(C)]
pub(crate) struct PointerAttributes {
    pub(crate) kind: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: *mut c_void,
    pub(crate) host_pointer: *mut c_void,
    pub(crate) is_managed: c_int,
    pub(crate) flags: c_uint,
}

// As AMD's headers have them since 5.3.
const _: () = {
    assert!(size_of::<AccessDescription>() == 12 && offset_of!(AccessDescription, flags) == 8);
    assert!(size_of::<Properties>() == 32 && offset_of!(Properties, location) == 8);
    assert!(size_of::<PointerAttributes>() == 32 && offset_of!(PointerAttributes, device_pointer) == 8);
};

thread_local! {
    static LAST_ERROR: Cell<HipError> = const { Cell::new(HipError::SUCCESS) };
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's device.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

pub(crate) fn set_current(device: usize) {
    CURRENT.set(device);
}

pub(crate) fn take_last_error() -> HipError {
    LAST_ERROR.replace(HipError::SUCCESS)
}

/// Does what a function of HIP's does, on the tables, and remembers its failure as the version does.
pub(crate) fn call(work: impl FnOnce(&mut State) -> Answer) -> HipError {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let code = work(&mut state).err().unwrap_or(HipError::SUCCESS);
    if code != HipError::SUCCESS || !state.bucket.errors_stick {
        LAST_ERROR.set(code);
    }
    code
}

/// `hipErrorInvalidValue` unless the condition holds.
pub(crate) fn require(condition: bool) -> Answer {
    if condition { Ok(()) } else { Err(HipError::INVALID_VALUE) }
}

/// Ends the process where it was set up wrongly.
pub(crate) fn stop(what: Arguments<'_>) -> ! {
    eprintln!("fake-hip: {what}");
    std::process::abort()
}

/// Ends the process where HIP crashes.
pub(crate) fn crash(rule: Arguments<'_>) -> ! {
    eprintln!("fake-hip: HIP crashes here: {rule}");
    std::process::abort()
}

/// Ends the process where a GPU faults, as ROCr does.
pub(crate) fn fault(device: usize, address: usize, reason: &str) -> ! {
    eprintln!(
        "fake-hip: Memory access fault by GPU node-{device} on address {address:#x}. Reason: {reason}."
    );
    std::process::abort()
}
