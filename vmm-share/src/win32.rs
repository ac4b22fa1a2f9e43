//! Windows handles, passed from one process to another.
//!
//! A handle is a number that is valid in one process. `DuplicateHandle` creates a second handle, for the same object, in
//! another process. Either process can call it:
//!
//! - The exporter [gives](give) the handle: it opens the importer and sends it the number, which the importer [takes](take).
//! - The importer [fetches](Offer::fetch) the handle: the exporter sends an [`Offer`], which is plain data, and keeps its
//!   handle open until the importer has reported that it has its own.
//!
//! The caller needs the right `PROCESS_DUP_HANDLE` to the other process, which a process has to processes of the same user at the
//! same integrity level or below. With that right it can also duplicate a full handle of the process itself. If one of the two
//! is trusted less, such as a sandboxed process, the other one must call.
//!
//! A number from another process is untrusted. A number that cannot be a handle's is refused here; only the driver that imports
//! the handle can check its object.
//!
//! Windows reuses process IDs. A [`ProcessId`] therefore contains the time of creation too, which is checked on the opened
//! process.
//!
//! There are no channels on Windows, and so no notice when the other process ends. A program can wait on a handle of the
//! process for that.
//!
//! gpu-vmm has not run on Windows. The tests of this module have run under Wine.
#![allow(unsafe_code)] // calls into Windows

use crate::PeerError;
use gpu_vmm_core::extend::handles::{number, own};
use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::windows::io::{AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;
use windows_sys::Win32::Foundation::{
    DUPLICATE_CLOSE_SOURCE, DUPLICATE_HANDLE_OPTIONS, DUPLICATE_SAME_ACCESS, DuplicateHandle,
    ERROR_INVALID_PARAMETER, FILETIME, HANDLE,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentProcessId, GetProcessTimes, OpenProcess, PROCESS_DUP_HANDLE,
    PROCESS_QUERY_LIMITED_INFORMATION,
};

/// Identifies a process, and no later one with the same ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process ID.
    pub pid: u32,
    /// The time of its creation in units of 100 ns since 1601, from `GetProcessTimes`.
    pub created: u64,
}

impl ProcessId {
    /// Returns the ID of this process.
    ///
    /// # Errors
    ///
    /// Errors of Windows.
    pub fn current() -> Result<Self> {
        // SAFETY: both take no arguments; the pseudo handle of this process needs no closing.
        let (pid, process) = unsafe { (GetCurrentProcessId(), GetCurrentProcess()) };
        created(Operation::QueryProcess, process).map(|created| Self { pid, created })
    }

    /// Opens the process for duplicating handles. While it is open, its ID is not reused.
    fn open(self, operation: Operation) -> Result<OwnedHandle> {
        let gone = |why: String| Error::of_extension(operation, PeerError::Gone { why });
        // SAFETY: the arguments are numbers; the result is null or a handle that the caller owns.
        let opened = unsafe {
            let process = OpenProcess(PROCESS_DUP_HANDLE | PROCESS_QUERY_LIMITED_INFORMATION, 0, self.pid);
            (!process.is_null()).then(|| OwnedHandle::from_raw_handle(process))
        };
        let process = opened.ok_or_else(|| {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(ERROR_INVALID_PARAMETER as i32) {
                return gone(format!("there is no process {}", self.pid));
            }
            failed(operation, "OpenProcess", &error, format!("process {}", self.pid))
        })?;
        match created(operation, process.as_raw_handle())? {
            time if time == self.created => Ok(process),
            _ => Err(gone(format!("its ID {} belongs to another process now", self.pid))),
        }
    }
}

/// Identifies a handle of a process, as plain data.
///
/// That process must keep the handle open until the receiver has [fetched](Offer::fetch) its own. After it is closed, Windows
/// may reuse the number for another object, which only the driver that imports it notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The process that has the handle.
    pub exporter: ProcessId,
    /// The handle's number in that process.
    pub value: u64,
}

impl Offer {
    /// Returns the offer of a handle of this process.
    ///
    /// # Errors
    ///
    /// Errors of Windows.
    pub fn of(handle: BorrowedHandle<'_>) -> Result<Self> {
        Ok(Self { exporter: ProcessId::current()?, value: handle.as_raw_handle().addr() as u64 })
    }

