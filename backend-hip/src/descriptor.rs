//! File descriptors that HIP and ROCr give.
#![allow(unsafe_code)] // takes over what C gives

use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use std::ffi::c_int;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes over a descriptor that a driver gave.
///
/// # Safety
///
/// `fd` was written by this call, which succeeded, so that no other code owns it.
pub(crate) unsafe fn taken(operation: Operation, call: &'static str, fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        let what = format!("{call} answered success and the descriptor {fd}");
        return Err(Error::new(operation, Detail::DriverContractViolated { what }));
    }
    // SAFETY: each call gives a new descriptor, which is the caller's to close.
    let exported = unsafe { OwnedFd::from_raw_fd(fd) };
    // A copy, since no document says whether the driver's own is closed on exec. It is above the standard streams.
    exported.try_clone().map_err(|error| system(operation, "dup", &error))
}

/// An error of the system about a descriptor.
pub(crate) fn system(operation: Operation, call: &'static str, error: &io::Error) -> Error {
    let source = DriverError::system(call, error);
    Error::new(
        operation,
        Detail::Driver { source, context: "a file descriptor of exported memory".to_owned() },
    )
}
