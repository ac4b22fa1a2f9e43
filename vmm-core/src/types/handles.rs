//! Windows handles by number, as drivers and other processes pass them.
#![allow(unsafe_code)] // calls into Windows

use super::{Error, Result};
use crate::types::{Detail, Operation};
use std::io;
use std::os::windows::io::{FromRawHandle, OwnedHandle, RawHandle};
use windows_sys::Win32::Foundation::{HANDLE, HANDLE_FLAG_INHERIT, SetHandleInformation};

/// Takes ownership of a handle that a driver created for this process. For authors of backends.
///
/// The number is checked first: a driver may return the graphics kernel's own number of the memory (`D3DKMT_HANDLE`), which is
/// not a handle that can be closed or duplicated. Child processes do not inherit the returned handle.
///
/// # Safety
///
/// If the number names a handle, the driver has just created that handle, and the caller owns it.
///
/// # Errors
///
/// [`Detail::DriverContractViolated`] if the number names no handle.
pub unsafe fn adopt(operation: Operation, made: RawHandle) -> Result<OwnedHandle> {
    // SAFETY: the caller owns the handle, if it is one.
    unsafe { own(made.addr() as u64) }.map_err(|why| {
        let what = format!("it exported memory and returned an unusable handle: {why}");
        Error::new(operation, Detail::DriverContractViolated { what })
    })
}

/// Takes ownership of the handle of this process with this number. Child processes do not inherit it.
///
/// # Safety
///
/// If the number names a handle, the caller owns that handle.
///
/// # Errors
///
/// The reason why the number names no handle.
pub unsafe fn own(value: u64) -> Result<OwnedHandle, String> {
    let handle = number(value)?;
    // SAFETY: for a number that names no handle, the call only returns an error.
    match unsafe { SetHandleInformation(handle, HANDLE_FLAG_INHERIT, 0) } {
        0 => Err(format!("{value:#x} is not a handle of this process: {}", io::Error::last_os_error())),
        // SAFETY: it is a handle, so the caller owns it.
        _ => Ok(unsafe { OwnedHandle::from_raw_handle(handle) }),
    }
}

/// Converts a number to a handle of any process. Handles have 31 bits. Negative numbers are pseudo-handles, which mean the
/// process or thread that uses them and must not be passed on.
///
/// # Errors
///
/// A message that the number names no handle.
pub fn number(value: u64) -> Result<HANDLE, String> {
    match i32::try_from(value) {
        Ok(1..) => Ok(value as usize as HANDLE),
        _ => Err(format!("{value:#x} is not the number of a handle")),
    }
}
