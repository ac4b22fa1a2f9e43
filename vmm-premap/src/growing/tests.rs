//! Exact amounts on host memory. The steps are called by the tests, not by the thread, so that nothing depends on when it runs.
#![allow(clippy::unwrap_used)] // tests

use super::*;
use crate::thread::Step;
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

type Faulty = FaultInject<HostBackend>;

/// The granularity of the backend.
const UNIT: Bytes = Bytes::kib(64);

fn backend() -> Faulty {
    FaultInject::new(HostConfig::new().granularity(UNIT).memory(Bytes::mib(16)).open().unwrap())
}

fn space(backend: &Faulty, units: u64) -> Region<Faulty> {
    Region::builder(backend).reserve(UNIT * units).build().unwrap()
}

/// A growing region of 32 units that no thread premaps.
fn growing(backend: &Faulty, by: u64, step: u64, thread: &PremapThread) -> GrowingRegion<Faulty> {
    let premap = Premap { by: UNIT * by, step: UNIT * step };
    let shared = Arc::new(Shared::new(space(backend, 32), premap, thread));
    let nothing: Weak<Shared<Faulty>> = Weak::new();
    GrowingRegion { registration: thread.register(nothing), shared }
}

/// The number of calls that have created and mapped memory.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    create: u64,
    map: u64,
}

fn calls(backend: &Faulty) -> Calls {
    Calls { create: backend.made(Operation::CreateMemory), map: backend.made(Operation::Map) }
}

/// The end of the usable part, the premapped part, and the memory of the thread's regions, in units.
fn amounts(region: &GrowingRegion<Faulty>, thread: &PremapThread) -> [u64; 3] {
    [region.end(), region.premapped(), thread.used()].map(|amount| {
        assert!(amount.0.is_multiple_of(UNIT.0), "{amount}");
        amount.0 / UNIT.0
    })
}

#[test]
fn premapped_part_and_step_round_up() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT).unwrap());
    let most = Bytes(u64::MAX);
    for (by, step, expected) in [
        (Bytes(0), Bytes(0), [0, 0]),
        (Bytes(0), UNIT * 2, [0, 0]),
        (Bytes(1), Bytes(0), [1, 1]),
        (UNIT, UNIT, [1, 1]),
        (UNIT + Bytes(1), UNIT, [2, 1]),
        (UNIT * 3, Bytes(1), [3, 1]),
        (UNIT * 3, UNIT + Bytes(1), [3, 2]),
        (UNIT * 3, UNIT * 3, [3, 3]),
        (UNIT * 3, UNIT * 4, [3, 3]),
        (UNIT * 3, most, [3, 3]),
        (most, UNIT * 2, [8, 2]),
        (most, most, [8, 8]),
    ] {
        let shared = Shared::new(space(&backend, 8), Premap { by, step }, &thread);
        let expected = Premap { by: UNIT * expected[0], step: UNIT * expected[1] };
        assert_eq!(shared.premap(), expected, "of {by} by {step}");
    }
}

#[test]
fn a_plain_region_has_no_premapped_part() {
    let backend = FaultInject::new(HostConfig::new().without_virtual_memory().open().unwrap());
    let thread = PremapThread::start(UNIT).unwrap();
    let region = Region::builder(&backend).build().unwrap();
    let premap = Premap { by: Bytes::mib(4), step: Bytes::mib(2) };
    let shared = Shared::new(region, premap, &thread);
    assert_eq!(shared.premap(), Premap { by: Bytes::ZERO, step: Bytes::ZERO });
    assert_eq!(shared.step(), Step::Done);
    assert_eq!(shared.mapped(), Bytes::ZERO);
}

/// Its memory may be at another address after each growth.
#[test]
fn growing_plain_region_reports_its_copy() {
    let backend = FaultInject::new(HostConfig::new().without_virtual_memory().open().unwrap());
    let thread = PremapThread::start(UNIT).unwrap();
    let region = Region::builder(&backend).build().unwrap();
    let region = GrowingRegion::new(region, Premap { by: UNIT, step: UNIT }, &thread);
    for size in [UNIT, Bytes::mib(8)] {
        let growth = region.grow_to(size).unwrap().growth;
        let address = region.lock().unwrap().address();
        assert_eq!((growth.address, region.address()), (address, address));
        assert_eq!(growth.how, GrowthKind::Copied);
    }
}

