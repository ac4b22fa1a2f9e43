//! Models of the thread, and of the state that it shares with its users.
#![allow(clippy::unwrap_used)] // tests
#![allow(unsafe_code)]

use crate::budget::Budget;
use crate::sync::models::explore;
use crate::thread::{PremapThread, PremapWork, Registration, Step};
use crate::{GrowingRegion, Premap};
use gpu_vmm_core::{Bytes, Region, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::{Arc, OnceLock, Weak};

/// A budget without a limit.
const ENOUGH: Bytes = Bytes(u64::MAX);

/// Work that reads the requested number and records it.
#[derive(Debug)]
struct Looks {
    wanted: AtomicU32,
    seen: Mutex<u32>,
    looked: Condvar,
    came: Step,
}

impl Looks {
    fn register(thread: &PremapThread, came: Step) -> (Registration, Arc<Self>) {
        let this = Self { wanted: AtomicU32::new(0), seen: Mutex::new(0), looked: Condvar::new(), came };
        let this = Arc::new(this);
        let weak: Weak<Self> = Arc::downgrade(&this);
        (thread.register(weak), this)
    }

    /// Sets the requested number and asks for the work.
    fn want(&self, asks: &Registration, much: u32) {
        self.wanted.store(much, Ordering::Relaxed);
        asks.ask();
    }

    /// Waits until that number was recorded: forever if a request was lost, which loom reports as a deadlock.
    fn wait(&self, much: u32) {
        let mut seen = self.seen.lock().unwrap();
        while *seen < much {
            seen = self.looked.wait(seen).unwrap();
        }
    }
}

impl PremapWork for Looks {
    fn step(&self) -> Step {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap();
        let is_new = wanted > *seen;
        *seen = wanted;
        self.looked.notify_one();
        // Work that is not done at the first try must be tried again.
        if is_new { self.came } else { Step::Done }
    }
}

/// A number that was set before asking is recorded, whether the thread works, naps or sleeps, and whether the work was queued.
#[test]
fn no_request_is_lost() {
    explore("no_request_is_lost", 3, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let (asks, work) = Looks::register(&thread, Step::Done);
        work.want(&asks, 1);
        work.want(&asks, 2);
        work.wait(2);
        work.want(&asks, 3);
        work.wait(3);
    });
}

/// The same from two threads, each with its own work.
#[test]
fn no_request_of_two_threads_is_lost() {
    explore("no_request_of_two_threads_is_lost", 2, || {
        let premap = PremapThread::start(ENOUGH).unwrap();
        let (asks, work) = Looks::register(&premap, Step::Done);
        let other_premap = premap.clone();
        let other = thread::spawn(move || {
            let (asks, work) = Looks::register(&other_premap, Step::Done);
            work.want(&asks, 1);
            work.wait(1);
        });
        work.want(&asks, 1);
        work.wait(1);
        other.join().unwrap();
    });
}

/// Work that is busy or has more to do is tried again without another request.
#[test]
fn what_is_not_done_is_tried_again() {
    for came in [Step::Busy, Step::More] {
        explore("what_is_not_done_is_tried_again", 3, move || {
            let thread = PremapThread::start(ENOUGH).unwrap();
            let (asks, work) = Again::register(&thread, came);
            asks.ask();
            work.wait();
        });
    }
}

/// Work that is done at the second try.
#[derive(Debug)]
struct Again {
    tries: Mutex<u32>,
    done: Condvar,
    came: Step,
}

impl Again {
    fn register(thread: &PremapThread, came: Step) -> (Registration, Arc<Self>) {
        let this = Arc::new(Self { tries: Mutex::new(0), done: Condvar::new(), came });
        let weak: Weak<Self> = Arc::downgrade(&this);
        (thread.register(weak), this)
    }

    fn wait(&self) {
        let mut tries = self.tries.lock().unwrap();
        while *tries < 2 {
            tries = self.done.wait(tries).unwrap();
        }
    }
}

impl PremapWork for Again {
    fn step(&self) -> Step {
        let mut tries = self.tries.lock().unwrap();
        *tries += 1;
        self.done.notify_one();
        if *tries < 2 { self.came } else { Step::Done }
    }
}

/// Work on data that another thread uses once the registration is dropped.
#[derive(Debug)]
struct Writes {
    to: UnsafeCell<u32>,
    steps: u32,
}

// SAFETY: loom checks that no two threads use the cell at once, and fails the test otherwise.
unsafe impl Sync for Writes {}

impl Writes {
    fn write(&self) -> u32 {
        // SAFETY: as above.
        self.to.with_mut(|to| unsafe {
            *to += 1;
            *to
        })
    }
}

impl PremapWork for Writes {
    fn step(&self) -> Step {
        if self.write() < self.steps { Step::More } else { Step::Done }
    }
}

