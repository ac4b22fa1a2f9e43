//! The thread and its queue of work.
//!
//! Callers must not pay for their requests: waking a sleeping thread is a system call of some microseconds. So the thread naps
//! after its work, first for a short time and then longer and longer, and finds new requests when a nap ends. A caller wakes it
//! only if the end of the nap would be too late. The thread sleeps only after a second without work. The flag that it sleeps is
//! part of the queue, under the queue's lock: either the thread sees queued work before it sleeps, or the caller sees that the
//! thread sleeps and wakes it.

use crate::budget::Budget;
use crate::exit;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Bell, Instant, Mutex, Weak, lock};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Bytes, Detail, DriverError, Error, Operation, Result};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

/// The duration of a nap, as this fraction of the time without work.
const PART: u32 = 4;
/// The shortest nap.
const SHORTEST: Duration = Duration::from_micros(20);
/// The longest nap.
const LONGEST: Duration = Duration::from_millis(2);
/// The time without work after which the thread sleeps.
const AWAKE: Duration = Duration::from_secs(1);

/// The pause after a failed step. Each further failure doubles it.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Work that a [`PremapThread`] does before its result is needed.
pub trait PremapWork: Debug + Send + Sync {
    /// Does one step of the work, as small as is reasonable, because callers wait for a step to end. Only one thread at a time
    /// calls it, and it holds no lock of the caller. The implementation keeps errors and reports them to its users.
    ///
    /// If a step needs a lock that users may hold for long, it must only try the lock, because the thread has other work as well.
    /// If the lock is held, it returns [`Step::Busy`], or [`Step::Done`] if each holder [asks](Registration::ask) for the work
    /// after it has released the lock.
    fn step(&self) -> Step;
}

/// The result of one step of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is left to do until the next request.
    Done,
    /// A lock that the step needs is held, and its holder does not ask for the work. The thread tries again after a nap.
    Busy,
    /// The step was done, and more work is left.
    More,
    /// The step failed. The thread ignores the work, even if it is requested, until a pause is over: 10 ms after the first
    /// failure, twice as long after each further one, at most 1 s.
    Failed,
}

/// A thread that does work before its result is needed.
///
/// Clones are the same thread, and each region that uses it keeps it alive. Dropping the last owner waits for the current step
/// and ends the thread.
///
/// It naps for at most 2 ms at a time, and sleeps after a second without work. It does not exist in a forked child, where nothing
/// waits for it.
#[derive(Clone, Debug)]
pub struct PremapThread(Arc<Owner>);

/// The owner of the thread; its drop ends the thread.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

/// The state that the thread and its owners share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    bell: Bell,
    ended: AtomicBool,
    budget: Budget,
}

/// The requested work.
#[derive(Debug, Default)]
struct Queue {
    /// Contains each work at most once, so it is never longer than the number of registrations.
    works: VecDeque<Arc<Work>>,
    /// Set by the thread when it finds no work and is about to sleep until it is woken.
    asleep: bool,
}

/// A registered piece of work.
#[derive(Debug)]
struct Work {
    /// The implementation. A weak reference, since it owns the registration.
    what: Weak<dyn PremapWork>,
    /// True if the work is in the queue.
    is_queued: AtomicBool,
    /// Set before waiting for the turn: a thread with one step after the other takes the next turn before a waiting thread wakes.
    gone: AtomicBool,
    /// Locked while a step runs.
    turn: Mutex<Backoff>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
}

/// Work that can be requested from a thread. Dropping it waits for the step that the thread runs for it; no step begins after
/// that. So the caller must not hold a lock for which the step waits.
#[derive(Debug)]
pub struct Registration {
    owner: Arc<Owner>,
    work: Arc<Work>,
}

