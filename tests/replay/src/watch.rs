//! The measurements of a round.

use crate::asked::Share;
use crate::times::nanos;
use crate::{Allocator, Trace};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Measures around the calls of one thread. Unused methods cost nothing.
pub(crate) trait Watch {
    fn allocating<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }

    fn freeing<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }

    fn took(&mut self, slot: u32, bytes: u64);

    fn gave(&mut self, slot: u32);
}

/// Measures nothing.
pub(crate) struct Nothing;

impl Watch for Nothing {
    fn took(&mut self, _: u32, _: u64) {}

    fn gave(&mut self, _: u32) {}
}

/// Counts the requested memory.
impl Watch for Share<'_> {
    fn took(&mut self, slot: u32, bytes: u64) {
        Share::took(self, slot, bytes);
    }

    fn gave(&mut self, slot: u32) {
        Share::gave(self, slot);
    }
}

/// The memory taken from the device at the peak of the requests. It is only read when the requests exceed their previous
/// maximum by a step: the driver may take long to report it.
#[derive(Debug)]
pub(crate) struct Samples {
    step: u64,
    limit: u64,
    next: AtomicU64,
    most: AtomicU64,
}

impl Samples {
    /// Creates it for requests of up to `limit`.
    pub(crate) fn new(limit: u64, step: u64) -> Self {
        Self { step, limit, next: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn look(&self, total: u64, allocator: &impl Allocator) {
        if total < self.next.load(Ordering::Relaxed) {
            return;
        }
        // The last step may be short, with no other above it.
        let next = match total {
            all if all >= self.limit => u64::MAX,
            part => part.saturating_add(self.step).min(self.limit),
        };
        self.next.fetch_max(next, Ordering::Relaxed);
        if let Ok(took) = allocator.device_took() {
            self.most.fetch_max(took.0, Ordering::Relaxed);
        }
    }
}

/// Measures the time of each call, and reads the device's memory in between.
pub(crate) struct Measuring<'a, A> {
    pub(crate) share: Share<'a>,
    pub(crate) samples: &'a Samples,
    pub(crate) allocator: &'a A,
    /// A callback for when this thread has its most memory, and that amount.
    pub(crate) at_peak: Option<&'a (dyn Fn() + Sync)>,
    pub(crate) peak: u64,
    pub(crate) times: Times,
}

/// The times of one thread's calls, in nanoseconds, including the cost of reading the clock.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) allocating: Vec<u64>,
    pub(crate) freeing: Vec<u64>,
}

impl Times {
    /// Reserves space for all times, so that no call waits for memory.
    pub(crate) fn for_all(trace: &Trace) -> Self {
        let room = |count: u64| Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        Self { allocating: room(trace.allocations), freeing: room(trace.frees) }
    }
}

fn timed<T>(times: &mut Vec<u64>, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = call();
    times.push(nanos(start.elapsed()));
    answer
}

impl<A: Allocator> Watch for Measuring<'_, A> {
    fn allocating<T>(&mut self, call: impl FnOnce() -> T) -> T {
        timed(&mut self.times.allocating, call)
    }

    fn freeing<T>(&mut self, call: impl FnOnce() -> T) -> T {
        timed(&mut self.times.freeing, call)
    }

    fn took(&mut self, slot: u32, bytes: u64) {
        if let Some(total) = self.share.took(slot, bytes) {
            self.samples.look(total, self.allocator);
        }
        if self.share.live() == self.peak
            && let Some(at_peak) = self.at_peak.take()
        {
            at_peak();
        }
    }

    fn gave(&mut self, slot: u32) {
        self.share.gave(slot);
    }
}