/// No step runs when a registration has been dropped, and none begins after that.
#[test]
fn dropping_a_registration_waits_for_the_step() {
    explore("dropping_a_registration_waits_for_the_step", 3, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let work = Arc::new(Writes { to: UnsafeCell::new(0), steps: 3 });
        let weak: Weak<Writes> = Arc::downgrade(&work);
        let registration = thread.register(weak);
        registration.ask_now();
        drop(registration);
        let before = work.write();
        thread::yield_now();
        assert_eq!(work.write(), before + 1);
    });
}

/// Dropping the last owner of the thread ends it, whatever it is doing.
#[test]
fn the_thread_ends() {
    explore("the_thread_ends", 4, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let (asks, work) = Looks::register(&thread, Step::Done);
        drop(thread);
        work.want(&asks, 1);
    });
}

/// Threads together never take more than the limit, and returned amounts can be taken again.
#[test]
fn a_budget_is_never_exceeded() {
    explore("a_budget_is_never_exceeded", 4, || {
        let budget = Arc::new(Budget::new(Bytes(10)));
        let taker = |amount| {
            let budget = Arc::clone(&budget);
            thread::spawn(move || {
                let taken = budget.take(Bytes(amount));
                assert!(budget.used() <= Bytes(10));
                if taken {
                    budget.change(Bytes(amount), Bytes(1));
                }
                taken
            })
        };
        let (one, other) = (taker(6), taker(7));
        let taken = u64::from(one.join().unwrap()) + u64::from(other.join().unwrap());
        assert!(taken > 0 && budget.used() == Bytes(taken), "{taken} of {budget:?}");
        assert!(budget.take(Bytes(8)));
    });
}

/// One backend for all schedules: its own counters are not part of a model.
fn backend() -> &'static HostBackend {
    static BACKEND: OnceLock<HostBackend> = OnceLock::new();
    BACKEND.get_or_init(|| HostConfig::new().devices(1).memory(Bytes::mib(64)).open().unwrap())
}

/// A region of 8 granules with one granule as the step, and the size of a granule.
fn growing(thread: &PremapThread, by: u64) -> (GrowingRegion<HostBackend>, Bytes) {
    let region = Region::builder(backend()).reserve(Bytes::mib(16)).build().unwrap();
    let granule = region.granularity().bytes();
    (GrowingRegion::new(region, Premap { by: Bytes(by * granule.0), step: granule }, thread), granule)
}

/// Checks that a growing region reports the state of its region, and that the budget counts the premapped memory.
fn check(region: &GrowingRegion<HostBackend>, thread: &PremapThread) {
    let inside = region.lock().unwrap();
    let (end, premap) = (region.end(), region.premapped());
    assert_eq!(inside.end(), end + premap);
    assert_eq!(inside.mapped(), inside.end(), "no hole");
    assert!(premap <= region.premap().by);
    assert_eq!(thread.used(), premap);
}

/// Two threads grow a region while the premap thread maps memory for it: each call returns the requested size.
#[test]
fn growth_and_steps() {
    explore("growth_and_steps", 2, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let (region, granule) = growing(&thread, 1);
        let region = Arc::new(region);
        let other = Arc::clone(&region);
        let grows = thread::spawn(move || {
            let grown = other.grow_to(granule).unwrap();
            assert!(grown.growth.end >= granule && other.end() >= granule);
        });
        let two = Bytes(2 * granule.0);
        assert_eq!(region.grow_to(two).unwrap().growth.end, two);
        grows.join().unwrap();
        assert_eq!(region.end(), two);
        check(&region, &thread);
        drop(region);
        assert_eq!(thread.used(), Bytes::ZERO);
    });
}

/// Memory that a shrink releases is not given to growth at the same time: after both, the region has the end that it reports.
#[test]
fn growth_and_shrinking() {
    explore("growth_and_shrinking", 2, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let (region, granule) = growing(&thread, 1);
        let region = Arc::new(region);
        let other = Arc::clone(&region);
        let grows = thread::spawn(move || other.grow_to(granule).unwrap());
        let _ = region.shrink_to(Bytes::ZERO, WaitFor::all_devices()).unwrap();
        grows.join().unwrap();
        check(&region, &thread);
    });
}

/// While one thread holds the region, growth of another thread does not move the end, even with memory mapped behind it.
#[test]
fn growth_waits_for_who_has_the_region() {
    explore("growth_waits_for_who_has_the_region", 2, || {
        let thread = PremapThread::start(ENOUGH).unwrap();
        let (region, granule) = growing(&thread, 1);
        region.grow_to(granule).unwrap();
        let region = Arc::new(region);
        let other = Arc::clone(&region);
        let grows = thread::spawn(move || other.grow_to(Bytes(2 * granule.0)).unwrap());
        let inside = region.lock().unwrap();
        let end = region.end();
        thread::yield_now();
        assert_eq!(region.end(), end);
        drop(inside);
        grows.join().unwrap();
        assert_eq!(region.end(), Bytes(2 * granule.0));
    });
}
