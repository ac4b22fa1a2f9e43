//! Status codes, and the text of each thread's last error.
//!
//! Uses unsafe code: it exports functions under fixed names.
#![allow(unsafe_code)]

use gpu_vmm::{Error, ErrorKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::Mutex;

/// The result of a call: GPU_VMM_OK or the code of an error.
pub type Status = i32;

/// The call succeeded.
pub const GPU_VMM_OK: Status = 0;
/// An argument is invalid: null, a size of zero, an alignment that is no power of two, a malformed tensor.
pub const GPU_VMM_INVALID_ARGUMENT: Status = 1;
/// The device is out of memory or the pool's budget is exhausted; the text of a pool's error has the pool's statistics.
pub const GPU_VMM_OUT_OF_MEMORY: Status = 2;
/// The process has too little free address space.
pub const GPU_VMM_OUT_OF_ADDRESS_SPACE: Status = 3;
/// No driver library was found, or the driver is too old or does not support the call; the text names the libraries that were looked for.
pub const GPU_VMM_UNSUPPORTED: Status = 4;
/// No live block has the address, or no block has the tag. Freeing a block twice reports this.
pub const GPU_VMM_NOT_FOUND: Status = 5;
/// The memory is suspended.
pub const GPU_VMM_SUSPENDED: Status = 6;
/// A file for contents cannot be created, written or read; the text has its path and the system's error.
pub const GPU_VMM_FILE: Status = 7;
/// The memory is in use: a tensor of it exists, it is held elsewhere, a stream captures, or an observer refuses the change.
pub const GPU_VMM_BUSY: Status = 9;
/// The process is a forked child, in which no driver works.
pub const GPU_VMM_FORKED: Status = 10;
/// The device is lost to this process.
pub const GPU_VMM_DEVICE_LOST: Status = 11;
/// Any other error of the driver; the text has its code and name.
pub const GPU_VMM_DRIVER: Status = 12;
/// A defect of gpu-vmm: the library panicked, and the panic was caught.
pub const GPU_VMM_INTERNAL: Status = 13;

/// A size, offset or address that is not a multiple of the granularity.
pub const GPU_VMM_UNALIGNED: Status = 14;
/// A range that ends outside of the region or block.
pub const GPU_VMM_OUT_OF_RANGE: Status = 15;
/// Memory is mapped there already.
pub const GPU_VMM_ALREADY_MAPPED: Status = 16;
/// No memory is mapped there.
pub const GPU_VMM_NOT_MAPPED: Status = 17;
/// The requested addresses are in use or cannot be reserved.
pub const GPU_VMM_ADDRESS_TAKEN: Status = 18;
/// No device has this number, or the machine has no device.
pub const GPU_VMM_NO_SUCH_DEVICE: Status = 19;
/// The device cannot reach the memory of the other one.
pub const GPU_VMM_PEER_UNREACHABLE: Status = 20;
/// A device or a process lacks the access rights that the call needs.
pub const GPU_VMM_ACCESS_DENIED: Status = 21;
/// An operation failed and its rollback failed as well; that memory can no longer be used.
pub const GPU_VMM_POISONED: Status = 22;
/// The peer process exited, refused or sent invalid data.
pub const GPU_VMM_PEER: Status = 23;
/// The process exits, and its drivers end with it.
pub const GPU_VMM_EXITING: Status = 24;
/// The peer process did not connect, reply or read in time.
pub const GPU_VMM_TIMED_OUT: Status = 25;
/// No process listens at the path, or not yet.
pub const GPU_VMM_NO_LISTENER: Status = 26;
/// The path is a stale socket: the process that listened there is gone.
pub const GPU_VMM_STALE_SOCKET: Status = 27;
/// The process has as many open files as RLIMIT_NOFILE allows.
pub const GPU_VMM_OUT_OF_DESCRIPTORS: Status = 28;

/// An error as the caller sees it: its status code and its text.
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

pub(crate) type CallResult<T = ()> = Result<T, Failure>;

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self::new(of(error), error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// The status of an error: one for each kind.
fn of(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::OutOfMemory => GPU_VMM_OUT_OF_MEMORY,
        ErrorKind::OutOfAddressSpace => GPU_VMM_OUT_OF_ADDRESS_SPACE,
        ErrorKind::OutOfDescriptors => GPU_VMM_OUT_OF_DESCRIPTORS,
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
        ErrorKind::Unsupported => GPU_VMM_UNSUPPORTED,
        ErrorKind::Busy => GPU_VMM_BUSY,
        ErrorKind::Suspended => GPU_VMM_SUSPENDED,
        ErrorKind::Poisoned => GPU_VMM_POISONED,
        ErrorKind::Forked => GPU_VMM_FORKED,
        ErrorKind::Exiting => GPU_VMM_EXITING,
        ErrorKind::DeviceLost => GPU_VMM_DEVICE_LOST,
        ErrorKind::Peer => GPU_VMM_PEER,
        ErrorKind::TimedOut => GPU_VMM_TIMED_OUT,
        ErrorKind::NoListener => GPU_VMM_NO_LISTENER,
        ErrorKind::StaleSocket => GPU_VMM_STALE_SOCKET,
        ErrorKind::File => GPU_VMM_FILE,
        // A kind that was added since then has no code of its own yet.
        _ => GPU_VMM_DRIVER,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The text of the last error of threads whose locals are gone: static objects of C++, and functions of `atexit`, run after those of the
/// main thread.
static LAST_OF_ENDING: Mutex<Option<CString>> = Mutex::new(None);

/// Stores the failure's text for [`gpu_vmm_last_error`] and returns its status.
pub(crate) fn keep(failure: Failure) -> Status {
    let mut text = failure.text.into_owned().into_bytes();
    text.retain(|byte| *byte != 0);
    let mut text = Some(CString::new(text).unwrap_or_default());
    let kept = LAST.try_with(|last| *last.borrow_mut() = text.take().unwrap_or_default());
    // Nothing waits: a thread that had the lock may not exist in a forked child.
    if kept.is_err()
        && let Ok(mut last) = LAST_OF_ENDING.try_lock()
    {
        *last = text;
    }
    failure.status
}

/// Returns the text of this thread's last error: the operation, the numbers, what would have been right, and the driver's own
/// code and name. Empty if no call of this thread has failed. The pointer is valid until this thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_last_error() -> *const c_char {
    let of_ending = |_| {
        let last = LAST_OF_ENDING.try_lock().ok();
        last.and_then(|last| Some(last.as_ref()?.as_ptr())).unwrap_or(c"".as_ptr())
    };
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or_else(of_ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm::{
        Access, Address, BankId, Bytes, Detail, DeviceId, DriverError, Granularity, OffsetRange, Operation,
        Vendor,
    };
    use std::ffi::CStr;

    #[test]
    fn each_kind_of_error_has_its_status() {
        let range = OffsetRange { offset: Bytes(1), length: Bytes(2) };
        let (device, address, none) = (DeviceId(1), Address(4096), String::new);
        let source = || DriverError::system("call", &std::io::Error::other("it failed"));
        let granularity = Granularity::BYTE;
        for (detail, status) in [
            (Detail::ZeroSize, GPU_VMM_INVALID_ARGUMENT),
            (Detail::Unaligned { what: "offset", value: 1, granularity }, GPU_VMM_UNALIGNED),
            (Detail::OutOfRange { range, limit: Bytes(1) }, GPU_VMM_OUT_OF_RANGE),
            (Detail::ExceedsAddressSpace { size: Bytes(1), limit: Bytes(1) }, GPU_VMM_OUT_OF_ADDRESS_SPACE),
            (
                Detail::OutOfAddresses { requested: Bytes(1), advice: none(), source: source() },
                GPU_VMM_OUT_OF_ADDRESS_SPACE,
            ),
            (Detail::AlreadyMapped { range, mapping: range }, GPU_VMM_ALREADY_MAPPED),
            (
                Detail::NotMapped { range, hole: Bytes(1), mapped: Bytes(0), end: Bytes(0) },
                GPU_VMM_NOT_MAPPED,
            ),
            (Detail::AddressTaken { wanted: address, offered: address }, GPU_VMM_ADDRESS_TAKEN),
            (Detail::NoSuchBank { bank: BankId(1), existing: none() }, GPU_VMM_NOT_FOUND),
            (Detail::NoSuchDevice { device, vendor: Vendor::Host, count: 1 }, GPU_VMM_NO_SUCH_DEVICE),
            (Detail::NoDevice { vendor: Vendor::Host, reason: none() }, GPU_VMM_NO_SUCH_DEVICE),
            (Detail::PeerUnreachable { device, owner: device }, GPU_VMM_PEER_UNREACHABLE),
            (
                Detail::NoAccess { device, offset: Bytes(1), have: Access::None, need: Access::Read },
                GPU_VMM_ACCESS_DENIED,
            ),
            (Detail::Unsupported { reason: none() }, GPU_VMM_UNSUPPORTED),
            (Detail::Exported { count: 1 }, GPU_VMM_BUSY),
            (Detail::Suspended { address, reserved: Bytes(1) }, GPU_VMM_SUSPENDED),
            (Detail::Poisoned { range, cause: none() }, GPU_VMM_POISONED),
            (Detail::Forked, GPU_VMM_FORKED),
            (Detail::Exiting, GPU_VMM_EXITING),
            (Detail::DeviceLost { source: source() }, GPU_VMM_DEVICE_LOST),
            (Detail::Mismatch { what: "vendor", theirs: none(), ours: none() }, GPU_VMM_PEER),
            (Detail::Driver { source: source(), context: none() }, GPU_VMM_DRIVER),
            (
                Detail::OutOfMemory {
                    device,
                    requested: Bytes(1),
                    free: Bytes(0),
                    total: Bytes(1),
                    source: source(),
                },
                GPU_VMM_OUT_OF_MEMORY,
            ),
        ] {
            let error = Error::new(Operation::Map, detail);
            let (kind, text) = (error.kind(), error.to_string());
            let failure = Failure::from(error);
            assert_eq!((failure.status, &*failure.text), (status, &*text), "{kind}");
        }
    }

    /// A caller's bytes can be part of the text.
    #[test]
    fn error_with_zero_byte_keeps_text() {
        assert_eq!(keep(Failure::new(GPU_VMM_FILE, "open: a\0b is no file")), GPU_VMM_FILE);
        // SAFETY: a string that lives until the thread's next error.
        assert_eq!(unsafe { CStr::from_ptr(gpu_vmm_last_error()) }, c"open: ab is no file");
    }
}
