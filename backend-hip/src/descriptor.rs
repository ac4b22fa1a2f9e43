//! File descriptors that HIP and ROCr return.
#![allow(unsafe_code)] // takes ownership of raw descriptors

use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use std::ffi::c_int;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes ownership of a descriptor that a driver returned.
///
/// # Safety
///
/// `fd` was written by this call, which succeeded, and no other code owns it.
pub(crate) unsafe fn taken(operation: Operation, call: &'static str, fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        let what = format!("{call} returned success and the descriptor {fd}");
        return Err(Error::new(operation, Detail::DriverContractViolated { what }));
    }
    // SAFETY: each call returns a new descriptor, which the caller must close.
    let exported = unsafe { OwnedFd::from_raw_fd(fd) };
    // A duplicate, because the driver's own may lack close-on-exec. Its number is above the standard streams.
    exported.try_clone().map_err(|error| system(operation, "dup", &error))
}

/// Returns the error of a system call on a descriptor.
pub(crate) fn system(operation: Operation, call: &'static str, error: &io::Error) -> Error {
    let source = DriverError::system(call, error);
    Error::new(
        operation,
        Detail::Driver { source, context: "a file descriptor of exported memory".to_owned() },
    )
}
