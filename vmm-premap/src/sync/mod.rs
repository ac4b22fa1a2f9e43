//! Locks, atomics, threads and clocks for the concurrent parts of gpu-vmm. The module is internal and changes without notice.
//!
//! A normal build re-exports the standard library's types. With `--cfg loom` or `--cfg shuttle`, the types come
//! from the crate of that name, which runs a test under many schedules and controls when each thread runs.
//!
//! `Arc`, `Weak` and `OnceLock` are the standard library's in all three builds. Loom has no `Weak`, and no closure that gpu-vmm
//! passes to a `OnceLock` can be interrupted by another thread of a model. `CountedArc` is loom's `Arc` in its models.

#[cfg(any(loom, shuttle))]
mod modelled;
#[cfg(loom)]
pub mod models;
#[cfg(not(any(loom, shuttle)))]
mod system;

#[cfg(any(loom, shuttle))]
pub use modelled::*;
#[cfg(not(any(loom, shuttle)))]
pub use system::*;

pub use std::sync::{Arc, OnceLock, PoisonError, TryLockError, Weak};

use atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

/// Locks a mutex. The caller has checked that the process is the one that created it.
///
/// Lock poisoning is ignored: no update spans a point that can panic.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    debug_assert!(
        !LOCKS_PANIC.get(),
        "a mutex is locked, which another thread may have locked when the process forked"
    );
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

std::thread_local! {
    static LOCKS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function during which [`lock`] panics on this thread, in a debug build. For tests of forked children, in which any mutex may be
/// locked for ever.
pub fn without_locks<T>(call: impl FnOnce() -> T) -> T {
    LOCKS_PANIC.set(true);
    let result = call();
    LOCKS_PANIC.set(false);
    result
}

/// Locks a mutex as [`lock`] does, or returns `None` at once if a thread holds it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Returns the number of this thread, which no other thread of the process ever has.
#[inline]
pub fn thread_number() -> usize {
    shared_static! {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    per_thread! {
        static OWN: Cell<usize> = Cell::new(usize::MAX);
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::thread_number;
    use std::thread;

    #[test]
    fn thread_numbers_are_never_reused() {
        let number = || {
            let first = thread_number();
            assert_eq!(thread_number(), first);
            first
        };
        // One after the other, so that the system reuses what it can.
        let mut numbers: Vec<usize> =
            (0..8).filter_map(|_| thread::scope(|scope| scope.spawn(number).join()).ok()).collect();
        numbers.push(number());
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 9);
    }
}