#[test]
fn steps_map_handles_within_premapped_part() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let region = growing(&backend, 5, 2, &thread);
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::More, [0, 2, 2]));
    assert_eq!(calls(&backend), Calls { create: 1, map: 1 });
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::Done, [0, 4, 4]));
    assert_eq!(calls(&backend), Calls { create: 2, map: 2 });
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::Done, [0, 4, 4]));
    assert_eq!(calls(&backend), Calls { create: 2, map: 2 });
    // From now on there is room for exactly one step.
    region.grow_to(UNIT).unwrap();
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::Done, [1, 5, 5]));
    assert_eq!(calls(&backend), Calls { create: 3, map: 3 });
    let inside = region.lock().unwrap();
    assert_eq!((inside.end(), inside.mapped()), (UNIT * 6, UNIT * 6));
}

#[test]
fn regions_share_the_whole_budget() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 5).unwrap());
    let [one, other] = [3, 2].map(|by| growing(&backend, by, by, &thread));
    assert_eq!((one.shared.step(), amounts(&one, &thread)), (Step::Done, [0, 3, 3]));
    assert_eq!((other.shared.step(), amounts(&other, &thread)), (Step::Done, [0, 2, 5]));
    one.grow_to(UNIT * 2).unwrap();
    assert_eq!(amounts(&one, &thread), [2, 1, 3]);
    // A step of three units would exceed the budget by one.
    one.grow_to(UNIT * 3).unwrap();
    assert_eq!(amounts(&one, &thread), [3, 0, 2]);
    let more = growing(&backend, 4, 4, &thread);
    assert_eq!((more.shared.step(), amounts(&more, &thread)), (Step::Done, [0, 0, 2]));
    assert_eq!(calls(&backend), Calls { create: 2, map: 2 }, "a step over the budget called the driver");
    assert_eq!((one.shared.step(), amounts(&one, &thread)), (Step::Done, [3, 3, 5]));
    drop(other);
    assert_eq!(thread.used(), UNIT * 3);
    one.grow_to(UNIT * 4).unwrap();
    drop(one);
    assert_eq!(thread.used(), Bytes::ZERO);
}

/// What growth has reported: the end, the added size, and whether it mapped memory itself, in units.
fn grown(region: &GrowingRegion<Faulty>, size: Bytes) -> (u64, u64, bool) {
    let PremapGrowth { growth, outcome } = region.grow_to(size).unwrap();
    assert_eq!((growth.how, growth.address), (GrowthKind::Within, region.address()));
    assert_eq!((growth.end.0 % UNIT.0, growth.added.0 % UNIT.0), (0, 0));
    let maps = match outcome {
        PremapOutcome::Ready => Some(false),
        PremapOutcome::Not(None) => Some(true),
        PremapOutcome::Waited | PremapOutcome::Not(Some(_)) => None,
    };
    (growth.end.0 / UNIT.0, growth.added.0 / UNIT.0, maps.unwrap())
}

#[test]
fn growth_reports_what_it_has_added() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let region = growing(&backend, 4, 4, &thread);
    region.shared.step();
    let before = calls(&backend);
    assert_eq!(grown(&region, Bytes(1)), (1, 1, false));
    assert_eq!(grown(&region, UNIT), (1, 0, false));
    assert_eq!(grown(&region, UNIT + Bytes(1)), (2, 1, false));
    // A smaller size changes nothing.
    assert_eq!(grown(&region, Bytes(1)), (2, 0, false));
    assert_eq!(amounts(&region, &thread), [2, 2, 2]);
    assert_eq!(grown(&region, UNIT * 4), (4, 2, false));
    assert_eq!(amounts(&region, &thread), [4, 0, 0]);
    assert_eq!(calls(&backend), before, "growth into premapped memory called the driver");
    region.shared.step();
    assert_eq!(amounts(&region, &thread), [4, 4, 4]);
    // One byte more than is mapped: the rest is mapped by the call, which has only one unit to map.
    let before = calls(&backend);
    assert_eq!(grown(&region, UNIT * 8 + Bytes(1)), (9, 5, true));
    assert_eq!(calls(&backend), Calls { create: before.create + 1, map: before.map + 1 });
    assert_eq!(amounts(&region, &thread), [9, 0, 0]);
    assert_eq!(region.lock().unwrap().end(), UNIT * 9);
}

