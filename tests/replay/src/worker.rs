//! One thread, through all rounds: a pool may keep a cache for each thread.

use crate::asked::{Asked, Share};
use crate::round::{Pass, Signs};
use crate::watch::{Measuring, Nothing, Samples, Times};
use crate::{Allocator, ReplayError, Trace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// The purpose of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is timed as a whole.
    Whole,
    /// Each call is timed.
    Each,
}

/// The result of a thread's round.
pub(crate) type Answer = Result<Passed, ReplayError>;

pub(crate) struct Passed {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) times: Times,
}

/// The data that all threads share.
pub(crate) struct Shared<'a, A> {
    pub(crate) trace: &'a Trace,
    pub(crate) allocator: &'a A,
    pub(crate) threads: usize,
    pub(crate) asked: Asked,
    pub(crate) samples: Samples,
    /// The change of the requests from which on it is counted.
    pub(crate) step: u64,
    pub(crate) signs: Signs,
    pub(crate) gate: Barrier,
    pub(crate) at_peak: &'a (dyn Fn() + Sync),
}

impl<A: Allocator> Shared<'_, A> {
    /// Runs the rounds that `told` orders, until its sender is dropped.
    pub(crate) fn work(&self, thread: usize, told: &Receiver<Kind>, tell: &Sender<Answer>) {
        while let Ok(kind) = told.recv() {
            let answer = catch_unwind(AssertUnwindSafe(|| self.round(thread, kind)))
                .unwrap_or(Err(ReplayError::Panicked(thread)))
                .map_err(|error| self.named(thread, error));
            self.signs.stop.fetch_or(answer.is_err(), Ordering::Relaxed);
            if tell.send(answer).is_err() {
                return;
            }
        }
    }

    fn round(&self, thread: usize, kind: Kind) -> Result<Passed, ReplayError> {
        let pass = Pass::new(self.trace, self.allocator, &self.signs);
        let share = || Share::new(&self.asked, self.trace.slots, self.step);
        let mut times = Times::default();
        let (start, end) = match kind {
            Kind::Whole if self.threads == 1 => {
                self.gate.wait();
                pass.run(&mut Nothing)
            }
            Kind::Whole => {
                let mut share = share();
                self.gate.wait();
                pass.run(&mut share)
            }
            Kind::Each => {
                let mut watch = Measuring {
                    share: share(),
                    samples: &self.samples,
                    allocator: self.allocator,
                    at_peak: (thread == 0).then_some(self.at_peak),
                    peak: self.trace.peak,
                    times: Times::for_all(self.trace),
                };
                self.gate.wait();
                let passed = pass.run(&mut watch);
                times = watch.times;
                passed
            }
        }?;
        Ok(Passed { start, end, times })
    }

    /// Adds the thread's number to an error, if there are several threads.
    fn named(&self, number: usize, mut error: ReplayError) -> ReplayError {
        if let ReplayError::Allocate { thread, .. } = &mut error {
            *thread = (self.threads > 1).then_some(number);
        }
        error
    }
}