impl PremapThread {
    /// Starts a thread that does registered work. All [regions](crate::GrowingRegion) that use it may together have up to `budget`
    /// of memory mapped behind their ends.
    ///
    /// # Errors
    ///
    /// The system's error if it cannot start a thread.
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
                    context: "to map memory in advance".to_owned(),
                },
            )
        })?;
        Ok(Self(Arc::new(Owner { shared, thread: Some(thread), process: Process::current() })))
    }

    /// Registers work. The work begins with the first [request](Registration::ask). The thread keeps only a weak reference to
    /// `what`, so the registration may be a part of it.
    #[must_use]
    pub fn register(&self, what: Weak<dyn PremapWork>) -> Registration {
        exit::watch();
        let work = Work {
            what,
            is_queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            turn: Mutex::new(Backoff::default()),
        };
        Registration { owner: Arc::clone(&self.0), work: Arc::new(work) }
    }

    /// Returns the size of the memory that the thread's regions have mapped behind their ends.
    #[must_use]
    pub fn used(&self) -> Bytes {
        self.budget().used()
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.shared.budget
    }
}

impl Registration {
    /// Requests the work within about 2 ms.
    ///
    /// If the thread has had work in the last second, this makes no system call and takes some tens of nanoseconds. Otherwise it
    /// wakes the thread, which takes some microseconds.
    pub fn ask(&self) {
        // In a forked child a thread that does not exist there may have locked the queue.
        if self.owner.process.is_this() && self.owner.shared.push(&self.work) {
            self.owner.wake();
        }
    }

