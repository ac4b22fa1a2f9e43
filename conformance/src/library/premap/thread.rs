//! The thread on its own: the order of its work, and the work that it leaves alone.

use super::{Counted, ENOUGH, thread, until};
use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_premap::PremapThread;
use gpu_vmm_premap::extend::{PremapWork, Registration, Step};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

cases! { "premap":
    /// Work that has more to do is continued after the work of others.
    work_takes_turns,
    /// Work is done only when it is requested, and again only when it is requested again.
    only_what_is_asked_for,
    /// Work that is requested without waking the thread is still done.
    asked_for_without_waking,
    /// Work that has failed is left alone for a while, however often it is requested, and then tried again.
    failures_are_left_alone_for_a_while,
    /// Dropping a registration waits for the running step, and no step follows.
    dropping_waits_for_the_step,
    /// The thread itself can drop work whose last owner it is, together with the last handle of the thread.
    dropped_by_the_thread_itself,
    /// Work that is busy is tried again without a request, and the thread does other work meanwhile.
    busy_work_is_tried_again,
}

fn work_takes_turns<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let (_long, long) = Counted::ask(&thread, u32::MAX, Step::More);
    long.wait(10);
    let (_short, short) = Counted::ask(&thread, 1000, Step::More);
    short.wait(1000);
    let before = long.steps();
    long.wait(before + 10);
    assert_eq!(short.steps(), 1000);
}

fn only_what_is_asked_for<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let (asks, work) = Counted::ask(&thread, 1, Step::More);
    work.wait(1);
    let (_others, other) = Counted::ask(&thread, 50, Step::More);
    other.wait(50);
    assert_eq!(work.steps(), 1);
    asks.ask_now();
    work.wait(2);
}

fn asked_for_without_waking<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let (asks, work) = Counted::ask(&thread, u32::MAX, Step::Done);
    work.wait(1);
    for steps in 2..20 {
        asks.ask();
        work.wait(steps);
    }
}

fn failures_are_left_alone_for_a_while<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let start = Instant::now();
    let (asks, work) = Counted::ask(&thread, u32::MAX, Step::Failed);
    work.wait(1);
    while start.elapsed() < Duration::from_millis(100) {
        asks.ask_now();
        std::thread::sleep(Duration::from_micros(100));
    }
    // Pauses of 10, 20, 40 and 80 ms, each from the end of a step, while the work is requested all the time.
    let steps = work.steps();
    assert!((2..=4).contains(&steps), "{steps} in {:?}", start.elapsed());
    until(|| {
        asks.ask_now();
        work.steps() > steps
    });
}

/// Work whose step is slow.
#[derive(Debug, Default)]
struct Slow {
    begun: AtomicBool,
    over: AtomicBool,
}

impl PremapWork for Slow {
    fn step(&self) -> Step {
        self.over.store(false, Ordering::SeqCst);
        self.begun.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        self.over.store(true, Ordering::SeqCst);
        Step::More
    }
}

fn dropping_waits_for_the_step<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let slow = Arc::new(Slow::default());
    let weak: Weak<Slow> = Arc::downgrade(&slow);
    let registration = thread.register(weak);
    registration.ask_now();
    until(|| slow.begun.load(Ordering::SeqCst));
    drop(registration);
    assert!(slow.over.load(Ordering::SeqCst), "the step is still running");
    slow.begun.store(false, Ordering::SeqCst);
    let (_others, other) = Counted::ask(&thread, 20, Step::More);
    other.wait(20);
    assert!(!slow.begun.load(Ordering::SeqCst), "another step followed");
    assert_eq!(Arc::strong_count(&slow), 1, "the thread still holds the work");
}

/// Work that owns itself, its registration and its thread.
#[derive(Debug, Default)]
struct Own {
    itself: Mutex<Option<Arc<Self>>>,
    parts: Mutex<Option<(Registration, PremapThread)>>,
    gone: Arc<AtomicBool>,
}

impl PremapWork for Own {
    fn step(&self) -> Step {
        drop(self.itself.lock().unwrap().take());
        Step::More
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.parts.get_mut().unwrap().take());
        self.gone.store(true, Ordering::SeqCst);
    }
}

fn dropped_by_the_thread_itself<B: TestKit>(_: &Subject<B>) {
    let thread = PremapThread::start(ENOUGH).unwrap();
    let own = Arc::new(Own::default());
    let gone = Arc::clone(&own.gone);
    let weak: Weak<Own> = Arc::downgrade(&own);
    let registration = thread.register(weak);
    *own.itself.lock().unwrap() = Some(Arc::clone(&own));
    *own.parts.lock().unwrap() = Some((registration, thread));
    let parts = own.parts.lock().unwrap();
    parts.as_ref().unwrap().0.ask_now();
    drop(parts);
    drop(own);
    until(|| gone.load(Ordering::SeqCst));
}

fn busy_work_is_tried_again<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let (_busy, busy) = Counted::ask(&thread, 20, Step::Busy);
    let (_others, other) = Counted::ask(&thread, 20, Step::More);
    busy.wait(20);
    other.wait(20);
    let (_rest, rest) = Counted::ask(&thread, 50, Step::More);
    rest.wait(50);
    assert_eq!((busy.steps(), other.steps()), (20, 20));
}
