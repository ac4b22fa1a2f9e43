//! The memory requested at one time, by all threads together.
//!
//! The trace determines the requests of one thread. The sum of several depends on their progress, so it is counted; only in
//! large steps, so that the threads do not slow each other down.

use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that all threads request.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    total: AtomicU64,
    peak: AtomicU64,
}

impl Asked {
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// One thread's share of it.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    asked: &'a Asked,
    /// The bytes of the block in each slot.
    bytes: Vec<u64>,
    live: u64,
    told: u64,
    step: u64,
}

impl<'a> Share<'a> {
    /// Creates a share that reports its total whenever it has changed by `step`.
    pub(crate) fn new(asked: &'a Asked, slots: u32, step: u64) -> Self {
        Self { asked, bytes: vec![0; slots as usize], live: 0, told: 0, step }
    }

    /// Adds a block. Returns the total of all threads if this thread reported.
    pub(crate) fn took(&mut self, slot: u32, bytes: u64) -> Option<u64> {
        self.bytes[slot as usize] = bytes;
        self.live += bytes;
        (self.live.abs_diff(self.told) >= self.step).then(|| self.tell())
    }

    pub(crate) fn gave(&mut self, slot: u32) {
        self.live -= self.bytes[slot as usize];
        if self.live.abs_diff(self.told) >= self.step {
            self.tell();
        }
    }

    /// Returns the memory that this thread requests.
    pub(crate) const fn live(&self) -> u64 {
        self.live
    }

    fn tell(&mut self) -> u64 {
        let change = self.live.wrapping_sub(self.told);
        self.told = self.live;
        let total = self.asked.total.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        if total > self.asked.peak.load(Ordering::Relaxed) {
            self.asked.peak.fetch_max(total, Ordering::Relaxed);
        }
        total
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.asked.total.fetch_sub(self.told, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_and_leave_nothing() {
        let asked = Asked::default();
        let (mut one, mut other) = (Share::new(&asked, 2, 10), Share::new(&asked, 2, 0));
        assert_eq!(one.took(0, 9), None);
        assert_eq!(other.took(1, 5), Some(5));
        assert_eq!(one.took(1, 1), Some(15));
        other.gave(1);
        one.gave(1);
        assert_eq!((one.live(), other.live()), (9, 0));
        assert_eq!(other.took(0, 3), Some(13), "changes below the step are not reported");
        drop((one, other));
        assert_eq!((asked.total.load(Ordering::Relaxed), asked.peak()), (0, 15));
    }
}
