//! The budget of a pool, and the memory that all of its kinds hold.

use crate::budget_source::BudgetSource;
use gpu_vmm_core::Bytes;
use gpu_vmm_premap::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fmt;
use std::sync::OnceLock;

/// What the kinds of memory of a pool share. Each kind has a core with a lock of its own; this changes without a lock.
pub(crate) struct Ledger {
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
        self.is_of_environment.store(false, Ordering::Relaxed);
        self.budget.store(budget.0, Ordering::Relaxed);
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

    /// Adds memory that a thread is about to create, if all kinds hold at most `most` bytes then. Returns false otherwise. Threads of
    /// several kinds may call it at the same time: together they never exceed `most`.
    pub(crate) fn claim(&self, bytes: u64, most: u64) -> bool {
        let mut held = self.held();
        loop {
            let Some(sum) = held.checked_add(bytes).filter(|sum| *sum <= most) else { return false };
            match self.held.compare_exchange_weak(held, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => held = other,
            }
        }
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
        assert!(ledger.claim(60, 100) && ledger.claim(40, 100));
        assert!(!ledger.claim(1, 100) && !ledger.claim(u64::MAX, u64::MAX));
        ledger.give_back(40);
        ledger.add(1);
        assert_eq!((ledger.held(), ledger.claim(40, 100)), (61, false));
        assert!(ledger.is_of_environment());
        ledger.set_budget(Bytes(7));
        assert_eq!((ledger.budget(), ledger.is_of_environment()), (Bytes(7), false));
    }

    #[test]
    fn claims_of_several_threads_share_the_budget() {
        let ledger = Ledger::new(Bytes(1000), false);
        let claims = || (0..1000).filter(|_| ledger.claim(1, 1000)).count();
        let claimed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claims)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        });
        assert_eq!((claimed, ledger.held()), (1000, 1000));
    }
}
