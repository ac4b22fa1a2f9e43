//! The budget of a pool, and the memory that all of its kinds hold.

use crate::budget_source::BudgetSource;
use gpu_vmm_core::Bytes;
use gpu_vmm_premap::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpu_vmm_premap::sync::{Mutex, lock};
use std::fmt;
use std::sync::OnceLock;

/// What the kinds of memory of a pool share. Each kind has a core with a lock of its own; this is read without a lock.
pub(crate) struct Ledger {
    /// Locked by changes of the budget and by claims, so that none is above a budget that was lowered before.
    changes: Mutex<()>,
    budget: AtomicU64,
    /// True if the budget comes from the environment variable.
    is_of_environment: AtomicBool,
    /// The memory that all kinds hold, also what threads create now, and what they release until it is gone.
    held: AtomicU64,
    /// The party that grants the budget, if there is one. It ends with the last memory of the pool.
    source: OnceLock<Box<dyn BudgetSource>>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("budget", &self.budget())
            .field("held", &Bytes(self.held()))
            .field("source", &self.source().is_some())
            .finish_non_exhaustive()
    }
}

impl Ledger {
    pub(crate) fn new(budget: Bytes, is_of_environment: bool) -> Self {
        Self {
            changes: Mutex::new(()),
            budget: AtomicU64::new(budget.0),
            is_of_environment: AtomicBool::new(is_of_environment),
            held: AtomicU64::new(0),
            source: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn budget(&self) -> Bytes {
        Bytes(self.budget.load(Ordering::Relaxed))
    }

    pub(crate) fn is_of_environment(&self) -> bool {
        self.is_of_environment.load(Ordering::Relaxed)
    }

    /// Sets the budget of the program, in the place of the environment's.
    pub(crate) fn set_budget(&self, budget: Bytes) {
        let _change = lock(&self.changes);
        self.put_budget(budget);
    }

    /// Stores a budget. The caller has locked the changes.
    fn put_budget(&self, budget: Bytes) {
        self.is_of_environment.store(false, Ordering::Relaxed);
        self.budget.store(budget.0, Ordering::Relaxed);
    }

    /// Lowers the budget to `least`, or to what is held. Returns the budget.
    pub(crate) fn lower(&self, least: Bytes) -> Bytes {
        let _change = lock(&self.changes);
        let after = Bytes(self.held()).max(least).min(self.budget());
        self.put_budget(after);
        after
    }

    /// Sets the party that grants the budget. Returns false if there is one already.
    pub(crate) fn set_source(&self, source: Box<dyn BudgetSource>) -> bool {
        self.source.set(source).is_ok()
    }

    pub(crate) fn source(&self) -> Option<&dyn BudgetSource> {
        self.source.get().map(|source| &**source)
    }

    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Adds memory that a thread is about to create, if all kinds hold no more than the budget then, beside `leaving`, which is gone before
    /// the memory is created. Returns false otherwise.
    pub(crate) fn claim(&self, bytes: u64, leaving: u64) -> bool {
        let _change = lock(&self.changes);
        let most = self.budget().0.saturating_add(leaving);
        let is_room = self.held().checked_add(bytes).is_some_and(|sum| sum <= most);
        if is_room {
            self.add(bytes);
        }
        is_room
    }

    /// Adds memory that exists already.
    pub(crate) fn add(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes memory off that the driver has back.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// How often a request has asked the source of its pool's budget. The source learns of the end of a request that has: it is dropped when the
/// request holds no lock of the pool.
pub(crate) struct Raises<'a> {
    ledger: &'a Ledger,
    pub(crate) rounds: u32,
}

impl<'a> Raises<'a> {
    pub(crate) const fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, rounds: 0 }
    }
}

impl Drop for Raises<'_> {
    fn drop(&mut self) {
        if let Some(source) = self.ledger.source().filter(|_| self.rounds > 0) {
            source.request_ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_stay_within_the_budget() {
        let ledger = Ledger::new(Bytes(100), true);
        assert!(ledger.claim(60, 0) && ledger.claim(40, 0));
        assert!(!ledger.claim(1, 0) && !ledger.claim(u64::MAX, u64::MAX) && ledger.claim(1, 1));
        ledger.give_back(41);
        ledger.add(1);
        assert_eq!((ledger.held(), ledger.claim(40, 0)), (61, false));
        assert!(ledger.is_of_environment());
        ledger.set_budget(Bytes(107));
        assert_eq!((ledger.budget(), ledger.is_of_environment()), (Bytes(107), false));
        assert_eq!(ledger.lower(Bytes(80)), Bytes(80));
        assert_eq!(ledger.lower(Bytes(20)), Bytes(61));
        assert!(!ledger.claim(1, 0));
        assert_eq!(ledger.lower(Bytes(90)), Bytes(61), "it is not raised");
    }

    #[test]
    fn claims_of_several_threads_share_the_budget() {
        let ledger = Ledger::new(Bytes(1000), false);
        let claims = || (0..1000).filter(|_| ledger.claim(1, 0)).count();
        let claimed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claims)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        });
        assert_eq!((claimed, ledger.held()), (1000, 1000));
    }
}
