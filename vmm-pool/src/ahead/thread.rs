//! The thread, and the work that it is asked for.
//!
//! Who asks must not pay for it: waking a thread that sleeps is a system call of some microseconds. So the thread naps
//! after its work, shortly at first and longer and longer, and finds what it has been asked for when it wakes by itself.
//! It is woken where that would be too late, and sleeps only when it has not been needed for a while.

use super::budget::Budget;
use super::{exit, lock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Bell, Instant, Mutex, Weak};
use gpu_vmm_core::{Bytes, DriverError, Error, Process, Result};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

/// A nap is this part of the time that there has been nothing to do.
const PART: u32 = 4;
/// The shortest nap.
const SHORTEST: Duration = Duration::from_micros(20);
/// The longest.
const LONGEST: Duration = Duration::from_millis(2);
/// After so long without anything to do the thread sleeps.
const AWAKE: Duration = Duration::from_secs(1);

/// What has failed is left alone for so long, and for twice as long each time it fails again.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Work that can be done before somebody needs it, by an [`AheadThread`].
pub trait Foresee: Debug + Send + Sync {
    /// Does a part of it, as small as makes sense: whoever needs the result of this step, or of another one's, waits for
    /// it. It is called by one thread at a time, without a lock of anybody's held. What fails in it is kept by whoever does
    /// the work, and told to whoever needs it.
    ///
    /// Where a lock is needed that users may hold for long, it is only to be tried for, and whoever has it
    /// [asks](Registration::ask) when it is free: the thread has other work as well.
    fn step(&self) -> Step;
}

/// What came of a part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing more to do until somebody asks.
    Done,
    /// It was done, and there is more.
    More,
    /// It could not be done. Until a pause is over, the work is left alone, however often somebody asks: 10 ms after a
    /// first failure, twice as long after each further one, and no longer than 1 s.
    Failed,
}

/// A thread that does what will be needed. Clones are the same thread; regions that have it keep it too. It ends when the
/// last of them is gone, which waits for the step that it is at.
///
/// It naps for at most 2 ms at a time, and sleeps once nothing was to do for a second. In a process that was forked it is
/// not there, and nothing waits for it.
#[derive(Clone, Debug)]
pub struct AheadThread(Arc<Owner>);

/// The last of its owners ends the thread.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

/// What the thread and its owners have in common.
#[derive(Debug)]
struct Shared {
    /// Each work is in it once at most, so that it is no longer than there are registrations.
    queue: Mutex<VecDeque<Arc<Work>>>,
    bell: Bell,
    ended: AtomicBool,
    budget: Budget,
}

/// Some work that is registered.
#[derive(Debug)]
struct Work {
    /// Who does it; not kept alive, since it has the registration.
    what: Weak<dyn Foresee>,
    /// Whether it is in the queue.
    asked: AtomicBool,
    /// Set before the turn is waited for: who has one step after the other to do takes the next turn before anybody who
    /// waits for it wakes.
    gone: AtomicBool,
    /// Whoever does it has this.
    turn: Mutex<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    failures: u32,
    not_before: Option<Instant>,
}

/// Work that a thread can be asked for. Dropping it waits for the step that the thread is at with it; after that there is
/// none. So no lock must be held then that the step waits for.
#[derive(Debug)]
pub struct Registration {
    owner: Arc<Owner>,
    work: Arc<Work>,
}

