//! Growing regions, the thread that premaps their memory, and pools that use it.

mod bounded;
mod ends;
mod failing;
mod grows;
mod idle;
mod locked;
mod thread;

use crate::case::Case;
use crate::subject::Subject;
use gpu_vmm_core::{Backend, Bytes, Region};
use gpu_vmm_premap::extend::{PremapWork, Registration, Step};
use gpu_vmm_premap::{GrowingRegion, Premap, PremapOutcome, PremapThread};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [
        grows::cases(),
        bounded::cases(),
        locked::cases(),
        failing::cases(),
        idle::cases(),
        thread::cases(),
        ends::cases(),
    ]
    .concat()
}

/// Without a budget.
const ENOUGH: Bytes = Bytes(u64::MAX);

fn thread() -> PremapThread {
    PremapThread::start(ENOUGH).unwrap()
}

/// A premap size and a step in granules.
fn by<B: TestKit>(subject: &Subject<B>, by: u64, step: u64) -> Premap {
    Premap { by: subject.granules(by), step: subject.granules(step) }
}

/// A growing region with addresses for 64 granules, already premapped.
fn growing<B: TestKit>(subject: &Subject<B>, ahead: Premap, thread: &PremapThread) -> GrowingRegion<B> {
    let region = GrowingRegion::new(subject.space(64).build().unwrap(), ahead, thread);
    assert_eq!(settled(&region, thread), region.premap().by);
    region
}

/// Lets the thread do all requested work. Returns the premapped size.
pub(crate) fn settled<B: Backend>(region: &GrowingRegion<B>, thread: &PremapThread) -> Bytes {
    // More steps than any case needs; each step goes to the end of the queue.
    Counted::ask(thread, 80, Step::More).1.wait(80);
    region.premapped()
}

/// Whether growth found its memory premapped.
fn is_ready(outcome: &PremapOutcome) -> bool {
    matches!(outcome, PremapOutcome::Ready)
}

/// Grows to `granules` granules and checks the result.
#[track_caller]
fn grow<B: TestKit>(subject: &Subject<B>, region: &GrowingRegion<B>, granules: u64) -> PremapOutcome {
    let grown = region.grow_to(subject.granules(granules)).unwrap();
    assert_eq!((grown.growth.end, grown.growth.address), (subject.granules(granules), region.address()));
    grown.outcome
}

/// Writes a pattern to the part of a growing region that is in use.
fn write<B: TestKit>(subject: &Subject<B>, region: &GrowingRegion<B>, seed: u64) {
    subject.write(&mut *region.lock().unwrap(), Bytes(0), region.end(), seed);
}

fn check<B: TestKit>(subject: &Subject<B>, region: &GrowingRegion<B>, length: Bytes, seed: u64) {
    let inside: &Region<B> = &region.lock().unwrap();
    subject.check(inside, Bytes(0), length, seed);
}

/// Work that counts its steps.
#[derive(Debug)]
struct Counted {
    left: AtomicU32,
    steps: AtomicU32,
    came: Step,
}

impl Counted {
    /// Registers the work and requests it now. Each of the first `left - 1` steps returns `came`.
    fn ask(thread: &PremapThread, left: u32, came: Step) -> (Registration, Arc<Self>) {
        let this = Arc::new(Self { left: AtomicU32::new(left), steps: AtomicU32::new(0), came });
        let weak: Weak<Self> = Arc::downgrade(&this);
        let registration = thread.register(weak);
        registration.ask_now();
        (registration, this)
    }

    fn steps(&self) -> u32 {
        self.steps.load(Ordering::SeqCst)
    }

    /// Waits until there were `steps` steps.
    #[track_caller]
    fn wait(&self, steps: u32) {
        until(|| self.steps() >= steps);
    }
}

impl PremapWork for Counted {
    fn step(&self) -> Step {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 1 { self.came } else { Step::Done }
    }
}

/// Waits until a condition holds.
#[track_caller]
fn until(is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(30), "the condition does not hold after 30 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}
