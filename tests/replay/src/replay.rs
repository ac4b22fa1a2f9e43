//! All threads and all rounds.

use crate::asked::Asked;
use crate::report::{Outcome, Round};
use crate::round::Signs;
use crate::times::{cost_of_asking, nanos, summary};
use crate::watch::{Samples, Times};
use crate::worker::{Answer, Kind, Passed, Shared};
use crate::{Allocator, ReplayError, Trace};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Requests are counted in steps of this fraction of the largest possible total.
const STEPS: u64 = 4096;

/// How often the progress is reported.
const TICK: Duration = Duration::from_millis(250);

/// Settings of a replay.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The number of threads, each of which replays the whole trace; at least 1.
    pub threads: usize,
    /// The number of rounds, at least 1. One more round measures the time of each call.
    pub rounds: u32,
    /// A callback for the progress.
    pub progress: &'a dyn Fn(Progress),
    /// A callback for the last round, when the first thread has allocated most.
    pub at_peak: &'a (dyn Fn() + Sync),
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threads, rounds, .. } = self;
        f.debug_struct("Options").field("threads", threads).field("rounds", rounds).finish_non_exhaustive()
    }
}

impl Default for Options<'_> {
    /// Returns settings for one thread, a cold round and a warm one.
    fn default() -> Self {
        Self { threads: 1, rounds: 2, progress: &|_| {}, at_peak: &|| {} }
    }
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The round, counted from 1.
    pub round: u32,
    /// The number of rounds, including the one for the time of each call.
    pub of: u32,
    /// The number of events that all threads have finished in this round.
    pub done: u64,
    /// The number of events in a round.
    pub events: u64,
}

/// Replays a trace, and returns the results. After each round, outside of the timing, it frees the blocks that the trace
/// leaves.
///
/// # Errors
///
/// The error of the allocator, with the failed allocation. All threads stop then, and free their blocks.
pub fn replay<A: Allocator>(
    trace: &Trace,
    allocator: &A,
    options: Options<'_>,
) -> Result<Outcome, ReplayError> {
    allocator.device_took()?; // fails early if the driver cannot report it
    let threads = options.threads.max(1);
    let limit = trace.peak.saturating_mul(threads as u64);
    let step = limit / STEPS;
    let shared = Shared {
        trace,
        allocator,
        threads,
        asked: Asked::default(),
        samples: Samples::new(limit, step),
        step: if threads == 1 { 0 } else { step / threads as u64 },
        signs: Signs::default(),
        gate: Barrier::new(threads),
        at_peak: options.at_peak,
    };
    thread::scope(|scope| {
        let (tell, told) = channel();
        let mut workers = Vec::with_capacity(threads);
        for thread in 0..threads {
            let ((go, gone), tell, shared) = (channel(), tell.clone(), &shared);
            thread::Builder::new()
                .name(format!("replay {thread}"))
                .spawn_scoped(scope, move || shared.work(thread, &gone, &tell))
                .map_err(|error| ReplayError::NoThread(thread, error))?;
            workers.push(go);
        }
        Crew { shared: &shared, workers, told, options }.rounds()
    })
}

/// The threads, from the view of the thread that starts their rounds.
struct Crew<'a, A> {
    shared: &'a Shared<'a, A>,
    workers: Vec<Sender<Kind>>,
    told: Receiver<Answer>,
    options: Options<'a>,
}

impl<A: Allocator> Crew<'_, A> {
    fn rounds(&self) -> Result<Outcome, ReplayError> {
        let rounds = self.options.rounds.max(1);
        let mut calls = 0;
        let cold = self.whole(1, &mut calls)?;
        let mut warm = None;
        for round in 2..=rounds {
            warm = Some(self.whole(round, &mut calls)?);
        }
        let cost = cost_of_asking();
        let mut times = Times::default();
        for passed in self.round(Kind::Each, rounds + 1)? {
            times.allocating.extend(passed.times.allocating);
            times.freeing.extend(passed.times.freeing);
        }
        Ok(self.outcome(rounds, cold, warm, times, cost))
    }

    /// Runs a round that is timed as a whole.
    fn whole(&self, number: u32, calls: &mut u64) -> Result<Round, ReplayError> {
        let passed = self.round(Kind::Whole, number)?;
        let start = passed.iter().map(|passed| passed.start).min();
        let end = passed.iter().map(|passed| passed.end).max();
        let total = end.zip(start).map_or(Duration::ZERO, |(end, start)| end.duration_since(start));
        let (before, held) = (*calls, self.shared.allocator.held());
        *calls = self.shared.allocator.driver_calls();
        Ok(Round {
            total_ns: nanos(total),
            driver_calls: *calls - before,
            held: held.map(|held| held.now.0),
            peak_held: held.map(|held| held.peak.0),
        })
    }

    /// Starts a round on all threads, waits for all, and returns the first error that is not a consequence of another.
    fn round(&self, kind: Kind, number: u32) -> Result<Vec<Passed>, ReplayError> {
        let signs = &self.shared.signs;
        signs.done.store(0, Ordering::Relaxed);
        for (thread, worker) in self.workers.iter().enumerate() {
            worker.send(kind).map_err(|_| ReplayError::Panicked(thread))?;
        }
        let (mut passed, mut failed) = (Vec::new(), None);
        for _ in &self.workers {
            let answer: Answer = loop {
                match self.told.recv_timeout(TICK) {
                    Ok(answer) => break answer,
                    Err(RecvTimeoutError::Timeout) => self.tell(number),
                    Err(RecvTimeoutError::Disconnected) => return Err(ReplayError::Stopped),
                }
            };
            match answer {
                Ok(one) => passed.push(one),
                Err(error) => match failed {
                    None | Some(ReplayError::Stopped) => failed = Some(error),
                    Some(_) => {}
                },
            }
        }
        self.tell(number);
        failed.map_or(Ok(passed), Err)
    }

    fn tell(&self, round: u32) {
        let shared = self.shared;
        (self.options.progress)(Progress {
            round,
            of: self.options.rounds.max(1) + 1,
            done: shared.signs.done.load(Ordering::Relaxed),
            events: shared.trace.events.len() as u64 * shared.threads as u64,
        });
    }

    fn outcome(&self, rounds: u32, cold: Round, warm: Option<Round>, times: Times, cost: u64) -> Outcome {
        let Shared { trace, allocator, threads, asked, samples, .. } = self.shared;
        let peak_asked = if *threads == 1 { trace.peak } else { asked.peak() };
        let device_took = samples.most();
        let peak_held = allocator.held().map_or(device_took, |held| held.peak.0);
        let operations = (trace.allocations + trace.frees) as f64 * *threads as f64;
        let last = warm.as_ref().unwrap_or(&cold).total_ns.max(1);
        Outcome {
            threads: *threads,
            rounds,
            allocations: trace.allocations,
            frees: trace.frees,
            freed_for_later: trace.freed_for_later(),
            streams: trace.streams(),
            peak_asked,
            peak_held,
            ratio: peak_held as f64 / peak_asked.max(1) as f64,
            device_took,
            driver_calls: cold.driver_calls,
            alloc_ns: summary(times.allocating, cost),
            free_ns: summary(times.freeing, cost),
            timer_ns: cost,
            cold,
            warm,
            operations_per_second: operations * 1e9 / last as f64,
        }
    }
}
