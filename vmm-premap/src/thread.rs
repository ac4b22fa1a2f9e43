//! The thread, and the work that it is asked for.
//!
//! Who asks must not pay for it: waking a thread that sleeps is a system call of some microseconds. So the thread naps
//! after its work, shortly at first and longer and longer, and finds what it has been asked for when it wakes by itself.
//! It is woken where that would be too late, and sleeps only when it has not been needed for a while. Whether it sleeps is
//! part of the queue, under the queue's lock: work that is queued is seen by the thread before it sleeps, or its caller
//! sees that the thread sleeps and wakes it.

use crate::budget::Budget;
use crate::{exit, lock};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Bytes, Detail, DriverError, Error, Operation, Result};
use gpu_vmm_sync::atomic::{AtomicBool, Ordering};
use gpu_vmm_sync::thread::{self, JoinHandle};
use gpu_vmm_sync::{Arc, Bell, Instant, Mutex, Weak};
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

/// Work that can be done before somebody needs it, by a [`PremapThread`].
pub trait PremapWork: Debug + Send + Sync {
    /// Does a part of it, as small as makes sense: whoever needs the result of this step, or of another one's, waits for
    /// it. It is called by one thread at a time, without a lock of anybody's held. What fails in it is kept by whoever does
    /// the work, and told to whoever needs it.
    ///
    /// Where a lock is needed that users may hold for long, it is only to be tried for, since the thread has other work as
    /// well. If it is held, the step is [`Step::Busy`]; or [`Step::Done`], if each holder [asks](Registration::ask) for the
    /// work after it has released the lock.
    fn step(&self) -> Step;
}

/// What came of a part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing more to do until it is asked for.
    Done,
    /// A lock that the step needs is held, and its holder does not ask for the work. It is tried again after a nap.
    Busy,
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
pub struct PremapThread(Arc<Owner>);

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
    queue: Mutex<Queue>,
    bell: Bell,
    ended: AtomicBool,
    budget: Budget,
}

/// What the thread has been asked for.
#[derive(Debug, Default)]
struct Queue {
    /// Each work is in it once at most, so that it is no longer than there are registrations.
    works: VecDeque<Arc<Work>>,
    /// Set by the thread when it finds no work and will sleep until it is woken.
    asleep: bool,
}

/// Some work that is registered.
#[derive(Debug)]
struct Work {
    /// Who does it; not kept alive, since it has the registration.
    what: Weak<dyn PremapWork>,
    /// Whether it is in the queue.
    asked: AtomicBool,
    /// Set before the turn is waited for: who has one step after the other to do takes the next turn before anybody who
    /// waits for it wakes.
    gone: AtomicBool,
    /// Whoever does it has this.
    turn: Mutex<Turn>,
}

#[derive(Clone, Copy, Debug, Default)]
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

impl PremapThread {
    /// Starts the thread. All [regions](crate::GrowingRegion) that have it may together have `budget` of memory mapped
    /// behind their ends.
    ///
    /// # Errors
    ///
    /// What the system answers where it has no thread.
    pub fn start(budget: Bytes) -> Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            bell: Bell::new(),
            ended: AtomicBool::new(false),
            budget: Budget::new(budget),
        });
        let work = Arc::clone(&shared);
        let started = thread::Builder::new().name("gpu-vmm-premap".to_owned()).spawn(move || work.run());
        let thread = started.map_err(|error| {
            Error::new(
                Operation::StartThread,
                Detail::Driver {
                    source: DriverError::system("start a thread", &error),
                    context: "to map memory ahead".to_owned(),
                },
            )
        })?;
        Ok(Self(Arc::new(Owner { shared, thread: Some(thread), process: Process::current() })))
    }

    /// Adds work. It is not begun until it is [asked for](Registration::ask), and no reason for `what` to stay: the
    /// registration may be a part of it.
    #[must_use]
    pub fn register(&self, what: Weak<dyn PremapWork>) -> Registration {
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

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.shared.budget
    }
}

impl Registration {
    /// Asks for the work to be done within about 2 ms. If the thread has had work in the last second, this is no system
    /// call and takes some tens of nanoseconds. Otherwise it wakes the thread, which takes some microseconds.
    pub fn ask(&self) {
        // In a forked child the queue may be locked, by a thread that is not there.
        if self.owner.process.is_this() && self.owner.shared.push(&self.work) {
            self.owner.wake();
        }
    }

    /// Asks for the work to be done now: wakes the thread, which takes some microseconds where it naps or sleeps.
    pub fn ask_now(&self) {
        if self.owner.process.is_this() {
            self.owner.shared.push(&self.work);
            self.owner.wake();
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
    fn wake(&self) {
        if let Some(thread) = &self.thread {
            self.shared.bell.ring(thread);
        }
    }

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
    /// Queues work, unless it is queued already. True if the thread sleeps and must be woken: nothing else will.
    fn push(&self, work: &Arc<Work>) -> bool {
        // If it is queued already, the thread's own swap sees this one, and all that its caller has done before.
        if work.asked.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut queue = lock(&self.queue);
        queue.works.push_back(Arc::clone(work));
        std::mem::take(&mut queue.asleep)
    }

    fn run(&self) {
        let mut idle = Instant::now();
        while !self.ended.load(Ordering::Acquire) {
            let next = lock(&self.queue).works.pop_front();
            let Some(work) = next else {
                self.rest(idle.elapsed());
                continue;
            };
            match self.step(&work) {
                // The first naps are short. They get longer while this is all that there is to do.
                Step::Busy => self.bell.wait_for(nap(idle.elapsed())),
                Step::Done | Step::More | Step::Failed => idle = Instant::now(),
            }
        }
    }

    /// Naps if there was work lately, else sleeps until the thread is woken.
    fn rest(&self, idle: Duration) {
        if idle < AWAKE {
            self.bell.wait_for(nap(idle));
        } else if self.falls_asleep() {
            self.bell.wait();
        }
    }

    /// True if nothing is queued. From then on, whatever is queued next wakes the thread.
    fn falls_asleep(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.asleep = queue.works.is_empty();
        queue.asleep
    }

    /// One step, after which other work has its turn.
    fn step(&self, work: &Arc<Work>) -> Step {
        // From here on it can be asked for again. A swap, since a store would not see what was done before asking for work
        // that was queued already.
        work.asked.swap(false, Ordering::AcqRel);
        let mut turn = lock(&work.turn);
        if work.gone.load(Ordering::Acquire) || turn.not_before.is_some_and(|at| Instant::now() < at) {
            return Step::Done;
        }
        let Some(what) = work.what.upgrade() else { return Step::Done };
        let came = exit::unless_exiting(|| what.step()).unwrap_or(Step::Done);
        // Before the turn is over: whoever waits for that wants to be the last to have it.
        drop(what);
        *turn = turn.after(came);
        if matches!(came, Step::More | Step::Busy) {
            // The thread is awake: it is this one.
            self.push(work);
        }
        came
    }
}

/// How long the thread naps when there has been nothing to do for a time.
fn nap(idle: Duration) -> Duration {
    (idle / PART).clamp(SHORTEST, LONGEST)
}

impl Turn {
    fn after(self, came: Step) -> Self {
        match came {
            // Nothing was tried.
            Step::Busy => return self,
            Step::Done | Step::More => return Self::default(),
            Step::Failed => {}
        }
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        let not_before = Instant::now().checked_add(pause);
        Self { failures: self.failures.saturating_add(1), not_before }
    }
}