    /// Requests the work now. If the thread naps or sleeps, this wakes it, which takes some microseconds.
    pub fn ask_now(&self) {
        if self.owner.process.is_this() {
            self.owner.shared.push(&self.work);
            self.owner.wake();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A step that drops the last reference to its own work must not wait for itself.
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
            // In the child the system has no record of the thread.
            std::mem::forget(thread);
            return;
        }
        self.shared.ended.store(true, Ordering::Release);
        self.shared.bell.ring(&thread);
        if !is_current {
            // A panic in a step was reported when it occurred.
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Queues work unless it is queued already. Returns true if the thread sleeps and must be woken, which nothing else does.
    fn push(&self, work: &Arc<Work>) -> bool {
        // If the work is queued already, the thread's own swap sees this one, and everything that the caller did before it.
        if work.is_queued.swap(true, Ordering::AcqRel) {
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
                // The first naps are short. They get longer while this is the only work.
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

    /// Returns true if nothing is queued. From then on, the next request wakes the thread.
    fn falls_asleep(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.asleep = queue.works.is_empty();
        queue.asleep
    }

    /// Runs one step, after which other work has its turn.
    fn step(&self, work: &Arc<Work>) -> Step {
        // From here on the work can be requested again. It must be a swap: a store would not see what a caller did before it
        // requested work that was queued already.
        work.is_queued.swap(false, Ordering::AcqRel);
        let mut turn = lock(&work.turn);
        if work.gone.load(Ordering::Acquire) || turn.not_before.is_some_and(|at| Instant::now() < at) {
            return Step::Done;
        }
        // The work is dropped before the turn ends, because the thread that waits for it must be the last owner, and inside of the
        // gate: if this thread is the last owner after all, dropping the work calls a driver.
        let step = || work.what.upgrade().map_or(Step::Done, |what| what.step());
        let came = exit::unless_exiting(step).unwrap_or(Step::Done);
        *turn = turn.after(came);
        if matches!(came, Step::More | Step::Busy) {
            // No wake is needed: this thread is awake.
            self.push(work);
        }
        came
    }
}

/// The length of a nap after a time without work.
fn nap(idle: Duration) -> Duration {
    (idle / PART).clamp(SHORTEST, LONGEST)
}

impl Backoff {
    fn after(self, came: Step) -> Self {
        match came {
            // No step was tried.
            Step::Busy => return self,
            Step::Done | Step::More => return Self::default(),
            Step::Failed => {}
        }
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        let not_before = Instant::now().checked_add(pause);
        Self { failures: self.failures.saturating_add(1), not_before }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used)] // tests
mod tests {
    use super::*;

    #[test]
    fn naps_get_longer_up_to_a_limit() {
        let naps = [0, 4, 1000].map(|idle| nap(Duration::from_millis(idle)));
        assert_eq!(naps, [SHORTEST, Duration::from_millis(1), Duration::from_millis(2)]);
    }

    #[test]
    fn pauses_double_until_step_succeeds() {
        let failed = |turn: Backoff, milliseconds| {
            let (pause, began) = (Duration::from_millis(milliseconds), Instant::now());
            let turn = turn.after(Step::Failed);
            let is_right = |at| at >= began + pause && at <= Instant::now() + pause;
            assert!(turn.not_before.is_some_and(is_right), "{turn:?}, and not {milliseconds} ms");
            turn
        };
        let pauses = [10, 20, 40, 80, 160, 320, 640, 1000].into_iter().chain([1000; 60]);
        let last = pauses.fold(Backoff::default(), failed);
        // No step was tried if the work was busy.
        let busy = last.after(Step::Busy);
        assert_eq!((busy.failures, busy.not_before), (last.failures, last.not_before));
        for came in [Step::Done, Step::More] {
            assert!(last.after(came).not_before.is_none());
            failed(last.after(came), 10);
        }
    }

    /// Notes its number, and has the given results, one after the other.
    #[derive(Debug)]
    struct Notes(u32, std::sync::Mutex<Vec<Step>>, Arc<std::sync::Mutex<Vec<u32>>>);

    impl PremapWork for Notes {
        fn step(&self) -> Step {
            self.2.lock().unwrap().push(self.0);
            self.1.lock().unwrap().pop().unwrap_or(Step::Done)
        }
    }

    /// Drops the last reference to itself on the thread, and notes whether the process could have ended meanwhile.
    #[derive(Debug)]
    struct Ends(Arc<std::sync::Mutex<Option<Arc<Self>>>>, std::sync::mpsc::Sender<bool>);

    impl PremapWork for Ends {
        fn step(&self) -> Step {
            drop(self.0.lock().unwrap().take());
            Step::Done
        }
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            self.1.send(exit::is_working()).unwrap();
        }
    }

    #[test]
    fn exit_waits_for_dropped_work() {
        let thread = PremapThread::start(Bytes::ZERO).unwrap();
        let (noted, notes) = std::sync::mpsc::channel();
        let owner = Arc::new(std::sync::Mutex::new(None));
        let work = Arc::new(Ends(Arc::clone(&owner), noted));
        let weak = Arc::downgrade(&work);
        *owner.lock().unwrap() = Some(work);
        let registration = thread.register(weak);
        registration.ask();
        assert!(notes.recv().unwrap(), "the process may end while the thread drops its work");
    }

    /// Holds the thread until its sender is dropped.
    #[derive(Debug)]
    struct Holds(std::sync::mpsc::Sender<()>, std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl PremapWork for Holds {
        fn step(&self) -> Step {
            // The second step is the last work.
            self.0.send(()).unwrap();
            let _ended = self.1.lock().unwrap().recv();
            Step::Done
        }
    }

    #[test]
    fn works_run_in_request_order() {
        let thread = PremapThread::start(Bytes::ZERO).unwrap();
        let noted: Arc<std::sync::Mutex<Vec<u32>>> = Arc::default();
        let work = |number, steps| -> Arc<dyn PremapWork> {
            Arc::new(Notes(number, std::sync::Mutex::new(steps), Arc::clone(&noted)))
        };
        let mut works = vec![work(0, vec![Step::More]), work(1, vec![]), work(2, vec![]), work(3, vec![])];
        let mut asks: Vec<_> = works.iter().map(|work| thread.register(Arc::downgrade(work))).collect();
        let (began, begins) = std::sync::mpsc::channel();
        let (release, held) = std::sync::mpsc::channel();
        let holds: Arc<dyn PremapWork> = Arc::new(Holds(began, std::sync::Mutex::new(held)));
        let hold = thread.register(Arc::downgrade(&holds));
        // Dropped before the registration, which waits for the step.
        let ends = release;
        hold.ask();
        begins.recv().unwrap();
        // The thread is held: these wait in its queue. The third is dropped there, and the fourth has no work any more.
        for number in [0, 1, 0, 2, 3, 1] {
            asks[number].ask();
        }
        drop(asks.remove(2));
        drop(works.pop());
        hold.ask();
        ends.send(()).unwrap();
        begins.recv().unwrap();
        // Work with more to do goes to the end of the queue, behind the one that holds the thread again.
        assert_eq!(*noted.lock().unwrap(), [0, 1]);
        hold.ask();
        ends.send(()).unwrap();
        begins.recv().unwrap();
        assert_eq!(*noted.lock().unwrap(), [0, 1, 0]);
    }
}
