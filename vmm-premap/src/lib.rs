//! Growth of GPU memory without driver calls, for [gpu-vmm](https://docs.rs/gpu-vmm): a thread maps the next part of a region
//! before it is asked for.
//!
//! A [`GrowingRegion`] is a region that a [`PremapThread`] keeps mapped beyond its end. A step of growth into that part moves a
//! number. The pool, gpu-vmm-pool, has the same thread map its pages ahead.
//!
//! | file | subject |
//! |---|---|
//! | `thread` | the thread, and the work that it is asked for |
//! | `exit` | no driver is called while the process ends |
//! | `budget` | how much may be mapped ahead, over all regions of a thread |
//! | `growing` | a region that grows into what is mapped already, as its user sees it |
//! | `shared` | what its user and the thread have in common |
//! | `guard` | the region itself, while nobody else works on it |
//! | `models` | all this under every schedule |

mod budget;
mod exit;
mod growing;
mod guard;
#[cfg(all(test, loom))]
mod models;
mod shared;
mod thread;

pub use growing::{GrowingRegion, PremapGrowth, PremapOutcome};
pub use guard::RegionGuard;
pub use thread::PremapThread;

use gpu_vmm_core::Bytes;
use gpu_vmm_sync::{Mutex, MutexGuard, PoisonError};

/// Work for a [`PremapThread`], for authors of allocators that map memory ahead themselves.
pub mod extend {
    pub use crate::thread::{PremapWork, Registration, Step};
}

/// How far beyond its end a [`GrowingRegion`] is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Premap {
    /// The most that is mapped beyond the end, rounded up to the region's granularity; zero for nothing. It should cover
    /// several steps of growth, so that the thread can map one before the caller has used up the others.
    pub by: Bytes,
    /// How much is mapped at a time, in one handle, rounded up to the granularity; no more than `by`. Memory goes back by
    /// handles, so that shrinking cannot cut through one.
    pub step: Bytes,
}

/// Whoever has panicked with it has left it whole: nothing is changed in several steps between which a panic could come.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