    /// Duplicates the exporter's handle into this process. Child processes do not inherit it.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`] if the exporter has ended, whichever process has its ID now; [`PeerError::BadMessage`] for a number
    /// that no handle has; otherwise errors of Windows, for example if this process may not open the exporter or the handle is
    /// closed.
    pub fn fetch(&self) -> Result<OwnedHandle> {
        const OPERATION: Operation = Operation::DuplicateHandle;
        let value = number(self.value)
            .map_err(|why| Error::of_extension(OPERATION, PeerError::BadMessage { why }))?;
        let exporter = self.exporter.open(OPERATION)?;
        // SAFETY: the exporter is open, and Windows checks the number.
        let made = unsafe {
            duplicate((exporter.as_raw_handle(), value), GetCurrentProcess(), DUPLICATE_SAME_ACCESS)
        };
        let made = made.map_err(|error| {
            let context = format!("handle {:#x} of process {}", self.value, self.exporter.pid);
            failed(OPERATION, "DuplicateHandle", &error, context)
        })?;
        // SAFETY: the handle was just created in this process, and nothing else owns it.
        Ok(unsafe { OwnedHandle::from_raw_handle(made) })
    }
}

/// Duplicates a handle into another process. The caller must then send that process the handle's number.
///
/// # Errors
///
/// [`PeerError::Gone`] if the process has ended; otherwise errors of Windows, for example if this process may not open it.
pub fn give(handle: BorrowedHandle<'_>, to: ProcessId) -> Result<DuplicatedHandle> {
    const OPERATION: Operation = Operation::DuplicateHandle;
    let receiver = to.open(OPERATION)?;
    let source = handle.as_raw_handle();
    // SAFETY: the handle is borrowed and therefore open, and the receiver is open too.
    let made =
        unsafe { duplicate((GetCurrentProcess(), source), receiver.as_raw_handle(), DUPLICATE_SAME_ACCESS) };
    let made = made.map_err(|error| {
        let context = format!("handle {:#x} to process {}", source.addr(), to.pid);
        failed(OPERATION, "DuplicateHandle", &error, context)
    })?;
    Ok(DuplicatedHandle { receiver, value: made.addr() as u64 })
}

/// A handle in another process, which does not know its number yet.
///
/// Send that process the [number](DuplicatedHandle::value), then call [`DuplicatedHandle::delivered`]. Dropping this before closes the handle there,
/// so that it does not leak if sending fails. Any thread may have it.
#[derive(Debug)]
#[must_use]
pub struct DuplicatedHandle {
    receiver: OwnedHandle,
    value: u64,
}

impl DuplicatedHandle {
    /// Returns the handle's number in the receiver.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }

    /// Leaves the handle to the receiver, which has the number now.
    pub fn delivered(mut self) {
        self.value = 0;
    }
}

impl Drop for DuplicatedHandle {
    fn drop(&mut self) {
        if self.value == 0 {
            return;
        }
        // SAFETY: `give` created the handle in the receiver, which does not have its number.
        let moved = unsafe {
            let source = (self.receiver.as_raw_handle(), self.value as usize as HANDLE);
            duplicate(source, GetCurrentProcess(), DUPLICATE_SAME_ACCESS | DUPLICATE_CLOSE_SOURCE)
        };
        // If this fails, the receiver has ended, and its handles are closed.
        if let Ok(moved) = moved {
            // SAFETY: the handle was just created in this process, and nothing else owns it.
            drop(unsafe { OwnedHandle::from_raw_handle(moved) });
        }
    }
}

/// Takes ownership of a handle that another process has [given](give) to this one.
///
/// # Safety
///
/// The number must name a handle that was given to this process, and nothing else in this process may own it.
///
/// # Errors
///
/// [`PeerError::BadMessage`] for a number that cannot be a handle's.
pub unsafe fn take(value: u64) -> Result<OwnedHandle> {
    // SAFETY: the caller's promise.
    unsafe { own(value) }
        .map_err(|why| Error::of_extension(Operation::DuplicateHandle, PeerError::BadMessage { why }))
}

/// Returns the time of an opened process's creation.
fn created(operation: Operation, process: HANDLE) -> Result<u64> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the process is open, and each pointer is valid for writing one `FILETIME`.
    if unsafe { GetProcessTimes(process, created, exited, kernel, user) } == 0 {
        let error = io::Error::last_os_error();
        return Err(failed(
            operation,
            "GetProcessTimes",
            &error,
            "the creation time of a process".to_owned(),
        ));
    }
    Ok(u64::from(times[0].dwHighDateTime) << 32 | u64::from(times[0].dwLowDateTime))
}

/// Duplicates a process's handle into another process. Child processes do not inherit it.
///
/// # Safety
///
/// Both processes must be open. If `options` close the source, nothing else may use it.
unsafe fn duplicate(
    (process, source): (HANDLE, HANDLE),
    target: HANDLE,
    options: DUPLICATE_HANDLE_OPTIONS,
) -> io::Result<HANDLE> {
    let mut made = null_mut();
    // SAFETY: the caller's promise; the pointer is valid for writing one handle.
    match unsafe { DuplicateHandle(process, source, target, &raw mut made, 0, 0, options) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(made),
    }
}

fn failed(operation: Operation, call: &'static str, error: &io::Error, context: String) -> Error {
    Error::new(operation, Detail::Driver { source: DriverError::system(call, error), context })
}

#[cfg(test)]
mod tests;
