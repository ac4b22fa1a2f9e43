//! Fork detection: no vendor's driver works in a forked child.
//!
//! A child inherits handles and reservations as plain numbers that belong to the parent. In the child, every call therefore
//! returns an error, and dropping a value releases nothing.
#![allow(unsafe_code)]

use crate::types::{Detail, Error, Operation, Result};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of forks between this process and the one that first called [`Process::current`].
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether the fork handler is registered. Not a lock: a fork during the first call would leave it locked in the child.
static WATCHED: AtomicBool = AtomicBool::new(false);

#[cfg(unix)]
extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that opened a backend or created a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    generation: u32,
}

impl Process {
    /// Returns the calling process. From the first call on, forks are detected without a system call for each check.
    #[must_use]
    pub fn current() -> Self {
        // Threads that enter here at the same time each register the handler. A fork is then counted several times, which
        // does no harm.
        if !WATCHED.load(Ordering::Acquire) {
            // SAFETY: the handler only adds to an atomic, which is allowed in a child of any process. If the system
            // cannot register it (out of memory), forks are not detected.
            #[cfg(unix)]
            unsafe {
                libc::pthread_atfork(None, None, Some(count_fork));
            }
            WATCHED.store(true, Ordering::Release);
        }
        Self { generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Returns true in this process and false in a child that was forked from it.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// Checks that the caller runs in this process and not in a forked child.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child.
    #[inline]
    pub fn check(self, operation: Operation) -> Result<()> {
        if self.is_this() { Ok(()) } else { Err(Error::new(operation, Detail::Forked)) }
    }
}