impl AheadThread {
    /// Starts the thread. All [regions](super::GrowingRegion) that have it may together have `budget` of memory mapped
    /// behind their ends.
    ///
    /// # Errors
    ///
    /// What the system answers where it has no thread.
    pub fn start(budget: Bytes) -> Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(VecDeque::new()),
            bell: Bell::new(),
            ended: AtomicBool::new(false),
            budget: Budget::new(budget),
        });
        let work = Arc::clone(&shared);
        let started = thread::Builder::new().name("gpu-vmm-ahead".to_owned()).spawn(move || work.run());
        let thread = started.map_err(|error| Error::Driver {
            operation: "start a thread",
            source: DriverError::system("start a thread", &error),
            context: "to map memory ahead".to_owned(),
        })?;
        Ok(Self(Arc::new(Owner { shared, thread: Some(thread), process: Process::current() })))
    }

    /// Adds work. It is not begun until it is [asked for](Registration::ask), and no reason for `what` to stay: the
    /// registration may be a part of it.
    #[must_use]
    pub fn register(&self, what: Weak<dyn Foresee>) -> Registration {
        exit::watch();
        let work = Work {
            what,
            asked: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            turn: Mutex::new(Turn::default()),
        };
        Registration { owner: Arc::clone(&self.0), work: Arc::new(work) }
    }

    /// How much memory the thread's regions have mapped behind their ends.
    #[must_use]
    pub fn used(&self) -> Bytes {
        self.budget().used()
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.0.shared.budget
    }
}

impl Registration {
    /// Asks for the work to be done some time soon: within 2 ms where the thread has had something to do in the last
    /// second, else when it is next woken. It is no system call, and takes some tens of nanoseconds.
    pub fn ask(&self) {
        // In a forked child the queue may be locked, by a thread that is not there.
        if self.owner.process.is_this() {
            self.owner.shared.push(&self.work);
        }
    }

    /// Asks for the work to be done now: wakes the thread, which takes some microseconds where it naps or sleeps.
    pub fn ask_now(&self) {
        self.ask();
        if self.owner.process.is_this()
            && let Some(thread) = &self.owner.thread
        {
            self.owner.shared.bell.ring(thread);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A step that drops what it works on, the last to have it, does not wait for itself.
        if self.owner.process.is_this() && !self.owner.is_current() {
            self.work.gone.store(true, Ordering::Release);
            drop(lock(&self.work.turn));
        }
    }
}

impl Owner {
    fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == thread::current().id())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let is_current = self.is_current();
        let Some(thread) = self.thread.take() else { return };
        if !self.process.is_this() {
            // What the system knows of the thread is gone in the child.
            std::mem::forget(thread);
            return;
        }
        self.shared.ended.store(true, Ordering::Release);
        self.shared.bell.ring(&thread);
        if !is_current {
            // A panic of a step's has been told already.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn push(&self, work: &Arc<Work>) {
        if !work.asked.swap(true, Ordering::AcqRel) {
            lock(&self.queue).push_back(Arc::clone(work));
        }
    }

    fn run(&self) {
        let mut idle = Instant::now();
        while !self.ended.load(Ordering::Acquire) {
            let next = lock(&self.queue).pop_front();
            if let Some(work) = next {
                self.step(&work);
                idle = Instant::now();
            } else {
                self.nap(idle.elapsed());
            }
        }
    }

    /// Waits a little where there was something to do lately, else until somebody wakes.
    fn nap(&self, idle: Duration) {
        if idle < AWAKE {
            self.bell.wait_for((idle / PART).clamp(SHORTEST, LONGEST));
        } else {
            self.bell.wait();
        }
    }

    /// One step, after which other work has its turn.
    fn step(&self, work: &Arc<Work>) {
        // From here on it can be asked for again.
        work.asked.store(false, Ordering::Release);
        let mut turn = lock(&work.turn);
        if work.gone.load(Ordering::Acquire) || turn.not_before.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let Some(what) = work.what.upgrade() else { return };
        let came = exit::unless_exiting(|| what.step()).unwrap_or(Step::Done);
        // Before the turn is over: whoever waits for that wants to be the last to have it.
        drop(what);
        *turn = turn.after(came);
        if came == Step::More {
            self.push(work);
        }
    }
}

impl Turn {
    fn after(&self, came: Step) -> Self {
        if came != Step::Failed {
            return Self::default();
        }
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        let not_before = Instant::now().checked_add(pause);
        Self { failures: self.failures.saturating_add(1), not_before }
    }
}
