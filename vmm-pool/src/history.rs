//! The history of a pool: points in time, which are thinned out as their number grows.

use crate::snapshot::Moment;
use gpu_vmm_premap::sync::Instant;

/// The most points that are kept. At this number every second point is dropped.
const MAX: usize = 2048;

#[derive(Debug)]
pub(crate) struct History {
    since: Instant,
    moments: Vec<Moment>,
    /// The number of changes per point.
    every: u32,
    left: u32,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), moments: Vec::new(), every: 1, left: 0 }
    }

    /// Returns the seconds since the pool was created.
    pub(crate) fn now(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    /// Counts a change, and records a point for one in `every` changes.
    #[inline]
    pub(crate) fn note(&mut self, live: u64, pending: u64, held: u64) {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.record(live, pending, held),
        }
    }

    /// Records a point.
    #[inline(never)]
    fn record(&mut self, live: u64, pending: u64, held: u64) {
        self.left = self.every - 1;
        if self.moments.len() == MAX {
            let mut keep = false;
            self.moments.retain(|_| {
                keep = !keep;
                keep
            });
            self.every = self.every.saturating_mul(2);
        }
        self.moments.push(Moment { at: self.now(), live, pending, held });
    }

    pub(crate) fn moments(&self) -> &[Moment] {
        &self.moments
    }
}
