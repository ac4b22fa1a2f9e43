//! A mutex that fails in a forked child instead of blocking.
//!
//! If a thread of the parent holds a mutex while the process forks, the mutex stays locked forever in the child, which does
//! not have that thread. [`Lock`] therefore checks the process before it locks; no other code has to.

#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Operation, Process, Result};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that can be locked only in the process that created it.
#[derive(Debug)]
pub struct Lock<T> {
    process: Process,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// Creates a lock that belongs to the calling process.
    pub fn new(value: T) -> Self {
        Self { process: Process::current(), value: Mutex::new(value) }
    }

    /// Locks the value, blocking while another thread holds it.
    ///
    /// Lock poisoning is ignored: no update of a value in such a lock spans a point that can panic.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child of the process that created the lock.
    pub fn lock(&self, operation: Operation) -> Result<MutexGuard<'_, T>> {
        self.process.check(operation)?;
        Ok(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the value, or returns `None` at once if a thread holds it, the calling one included.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child of the process that created the lock.
    pub fn try_lock(&self, operation: Operation) -> Result<Option<MutexGuard<'_, T>>> {
        self.process().check(operation)?;
        match self.value.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Returns the process that created the lock.
    #[must_use]
    pub const fn process(&self) -> Process {
        self.process
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn panic_leaves_the_lock_usable() {
        let lock = Lock::new(1);
        let operation = Operation::Grow;
        let taken = lock.lock(operation).unwrap();
        assert!(lock.try_lock(operation).unwrap().is_none(), "this thread holds it");
        drop(taken);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock.lock(operation).unwrap();
                std::panic::resume_unwind(Box::new(()));
            });
            holder.join()
        });
        assert!(panicked.is_err());
        *lock.try_lock(operation).unwrap().unwrap() += 1;
        *lock.lock(operation).unwrap() += 1;
        assert_eq!(lock.into_inner(), 3);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn forked_child_takes_no_lock() {
        let (free, held) = (Lock::new(1), Lock::new(2));
        let _held = held.lock(Operation::Grow).unwrap();
        gpu_vmm_testkit::forked::alone(|| {
            for lock in [&free, &held] {
                for error in [lock.lock(Operation::Map).err(), lock.try_lock(Operation::Map).err()] {
                    let error = error.unwrap();
                    assert!(matches!(error.detail(), Detail::Forked), "{error}");
                    assert_eq!(error.operation(), Operation::Map);
                }
            }
        });
        assert_eq!(*free.try_lock(Operation::Map).unwrap().unwrap(), 1);
    }
}