/// While a request waits for the lock, its holder may map more than is requested.
#[test]
fn self_mapping_growth_ends_as_requested() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let region = growing(&backend, 4, 4, &thread);
    region.lock().unwrap().grow_to(UNIT * 3).unwrap();
    // As if the holder had mapped it after the request has found too little.
    let target = region.shared.granularity.round_up(UNIT * 2);
    let mut marks = region.shared.marks();
    region.shared.set(&mut marks, Bytes::ZERO, UNIT, Bytes::ZERO);
    drop(marks);
    let grown = region.grow_slowly(UNIT * 2, target).unwrap();
    assert!(matches!(grown.outcome, PremapOutcome::Not(None)), "{grown:?}");
    assert_eq!((grown.growth.end, grown.growth.added), (UNIT * 2, UNIT * 2));
    assert_eq!(amounts(&region, &thread), [2, 1, 1]);
    // What another caller has mapped meanwhile is enough.
    let grown = region.grow_slowly(UNIT * 3, Some(UNIT * 3)).unwrap();
    assert!(matches!(grown.outcome, PremapOutcome::Waited), "{grown:?}");
    assert_eq!((grown.growth.end, grown.growth.added), (UNIT * 3, UNIT));
}

#[test]
fn shrinking_releases_only_whole_handles() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let region = growing(&backend, 4, 2, &thread);
    for units in [2, 4, 6] {
        region.shared.step();
        region.grow_to(UNIT * units).unwrap();
    }
    while region.shared.step() == Step::More {}
    assert_eq!(amounts(&region, &thread), [6, 4, 4]);
    let before = calls(&backend);
    let shrink = |size| region.shrink_to(size, WaitFor::all_devices());
    let error = shrink(UNIT * 6 + Bytes(1)).unwrap_err();
    assert_eq!(error.operation(), Operation::Shrink);
    let Detail::OutOfRange { range, limit } = error.detail() else { panic!("{error}") };
    assert_eq!((range.offset, range.length, *limit), (Bytes::ZERO, UNIT * 6 + Bytes(1), UNIT * 6));
    assert_eq!(amounts(&region, &thread), [6, 4, 4], "a refused call changed the region");
    // The size is in the second handle, which stays.
    let shrunk = shrink(UNIT * 2 + Bytes(1)).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (UNIT * 3, UNIT * 6));
    assert_eq!(amounts(&region, &thread), [3, 1, 1]);
    assert_eq!(region.shared.step(), Step::Done, "the thread maps again what was released");
    assert_eq!(calls(&backend), before);
    // To its own size.
    let shrunk = shrink(UNIT * 3).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (UNIT * 3, Bytes::ZERO));
    // Growth to the size that it has is no growth: the thread still maps nothing.
    assert_eq!(grown(&region, UNIT * 3), (3, 0, false));
    assert_eq!((region.shared.step(), calls(&backend)), (Step::Done, before));
    assert_eq!(grown(&region, UNIT * 4), (4, 1, false));
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::More, [4, 2, 2]));
    let shrunk = shrink(Bytes::ZERO).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (Bytes::ZERO, UNIT * 6));
    assert_eq!((amounts(&region, &thread), backend.live().handles), ([0, 0, 0], 0));
}

#[test]
fn locked_region_neither_grows_nor_premaps() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let region = growing(&backend, 4, 2, &thread);
    region.shared.step();
    region.grow_to(UNIT).unwrap();
    let mut inside = region.lock().unwrap();
    let before = calls(&backend);
    assert_eq!((region.shared.step(), calls(&backend)), (Step::Done, before));
    assert!(region.shared.take(UNIT * 2).is_none(), "memory that the lock's owner may unmap was taken");
    // The size that it has is no growth.
    let (end, _) = region.shared.take(UNIT).unwrap();
    assert_eq!(end, UNIT);
    inside.grow_to(UNIT * 7).unwrap();
    assert_eq!(amounts(&region, &thread), [1, 1, 1]);
    drop(inside);
    assert_eq!(amounts(&region, &thread), [1, 6, 6]);
    // More than the thread may map: it waits until the region has grown into it, but for one step.
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::Done, [1, 6, 6]));
    region.grow_to(UNIT * 5).unwrap();
    assert_eq!((region.shared.step(), amounts(&region, &thread)), (Step::Done, [5, 4, 4]));
    let mut inside = region.lock().unwrap();
    let _ = inside.shrink_to(UNIT * 2, WaitFor::all_devices()).unwrap();
    drop(inside);
    assert_eq!(amounts(&region, &thread), [2, 0, 0]);
}

