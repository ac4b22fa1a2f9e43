//! How a pool came to be what it is: points in time, thinned out as they get more.

use crate::snapshot::Moment;
use gpu_vmm_sync::Instant;

/// So many points are kept at most; then every second one goes.
const MAX: usize = 2048;

#[derive(Debug)]
pub(crate) struct History {
    since: Instant,
    moments: Vec<Moment>,
    /// So many changes make a point.
    every: u32,
    left: u32,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), moments: Vec::new(), every: 1, left: 0 }
    }

    /// Seconds since the pool was made.
    pub(crate) fn now(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    /// Takes note of a change; now and then it becomes a point.
    pub(crate) fn note(&mut self, live: u64, pending: u64, held: u64) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
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
