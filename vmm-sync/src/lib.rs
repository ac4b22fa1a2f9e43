//! The locks, atomics, threads and time of [gpu-vmm](https://docs.rs/gpu-vmm)'s concurrent parts. Not for other programs: it
//! changes without notice.
//!
//! A normal build has those of the standard library and spin's lock. With `--cfg loom` or `--cfg shuttle` they are those of
//! the crate of that name, which runs a test under many schedules and decides itself which thread goes on when.
//!
//! | file | subject |
//! |---|---|
//! | `system` | what programs have |
//! | `modelled` | what loom and shuttle have |
//! | `models` | runs a model under all its schedules, with loom |
//!
//! `Arc`, `Weak` and `OnceLock` are the standard library's in all three: loom has no `Weak`, and no closure that gpu-vmm
//! gives to a `OnceLock` can be interrupted by another thread of a model.

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
