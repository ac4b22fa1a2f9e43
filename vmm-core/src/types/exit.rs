//! The end of the process: no driver calls once it exits.
//!
//! While a process exits, its driver is torn down by exit handlers and by the destructors of the driver's static objects. From
//! then on NVIDIA's driver returns errors, and AMD's runtime crashes. Code of the program can run after that: destructors of its
//! own static objects, and exit handlers that it registered early. Exit handlers run in the reverse order of their registration.
//! A handler that is registered after the driver was initialized therefore runs before the driver's own, and the calls that
//! come after it return an error and call no driver.
//!
//! The driver releases everything at that time, so destructors that call no driver lose nothing.
#![allow(unsafe_code)]

use crate::types::{Detail, Error, Operation, Process, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the exit of this process has reached the drivers.
static EXITING: AtomicBool = AtomicBool::new(false);

#[cfg(unix)]
extern "C" fn exit_begins() {
    EXITING.store(true, Ordering::Relaxed);
}

/// Returns true if the process exits and a driver that was open is being torn down, or has been.
#[inline]
#[must_use]
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

/// The process that opened a driver. The driver can be called in it until it exits, and never in its forked children.
#[derive(Clone, Copy, Debug)]
pub struct DriverProcess(Process);

impl DriverProcess {
    /// Returns the process that opens a driver. The caller must call [`watch_exit`](Self::watch_exit) when the driver is initialized.
    #[must_use]
    pub const fn new(process: Process) -> Self {
        Self(process)
    }

    /// Ends the calls of all drivers when the process exits, before the drivers that are initialized by now are torn down.
    ///
    /// On Windows it does nothing: the system ends all other threads first, and then unloads the libraries in an order of its own.
    pub fn watch_exit(self) {
        // SAFETY: the handler only stores to an atomic that is never dropped. If the system cannot register it (out of memory),
        // the process exits as without it.
        #[cfg(unix)]
        unsafe {
            libc::atexit(exit_begins);
        }
    }

    /// Returns true if the driver can be called.
    #[inline]
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.0.is_this() && !is_exiting()
    }

    /// Checks that the driver can be called.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child, [`Detail::Exiting`] while the process exits.
    #[inline]
    pub fn check(self, operation: Operation) -> Result<()> {
        self.0.check(operation)?;
        if is_exiting() { Err(Error::new(operation, Detail::Exiting)) } else { Ok(()) }
    }
}
