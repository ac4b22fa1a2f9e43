//! Handles of Windows by their numbers, as drivers and other processes give them.
#![allow(unsafe_code)] // calls into Windows

use super::{Error, Result};
use crate::types::{Detail, Operation};
use std::io;
use std::os::windows::io::{FromRawHandle, OwnedHandle, RawHandle};
use windows_sys::Win32::Foundation::{HANDLE, HANDLE_FLAG_INHERIT, SetHandleInformation};

/// Takes over a handle that a driver says it has made for this process. For authors of a backend.
///
/// A driver may give the graphics kernel's own number of the memory (`D3DKMT_HANDLE`), which is no handle that could be
/// closed or duplicated; so it is looked at first. Child processes do not inherit what comes back.
///
/// # Safety
///
/// If the number is a handle's, then that of one which the driver has made just now, and which is the caller's to close.
///
/// # Errors
///
/// [`Detail::DriverContractViolated`] for a number that is no handle's.
pub unsafe fn adopt(operation: Operation, made: RawHandle) -> Result<OwnedHandle> {
    // SAFETY: the caller's promise.
    unsafe { own(made.addr() as u64) }.map_err(|why| {
        let what = format!("it exported memory, and what it gave cannot be used: {why}");
        Error::new(operation, Detail::DriverContractViolated { what })
    })
}

/// A handle of this process by its number, or why it is none. Child processes do not inherit it.
///
/// # Safety
///
/// If it is a handle, it is the caller's.
///
/// # Errors
///
/// Why it is none.
pub unsafe fn own(value: u64) -> Result<OwnedHandle, String> {
    let handle = number(value)?;
    // SAFETY: for a number that is no handle's this is an error and nothing else.
    match unsafe { SetHandleInformation(handle, HANDLE_FLAG_INHERIT, 0) } {
        0 => Err(format!("{value:#x} is no handle of this process: {}", io::Error::last_os_error())),
        // SAFETY: it is a handle, and so the caller's.
        _ => Ok(unsafe { OwnedHandle::from_raw_handle(handle) }),
    }
}

/// A number as a handle of some table. Handles have 31 bits; the negative ones stand for the process or the thread that
/// uses them, and are not to be passed on.
///
/// # Errors
///
/// Why it is none.
pub fn number(value: u64) -> Result<HANDLE, String> {
    match i32::try_from(value) {
        Ok(1..) => Ok(value as usize as HANDLE),
        _ => Err(format!("{value:#x} is no handle's number")),
    }
}
