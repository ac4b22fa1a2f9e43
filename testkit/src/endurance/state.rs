//! The state that all threads of a run share.

use super::bound::Amounts;
use super::model::Model;
use super::{Program, Work};
use gpu_vmm_core::{Backend, BackingStore, Error};
use gpu_vmm_pool::Pool;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A promise of the pool that a program has seen broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed of the program.
    pub seed: u64,
    /// The number of steps before.
    pub step: u64,
    /// The fault: the bound that was exceeded, or the call that failed.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, what } = self;
        write!(f, "seed {seed}, step {step}: {what}")
    }
}

/// The state that all threads of a run share.
pub(super) struct Run<'a, B: Backend, W: Work> {
    pub(super) program: &'a Program,
    pub(super) pool: &'a Pool<B>,
    pub(super) work: &'a W,
    pub(super) store: BackingStore<B>,
    /// One model, so that its changes are in the order of the calls.
    pub(super) model: Mutex<Model>,
    pub(super) violation: Mutex<Option<Violation>>,
    /// True after a violation.
    pub(super) stops: AtomicBool,
    /// True once all threads end.
    pub(super) over: AtomicBool,
    pub(super) steps: AtomicU64,
    pub(super) used: Mutex<Amounts>,
    /// The budget that the program has set.
    pub(super) budget: AtomicU64,
    /// The number of the next tag.
    pub(super) next_tag: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend, W: Work> Run<'_, B, W> {
    pub(super) fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    /// Notes a violation, and ends the run.
    pub(super) fn violate(&self, what: String) {
        let step = self.steps.load(Ordering::Relaxed);
        let violation = Violation { seed: self.program.seed, step, what };
        lock(&self.violation).get_or_insert(violation);
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Notes an unexpected error.
    pub(super) fn unexpected(&self, call: &str, error: &Error) {
        self.violate(format!("{call}: {error}"));
    }

    pub(super) fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }
}
