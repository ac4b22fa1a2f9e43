//! A lock that a forked child never waits for.
//!
//! A thread of the parent that holds a lock when the process forks is not in the child, where the lock stays locked for
//! ever. So the process is checked before the lock is taken, here and nowhere else.

#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Operation, Process, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of the process in which it was made, for one thread at a time.
#[derive(Debug)]
pub struct Lock<T> {
    process: Process,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// A lock of the calling process.
    pub fn new(value: T) -> Self {
        Self { process: Process::current(), value: Mutex::new(value) }
    }

    /// Waits until no other thread has the value. That a thread has panicked with it is ignored: no update of a value that
    /// is kept here spans a point that can panic.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a child of the process.
    pub fn lock(&self, operation: Operation) -> Result<MutexGuard<'_, T>> {
        self.process.check(operation)?;
        Ok(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The process of the value.
    #[must_use]
    pub const fn process(&self) -> Process {
        self.process
    }

    /// The value, which no other thread has any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