/// Counts its steps.
#[derive(Debug, Default)]
struct Counts(AtomicU32);

impl PremapWork for Counts {
    fn step(&self) -> Step {
        self.0.fetch_add(1, Ordering::Relaxed);
        Step::Done
    }
}

/// Sends the name of the thread that runs its step.
#[derive(Debug)]
struct Says(std::sync::Mutex<std::sync::mpsc::Sender<Option<String>>>);

impl PremapWork for Says {
    fn step(&self) -> Step {
        let name = std::thread::current().name().map(str::to_owned);
        self.0.lock().unwrap().send(name).unwrap();
        Step::Done
    }
}

/// Works come in the order of their requests, so all earlier ones are done when the last one has sent.
#[test]
fn growth_asks_thread_if_step_fits() {
    let (backend, thread) = (backend(), PremapThread::start(UNIT * 100).unwrap());
    let mut region = growing(&backend, 6, 2, &thread);
    while region.shared.step() == Step::More {}
    let counts = Arc::new(Counts::default());
    let weak: Weak<Counts> = Arc::downgrade(&counts);
    region.registration = thread.register(weak);
    let (sender, says) = channel();
    let last: Arc<dyn PremapWork> = Arc::new(Says(std::sync::Mutex::new(sender)));
    let last_asks = thread.register(Arc::downgrade(&last));
    let requests_made = || {
        last_asks.ask();
        assert_eq!(says.recv().unwrap().as_deref(), Some("gpu-vmm-premap"));
        counts.0.swap(0, Ordering::Relaxed)
    };
    assert_eq!(amounts(&region, &thread), [0, 6, 6]);
    // The end, the premapped part that is left, and the requests that the growth makes.
    for (end, left, requests) in [(1, 5, 0), (2, 4, 1), (4, 2, 1), (6, 0, 1)] {
        region.grow_to(UNIT * end).unwrap();
        assert_eq!((amounts(&region, &thread)[1], requests_made()), (left, requests));
    }
    // Growth that maps for itself asks, and so does the end of a lock.
    region.grow_to(UNIT * 7).unwrap();
    assert_eq!(requests_made(), 1);
    drop(region.lock().unwrap());
    assert_eq!(requests_made(), 1);
    let _ = region.shrink_to(UNIT * 7, WaitFor::all_devices()).unwrap();
    assert_eq!(requests_made(), 1);
}

/// The thread grows a region with its budget; a plain region would move under the work that uses it.
#[test]
fn swapped_in_plain_region_never_premaps() {
    let (ahead, plain) = (UNIT * 8, HostConfig::new().granularity(UNIT).memory(Bytes::mib(16)));
    let thread = PremapThread::start(ahead).unwrap();
    let without = FaultInject::new(plain.without_virtual_memory().open().unwrap());
    let region = growing(&backend(), 8, 4, &thread);
    assert!(matches!(region.shared.step(), Step::More));
    let mut plain = Region::builder(&without).build().unwrap();
    plain.grow_to(UNIT * 2).unwrap();
    let address = plain.address();
    std::mem::swap(&mut *region.lock().unwrap(), &mut plain);
    assert_eq!((region.address(), region.end()), (address, Bytes::ZERO));
    region.grow_to(UNIT).unwrap();
    for _ in 0..3 {
        assert!(matches!(region.shared.step(), Step::Done));
    }
    assert_eq!((region.address(), region.shared.mapped()), (address, UNIT * 2));
    // A step of the program's own may move it.
    assert_eq!(region.grow_to(UNIT * 3).unwrap().growth.address, region.address());
}
