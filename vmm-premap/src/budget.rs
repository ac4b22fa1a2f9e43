//! The limit on premapped memory, over all regions of a thread.

use crate::sync::atomic::{AtomicU64, Ordering};
use gpu_vmm_core::Bytes;

/// A limit, and the part of it that is used.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Bytes,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: Bytes) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    pub(crate) fn used(&self) -> Bytes {
        Bytes(self.used.load(Ordering::Relaxed))
    }

    /// Takes `amount` if the limit allows it.
    pub(crate) fn take(&self, amount: Bytes) -> bool {
        let add = |used| Bytes(used).checked_add(amount).filter(|sum| *sum <= self.limit).map(|sum| sum.0);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Records that a user of the budget now has `now` in place of `before`. The sum may exceed the limit, because the memory is
    /// mapped already; then nothing can be taken until enough is returned.
    pub(crate) fn change(&self, before: Bytes, now: Bytes) {
        if before < now {
            self.used.fetch_add((now - before).0, Ordering::Relaxed);
        } else if now < before {
            self.used.fetch_sub((before - now).0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_over_the_limit() {
        let budget = Budget::new(Bytes(10));
        assert!(budget.take(Bytes(6)) && !budget.take(Bytes(5)) && budget.take(Bytes(4)));
        budget.change(Bytes(4), Bytes(1));
        assert_eq!(budget.used(), Bytes(7));
        budget.change(Bytes(1), Bytes(8));
        assert!(!budget.take(Bytes(1)), "{:?}", budget.used());
        budget.change(Bytes(14), Bytes::ZERO);
        assert!(!budget.take(Bytes(u64::MAX)) && budget.take(Bytes(10)));
    }
}
