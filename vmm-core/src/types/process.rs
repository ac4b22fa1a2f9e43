//! Notices that the process was forked: no vendor's driver works in the child.
//!
//! A child inherits handles and reservations as plain numbers. Every call there gets an error, and dropping does
//! nothing, since what would be given back belongs to the parent.
#![allow(unsafe_code)]

use crate::types::{Detail, Error, Operation, Result};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many forks lie between this process and the one that first asked.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether forks are noticed. No lock: a fork beside the first call would leave it locked in the child.
static WATCHED: AtomicBool = AtomicBool::new(false);

#[cfg(unix)]
extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    generation: u32,
}

impl Process {
    /// The process that calls. From here on its forks are noticed, without a system call for each check.
    #[must_use]
    pub fn current() -> Self {
        // Threads that are here for the first time together each have forks counted, which is as good.
        if !WATCHED.load(Ordering::Acquire) {
            // SAFETY: the handler only adds to an atomic, which is allowed in a child of any process. Where the
            // system cannot register it (out of memory), forks go unnoticed, as they would without this.
            #[cfg(unix)]
            unsafe {
                libc::pthread_atfork(None, None, Some(count_fork));
            }
            WATCHED.store(true, Ordering::Release);
        }
        Self { generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// True in the process that opened, false in a child that was forked from it.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// The error of a call in a forked child.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a child.
    #[inline]
    pub fn check(self, operation: Operation) -> Result<()> {
        if self.is_this() { Ok(()) } else { Err(Error::new(operation, Detail::Forked)) }
    }
}
