//! Handles of Windows carried from one process to another.
//!
//! A handle is a number that means something in one process alone. `DuplicateHandle` puts a second one, for the same
//! object, into another process's table; whichever of the two can open the other calls it:
//!
//! - the exporter [gives](give): it opens the importer, and sends it the number, which the importer [takes](take);
//! - the importer [fetches](Offer::fetch): the exporter sends an [`Offer`], which is plain data, and keeps its handle
//!   open until the importer has said that it has one of its own.
//!
//! Whoever calls needs the right `PROCESS_DUP_HANDLE` to the other process, which a process has to those of the same user
//! at the same integrity level or below. That right is as good as all others, since whoever has it can take a full
//! handle of the process itself. So where one of the two is trusted less, as a sandboxed one is, the other one calls.
//!
//! A number that comes from another process is not to be trusted: one that is no handle's is refused, and what a handle is
//! of only the driver knows that imports it.
//!
//! Numbers of processes are used again. Each process is therefore named by its number and the time of its creation
//! together ([`ProcessId`]), and what was named is checked on the opened process, which stays the same one from then on.
//!
//! No part of gpu-vmm has run on Windows so far. Of this module the tests have run under Wine.
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

/// A process, for which no later one of the same number is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it was created, in units of 100 ns since 1601, as `GetProcessTimes` says it.
    pub created: u64,
}

impl ProcessId {
    /// This process.
    ///
    /// # Errors
    ///
    /// What Windows answers.
    pub fn current() -> Result<Self> {
        // SAFETY: both take nothing; the handle stands for this process and needs no closing.
        let (pid, process) = unsafe { (GetCurrentProcessId(), GetCurrentProcess()) };
        created(Operation::QueryProcess, process).map(|created| Self { pid, created })
    }

    /// The process itself, for duplicating; it is this one and no other for as long as it is open.
    fn open(self, operation: Operation) -> Result<OwnedHandle> {
        let gone = |why: String| Error::of_extension(operation, PeerError::Gone { why });
        // SAFETY: numbers alone go in; what comes back is null or a handle of the caller's.
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
            _ => Err(gone(format!("its number {} is another process's by now", self.pid))),
        }
    }
}

/// A handle of some process, to be sent as data: where it is and which one.
///
/// The process keeps the handle open until the receiver has [fetched](Offer::fetch) one of its own. A number that was
/// closed can be another object's by then, which nobody but the driver that imports it will notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Who has the handle.
    pub exporter: ProcessId,
    /// The handle's number there.
    pub value: u64,
}

impl Offer {
    /// A handle of this process.
    ///
    /// # Errors
    ///
    /// What Windows answers.
    pub fn of(handle: BorrowedHandle<'_>) -> Result<Self> {
        Ok(Self { exporter: ProcessId::current()?, value: handle.as_raw_handle().addr() as u64 })
    }

    /// A handle of one's own for the same object, taken from the exporter. Child processes do not inherit it.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`] where the exporter is no more, whoever has its number now; [`PeerError::BadMessage`] for a number
    /// that no handle has; else what Windows answers, as where the exporter may not be opened or the handle is closed.
    pub fn fetch(&self) -> Result<OwnedHandle> {
        const OPERATION: Operation = Operation::DuplicateHandle;
        let value = number(self.value)
            .map_err(|why| Error::of_extension(OPERATION, PeerError::BadMessage { why }))?;
        let exporter = self.exporter.open(OPERATION)?;
        // SAFETY: the exporter is open, and gives the number away as it stands.
        let made = unsafe {
            duplicate((exporter.as_raw_handle(), value), GetCurrentProcess(), DUPLICATE_SAME_ACCESS)
        };
        let made = made.map_err(|error| {
            let context = format!("handle {:#x} of process {}", self.value, self.exporter.pid);
            failed(OPERATION, "DuplicateHandle", &error, context)
        })?;
        // SAFETY: it was made for this process just now, and nobody else knows of it.
        Ok(unsafe { OwnedHandle::from_raw_handle(made) })
    }
}

/// Puts a duplicate of a handle into the table of another process, which does not know of it yet.
///
/// # Errors
///
/// [`PeerError::Gone`] where the process is no more; else what Windows answers, as where it may not be opened.
pub fn give(handle: BorrowedHandle<'_>, to: ProcessId) -> Result<Given> {
    const OPERATION: Operation = Operation::DuplicateHandle;
    let receiver = to.open(OPERATION)?;
    let source = handle.as_raw_handle();
    // SAFETY: the handle is borrowed and so open, and the receiver is open as well.
    let made =
        unsafe { duplicate((GetCurrentProcess(), source), receiver.as_raw_handle(), DUPLICATE_SAME_ACCESS) };
    let made = made.map_err(|error| {
        let context = format!("handle {:#x} to process {}", source.addr(), to.pid);
        failed(OPERATION, "DuplicateHandle", &error, context)
    })?;
    Ok(Given { receiver, value: made.addr() as u64 })
}

/// A handle that is in another process's table and that this process does not know of yet.
///
/// Send it the [number](Given::value). Dropping this before [`Given::delivered`] closes the handle there, so that nothing
/// stays behind where the sending fails.
#[derive(Debug)]
#[must_use]
pub struct Given {
    receiver: OwnedHandle,
    value: u64,
}

impl Given {
    /// The handle's number in the receiver.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }

    /// Leaves the handle to the receiver, which has been told the number.
    pub fn delivered(mut self) {
        self.value = 0;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.value == 0 {
            return;
        }
        // SAFETY: the handle was made there for this purpose, and the receiver was not told of it.
        let moved = unsafe {
            let source = (self.receiver.as_raw_handle(), self.value as usize as HANDLE);
            duplicate(source, GetCurrentProcess(), DUPLICATE_SAME_ACCESS | DUPLICATE_CLOSE_SOURCE)
        };
        // Where it fails the receiver has ended, and its handles with it.
        if let Ok(moved) = moved {
            // SAFETY: it was made for this process just now, and nobody else knows of it.
            drop(unsafe { OwnedHandle::from_raw_handle(moved) });
        }
    }
}

/// Takes over a handle that another process has [given](give) to this one.
///
/// # Safety
///
/// The number is that of a handle that was given to this process, and nobody else here closes or takes it.
///
/// # Errors
///
/// [`PeerError::BadMessage`] for a number that is no handle's.
pub unsafe fn take(value: u64) -> Result<OwnedHandle> {
    // SAFETY: the caller's promise.
    unsafe { own(value) }
        .map_err(|why| Error::of_extension(Operation::DuplicateHandle, PeerError::BadMessage { why }))
}

/// When an opened process was created.
fn created(operation: Operation, process: HANDLE) -> Result<u64> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the process is open, and the pointers are good for one time each.
    if unsafe { GetProcessTimes(process, created, exited, kernel, user) } == 0 {
        let error = io::Error::last_os_error();
        return Err(failed(operation, "GetProcessTimes", &error, "when a process was created".to_owned()));
    }
    Ok(u64::from(times[0].dwHighDateTime) << 32 | u64::from(times[0].dwLowDateTime))
}

/// A duplicate of a process's handle in another process. It is not inherited.
///
/// # Safety
///
/// Both processes are open. Where `options` are to close the source, nobody else uses it.
unsafe fn duplicate(
    (process, source): (HANDLE, HANDLE),
    target: HANDLE,
    options: DUPLICATE_HANDLE_OPTIONS,
) -> io::Result<HANDLE> {
    let mut made = null_mut();
    // SAFETY: the caller's promise; the place is good for one handle.
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
