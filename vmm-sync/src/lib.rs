//! Locks, atomics, threads and clocks for the concurrent parts of [gpu-vmm](https://docs.rs/gpu-vmm). The crate is internal and
//! changes without notice.
//!
//! A normal build re-exports the standard library's types and spin's lock. With `--cfg loom` or `--cfg shuttle`, the types come
//! from the crate of that name, which runs a test under many schedules and controls when each thread runs.
//!
//! | file | subject |
//! |---|---|
//! | `system` | the types of a normal build |
//! | `modelled` | the types of loom and shuttle |
//! | `models` | runs of a model under all its schedules, with loom |
//! | `biased` | a lock that costs its first user no atomic operation |
//! | `barrier` | memory barriers for it |
//! | `thread_pointer` | a number for the running thread |
//!
//! `Arc`, `Weak` and `OnceLock` are the standard library's in all three builds. Loom has no `Weak`, and no closure that gpu-vmm
//! passes to a `OnceLock` can be interrupted by another thread of a model.

#[cfg(not(any(loom, shuttle)))]
mod barrier;
mod biased;
#[cfg(any(loom, shuttle))]
mod modelled;
#[cfg(loom)]
pub mod models;
#[cfg(not(any(loom, shuttle)))]
mod system;
#[cfg(not(any(loom, shuttle)))]
mod thread_pointer;

#[cfg(any(loom, shuttle))]
pub use modelled::*;
#[cfg(any(loom, shuttle))]
use modelled::{barrier, relax, this_thread};
#[cfg(not(any(loom, shuttle)))]
use system::relax;
#[cfg(not(any(loom, shuttle)))]
pub use system::*;
#[cfg(not(any(loom, shuttle)))]
use thread_pointer::this_thread;

pub use biased::{BiasedGuard, BiasedMutex};
pub use std::sync::{Arc, OnceLock, PoisonError, TryLockError, Weak};

use atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

/// Returns the number of this thread, which no other thread of the process ever has.
#[inline]
pub fn thread_number() -> usize {
    crate::shared_static! {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    crate::per_thread! {
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
    fn a_thread_keeps_its_number_which_no_later_thread_has() {
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
