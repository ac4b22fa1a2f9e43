//! The run of a program, by one or several threads, with checks against the bound.

use super::bound::{Amounts, Settings};
use super::model::Model;
use super::state::{Run, Violation, lock};
use super::worker::Worker;
use super::{Program, Work};
use gpu_vmm_core::{Backend, BackingStore, Bytes};
use gpu_vmm_pool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// The number of steps between two checks of everything, and of all checks with several threads.
const BARRIER: u64 = 1000;

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After this number of steps, over all threads.
    Steps(u64),
    /// At this time.
    Until(Instant),
}

/// The result of a run without violation.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The number of steps.
    pub steps: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The largest sum of live bytes and of bytes whose work was not done.
    pub load: u64,
    /// What the pool used at most.
    pub used: Amounts,
    /// What it may have used.
    pub bound: Amounts,
}

/// Runs a program on a pool that no other code uses.
///
/// # Errors
///
/// The first promise that the pool does not keep.
pub fn run<B: Backend, W: Work>(
    program: &Program,
    pool: &Pool<B>,
    work: &W,
    limit: Limit,
) -> Result<Report, Violation> {
    let threads = program.threads.max(1);
    let settings = Settings {
        page: pool.usage().page,
        streams: program.streams.max(1) as u64,
        threads: threads as u64,
        kinds: if program.kinds { 2 } else { 1 },
    };
    let run = Run {
        program,
        pool,
        work,
        store: BackingStore::nothing(),
        model: Mutex::new(Model::new(settings)),
        violation: Mutex::new(None),
        stops: AtomicBool::new(false),
        over: AtomicBool::new(false),
        steps: AtomicU64::new(0),
        used: Mutex::default(),
        budget: AtomicU64::new(program.budget),
        next_tag: AtomicU64::new(0),
    };
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let (run, barrier) = (&run, &barrier);
            scope.spawn(move || run.thread(thread, limit, barrier));
        }
        run.thread(0, limit, &barrier);
    });
    if let Some(violation) = lock(&run.violation).take() {
        return Err(violation);
    }
    let mut model = run.model();
    let (used, bound) = (*lock(&run.used), model.bound());
    let steps = run.steps.load(Ordering::Relaxed);
    let allocations = pool.kinds().iter().map(|(_, stats)| stats.allocations).sum();
    Ok(Report { steps, allocations, load: model.peak(), used, bound })
}

impl<B: Backend, W: Work> Run<'_, B, W> {
    /// Makes the steps of one thread.
    fn thread(&self, thread: usize, limit: Limit, barrier: &Barrier) {
        let mut worker = match Worker::new(self, thread) {
            Ok(worker) => Some(worker),
            Err(error) => {
                self.unexpected("tag", &error);
                None
            }
        };
        loop {
            barrier.wait();
            if thread == 0 {
                let is_over = match limit {
                    Limit::Steps(steps) => self.steps.load(Ordering::Relaxed) >= steps,
                    Limit::Until(time) => Instant::now() >= time,
                };
                self.over.store(is_over || self.stops(), Ordering::Relaxed);
            }
            barrier.wait();
            // Changes between the two barriers alone, so that all threads leave together.
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            if let Some(own) = &mut worker
                && catch_unwind(AssertUnwindSafe(|| self.some_steps(own, limit))).is_err()
            {
                self.violate("a call panicked".to_owned());
                // What it has left may be of any state.
                std::mem::forget(worker.take());
            }
            barrier.wait();
            if thread == 0 && !self.stops() {
                self.check(true);
            }
        }
        if let Some(worker) = worker {
            worker.end(self);
        }
    }

    /// Makes the steps of one thread up to the next barrier. With one thread, checks the pool after steps.
    fn some_steps(&self, worker: &mut Worker<B>, limit: Limit) {
        for step in 0..BARRIER {
            // On a GPU, where each step of some programs maps memory, all steps up to the barrier can take minutes.
            if self.stops() || matches!(limit, Limit::Until(time) if Instant::now() >= time) {
                return;
            }
            worker.step(self);
            self.steps.fetch_add(1, Ordering::Relaxed);
            if self.program.threads <= 1 && step % self.program.check.max(1) == 0 {
                self.check(false);
            }
        }
    }

    /// Compares what the pool uses with the bound. Queries change nothing of what the pool does later.
    fn check(&self, all: bool) {
        let mut used = Amounts { events: self.work.events(), ..Amounts::default() };
        let kinds = self.pool.kinds();
        for (_, stats) in &kinds {
            used.mapped += stats.mapped;
            used.held += stats.held;
            used.reserved += stats.reserved;
        }
        // Threads may change the budget and what the pool holds meanwhile, if there are several.
        let budget = self.budget.load(Ordering::Relaxed);
        if self.program.kinds && !self.program.budgets && used.held > budget {
            self.violate(format!("the kinds hold {} and may hold {budget}", used.held));
        }
        for (memory, _) in kinds.iter().filter(|_| all) {
            let spaces =
                self.pool.with_memory(*memory).map(|pool| pool.snapshot().spaces).unwrap_or_default();
            used.records += spaces.iter().map(|space| space.blocks.len() as u64).sum::<u64>();
        }
        let mut model = self.model();
        let (bound, load, live) = (model.bound(), model.peak(), model.live);
        drop(model);
        let rows = [
            ("mapped", used.mapped, bound.mapped),
            ("held", used.held, bound.held),
            ("reserved", used.reserved, bound.reserved),
            ("events", used.events, bound.events),
            ("records", used.records, bound.records),
        ];
        for (name, used, bound) in rows.iter().filter(|(_, used, bound)| used > bound) {
            let (load, live) = (Bytes(load), Bytes(live));
            self.violate(format!(
                "{name} is {used} and may be {bound} after a load of {load}, of which {live} are live now; {kinds:?}"
            ));
        }
        let mut most = lock(&self.used);
        *most = Amounts {
            mapped: most.mapped.max(used.mapped),
            held: most.held.max(used.held),
            reserved: most.reserved.max(used.reserved),
            events: most.events.max(used.events),
            records: most.records.max(used.records),
        };
    }
}
