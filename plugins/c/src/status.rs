//! Numbers for what went wrong, and the text of each thread's last error.
//!
//! Unsafe, since it exports functions by their names.
#![allow(unsafe_code)]

use gpu_vmm::{Error, ErrorKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// How a call ended.
pub type Status = i32;

/// All went well.
pub const GPU_VMM_OK: Status = 0;
/// What was given cannot be: null, a size of zero, an alignment that is no power of two, a bad tensor.
pub const GPU_VMM_INVALID_ARGUMENT: Status = 1;
/// There is too little memory; the text has the pool's statistics.
pub const GPU_VMM_OUT_OF_MEMORY: Status = 2;
/// There are too few addresses.
pub const GPU_VMM_OUT_OF_ADDRESSES: Status = 3;
/// No library, or a driver that is too old or cannot do this; the text says what was looked for.
pub const GPU_VMM_UNAVAILABLE: Status = 4;
/// No block has the address, or it was freed already; or nothing has this tag.
pub const GPU_VMM_NOT_FOUND: Status = 5;
/// The memory is suspended.
pub const GPU_VMM_SUSPENDED: Status = 6;
/// A file for contents cannot be made, written or read; the text has its path and what the system answered.
pub const GPU_VMM_FILE: Status = 7;
/// The memory is in use: a region cannot shrink or be suspended while a tensor of it exists.
pub const GPU_VMM_BUSY: Status = 9;
/// The process was forked: no driver works in the child.
pub const GPU_VMM_FORKED: Status = 10;
/// The device is lost to this process.
pub const GPU_VMM_DEVICE_LOST: Status = 11;
/// Another answer of the driver; the text has its code and name.
pub const GPU_VMM_DRIVER: Status = 12;
/// A defect of the library was stopped at its border.
pub const GPU_VMM_INTERNAL: Status = 13;

/// A size, offset or address that is not a multiple of the granularity.
pub const GPU_VMM_UNALIGNED: Status = 14;
/// A part that ends outside of the region or the vector.
pub const GPU_VMM_OUT_OF_RANGE: Status = 15;
/// Memory is mapped there already.
pub const GPU_VMM_ALREADY_MAPPED: Status = 16;
/// No memory is mapped there.
pub const GPU_VMM_NOT_MAPPED: Status = 17;
/// The addresses are in use or cannot be had.
pub const GPU_VMM_ADDRESS_TAKEN: Status = 18;
/// No device has this number, or there is no device.
pub const GPU_VMM_NO_SUCH_DEVICE: Status = 19;
/// The device cannot reach the memory of the other one.
pub const GPU_VMM_PEER_UNREACHABLE: Status = 20;
/// A device or a process does not have the right that the call needs.
pub const GPU_VMM_ACCESS_DENIED: Status = 21;
/// An operation failed and so did its rollback; the part cannot be used any more.
pub const GPU_VMM_POISONED: Status = 22;
/// Another process is gone, refused, came late, or sent something that cannot be.
pub const GPU_VMM_PEER: Status = 23;

/// What went wrong, for the caller.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(GPU_VMM_INVALID_ARGUMENT, text)
    }
}

pub(crate) type Answer<T = ()> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(of(&error), error.to_string())
    }
}

/// The status of an error: one for each kind.
fn of(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::OutOfMemory => GPU_VMM_OUT_OF_MEMORY,
        ErrorKind::OutOfAddressSpace => GPU_VMM_OUT_OF_ADDRESSES,
        ErrorKind::InvalidArgument => GPU_VMM_INVALID_ARGUMENT,
        ErrorKind::Unaligned => GPU_VMM_UNALIGNED,
        ErrorKind::OutOfRange => GPU_VMM_OUT_OF_RANGE,
        ErrorKind::AlreadyMapped => GPU_VMM_ALREADY_MAPPED,
        ErrorKind::NotMapped => GPU_VMM_NOT_MAPPED,
        ErrorKind::AddressTaken => GPU_VMM_ADDRESS_TAKEN,
        ErrorKind::NotFound => GPU_VMM_NOT_FOUND,
        ErrorKind::NoSuchDevice => GPU_VMM_NO_SUCH_DEVICE,
        ErrorKind::PeerUnreachable => GPU_VMM_PEER_UNREACHABLE,
        ErrorKind::AccessDenied => GPU_VMM_ACCESS_DENIED,
        ErrorKind::Unsupported => GPU_VMM_UNAVAILABLE,
        ErrorKind::Busy => GPU_VMM_BUSY,
        ErrorKind::Suspended => GPU_VMM_SUSPENDED,
        ErrorKind::Poisoned => GPU_VMM_POISONED,
        ErrorKind::Forked => GPU_VMM_FORKED,
        ErrorKind::DeviceLost => GPU_VMM_DEVICE_LOST,
        ErrorKind::Peer => GPU_VMM_PEER,
        ErrorKind::File => GPU_VMM_FILE,
        // Kinds that are new have no number yet.
        _ => GPU_VMM_DRIVER,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps a failure for [`gpu_vmm_last_error`], and gives its status.
pub(crate) fn keep(failure: Failure) -> Status {
    let mut text = failure.text.into_owned().into_bytes();
    text.retain(|byte| *byte != 0);
    // Where the thread is ending nobody asks any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    failure.status
}

/// What went wrong in this thread's last call that failed: what was to be done, the numbers, what would have been right, the
/// driver's own code and name. Empty where none has failed. Valid until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
