//! File descriptors that HIP and ROCr return.
#![allow(unsafe_code)] // takes ownership of raw descriptors

use crate::driver::Driver;
use crate::quirks::{EXPORT_IS_KEPT, workaround_enabled};
use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// Exports memory by a driver's call, and returns a descriptor that only the caller owns. It is closed on exec, and its
/// number is above the standard streams.
///
/// # Safety
///
/// `export` makes the driver's call `call` for memory that is alive until this function returns, and returns the
/// descriptor that the call wrote. No other code owns that descriptor, except for the driver.
pub(crate) unsafe fn exported(
    driver: &Driver,
    operation: Operation,
    call: &'static str,
    export: impl Fn() -> Result<c_int>,
) -> Result<OwnedFd> {
    let fd = export()?;
    if fd < 0 {
        let what = format!("{call} returned success and the descriptor {fd}");
        return Err(Error::new(operation, Detail::DriverContractViolated { what }));
    }
    // SAFETY: the driver has just returned the descriptor, which is not closed before the end of `exported`.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    // A duplicate, because the driver's own may lack close-on-exec. Its number is above the standard streams.
    let duplicate = borrowed.try_clone_to_owned().map_err(|error| system(operation, "dup", &error));
    // SAFETY: as the caller promises.
    if !unsafe { is_kept(driver, fd, export) } {
        // SAFETY: the driver made a new descriptor for this call, which the caller of the driver must close. If it was
        // not open, an owned descriptor would end the process.
        unsafe { libc::close(fd) };
    }
    duplicate
}

/// Returns whether the driver keeps the descriptors that it returns ([`EXPORT_IS_KEPT`]): then a second export returns the
/// same number, although the first one is open. The first export of a process makes that second call.
///
/// # Safety
///
/// As for [`exported`]; `first` is the result of the first call and open.
unsafe fn is_kept(driver: &Driver, first: c_int, export: impl Fn() -> Result<c_int>) -> bool {
    if !workaround_enabled(&EXPORT_IS_KEPT) {
        return false;
    }
    if let Some(known) = driver.exports_are_kept.get() {
        return *known;
    }
    let Ok(second) = export() else { return driver.quirks.export_is_kept };
    if second >= 0 && second != first {
        // SAFETY: a new descriptor of this function's own call.
        drop(unsafe { OwnedFd::from_raw_fd(second) });
    }
    *driver.exports_are_kept.get_or_init(|| second == first)
}

/// Returns the error of a system call on a descriptor.
pub(crate) fn system(operation: Operation, call: &'static str, error: &io::Error) -> Error {
    let source = DriverError::system(call, error);
    Error::driver(operation, source, "a file descriptor of exported memory")
}
