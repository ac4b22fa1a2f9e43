//! The one place from which the pool takes its locks, atomics, threads and time.
//!
//! A normal build has those of the standard library and spin's lock. With `--cfg loom` or `--cfg shuttle` they are those of
//! the crate of that name, which runs a test under many schedules and decides itself which thread goes on when.
//!
//! | file | subject |
//! |---|---|
//! | `system` | what programs have |
//! | `modelled` | what loom and shuttle have |
//!
//! `Arc`, `Weak` and `OnceLock` are the standard library's in all three: loom has no `Weak`, and no closure that the pool
//! gives to a `OnceLock` can be interrupted by another thread of a model.

#[cfg(any(loom, shuttle))]
mod modelled;
#[cfg(not(any(loom, shuttle)))]
mod system;

#[cfg(any(loom, shuttle))]
pub(crate) use modelled::*;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use system::*;

pub(crate) use std::sync::{Arc, OnceLock, PoisonError, TryLockError, Weak};
