//! How much memory is premapped, and when none is.

use super::{by, check, grow, growing, is_ready, settled, thread, write};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_premap::{GrowingRegion, Premap, PremapThread};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicBool, Ordering};

cases! { "premap":
    /// The premap size is rounded up to the granularity, and a step is at most the premap size.
    rounded_to_the_granularity,
    /// With a premap size of zero nothing is premapped, and growth works.
    nothing_premapped,
    /// The memory that is mapped behind the end never exceeds the premap size, and reaches it when the region is idle.
    never_more_than_was_said,
    /// Nothing is premapped beyond the reservation, and no reservation is added for it.
    not_beyond_the_reservation,
    /// The regions of a thread together have at most its budget premapped, and memory that one region releases is available
    /// to another.
    within_the_budget,
    /// Shrinking releases all premapped memory, and nothing is premapped until the region grows again.
    shrinking_stops_it,
    /// If a handle crosses the size that a region shrinks to, the region ends at that size, and later growth uses the rest of
    /// the handle, and is premapped again.
    shrinking_into_a_step,
    /// Many regions can share one thread, and each is premapped.
    many_regions_have_one_thread,
}

fn rounded_to_the_granularity<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let of = |by, step| {
        let space = subject.space(16).build().unwrap();
        GrowingRegion::new(space, Premap { by, step }, &thread).premap()
    };
    let granules = |count| subject.granules(count);
    assert_eq!(of(granules(3) + Bytes(1), Bytes(0)), by(subject, 4, 1));
    assert_eq!(of(Bytes(1), granules(9)), by(subject, 1, 1));
    let most = of(Bytes(u64::MAX), Bytes(u64::MAX));
    assert_eq!((most.by, most.step), (most.step, subject.space(16).build().unwrap().reserved()));
}

fn nothing_premapped<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 0, 4), &thread);
    for granules in 1..4 {
        assert!(!is_ready(&grow(subject, &region, granules)));
        assert_eq!(settled(&region, &thread), Bytes::ZERO);
    }
    assert_eq!(thread.used(), Bytes::ZERO);
}

fn never_more_than_was_said<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = GrowingRegion::new(subject.space(64).build().unwrap(), by(subject, 7, 2), &thread);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let inside = region.lock().unwrap();
                let ahead = inside.end() - region.end();
                assert!(ahead <= subject.granules(7), "{ahead} ahead");
            }
        });
        for granules in (1..50).step_by(3) {
            grow(subject, &region, granules);
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The remaining room is too small for another step.
    let ahead = settled(&region, &thread);
    assert!(ahead >= subject.granules(6) && ahead <= subject.granules(7), "{ahead}");
    assert_eq!(thread.used(), ahead);
}

fn not_beyond_the_reservation<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let space = subject.space(16).build().unwrap();
    let reserved = space.reserved();
    let region = GrowingRegion::new(space, by(subject, 8, 3), &thread);
    region.grow_to(reserved - subject.granules(4)).unwrap();
    assert_eq!(settled(&region, &thread), subject.granules(4));
    assert!(is_ready(&region.grow_to(reserved).unwrap().outcome));
    assert_eq!(settled(&region, &thread), Bytes::ZERO);
    let inside = region.lock().unwrap();
    assert_eq!((inside.end(), inside.reserved(), inside.reservations().len()), (reserved, reserved, 1));
}

fn within_the_budget<B: TestKit>(subject: &Subject<B>) {
    let thread = PremapThread::start(subject.granules(5)).unwrap();
    let make = || GrowingRegion::new(subject.space(64).build().unwrap(), by(subject, 4, 2), &thread);
    let one = make();
    assert_eq!(settled(&one, &thread), subject.granules(4));
    let other = make();
    assert_eq!(settled(&other, &thread), Bytes::ZERO, "a step of two granules exceeded the budget by one");
    assert_eq!(thread.used(), subject.granules(4));
    grow(subject, &one, 2);
    settled(&one, &thread);
    grow(subject, &other, 1);
    settled(&other, &thread);
    let all = one.premapped() + other.premapped();
    assert_eq!((all, thread.used()), (subject.granules(4), subject.granules(4)));
    drop(one);
    assert_eq!(thread.used(), other.premapped());
    grow(subject, &other, 2);
    assert_eq!(settled(&other, &thread), subject.granules(4));
    drop(other);
    assert_eq!(thread.used(), Bytes::ZERO);
}

fn shrinking_stops_it<B: TestKit>(subject: &Subject<B>) {
    let (thread, free) = (thread(), subject.free_here());
    let region = growing(subject, by(subject, 4, 2), &thread);
    grow(subject, &region, 6);
    write(subject, &region, 1);
    assert_eq!(settled(&region, &thread), subject.granules(4));
    let shrunk = region.shrink_to(subject.granules(6), idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.granules(6), subject.granules(4)));
    assert_eq!((region.end(), settled(&region, &thread)), (subject.granules(6), Bytes::ZERO));
    check(subject, &region, subject.granules(6), 1);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    drop(region.lock().unwrap());
    assert_eq!((region.end(), settled(&region, &thread)), (Bytes::ZERO, Bytes::ZERO));
    if subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), free, "memory was not released");
    }
    assert_eq!(thread.used(), Bytes::ZERO);
    grow(subject, &region, 1);
    assert_eq!(settled(&region, &thread), subject.granules(4), "nothing was premapped after the next growth");
}

fn shrinking_into_a_step<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 4), &thread);
    grow(subject, &region, 3);
    write(subject, &region, 1);
    let shrunk = region.shrink_to(subject.granules(1) + Bytes(1), idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.granules(2), Bytes::ZERO));
    assert_eq!((region.end(), region.premapped()), (subject.granules(2), subject.granules(2)));
    assert!(is_ready(&grow(subject, &region, 4)));
    check(subject, &region, subject.granules(3), 1);
    assert_eq!(settled(&region, &thread), subject.granules(4), "nothing was premapped after the next growth");
}

fn many_regions_have_one_thread<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let regions: Vec<_> = (0..12).map(|_| growing(subject, by(subject, 2, 1), &thread)).collect();
    for granules in 1..=6 {
        for region in &regions {
            assert!(is_ready(&grow(subject, region, granules)));
        }
        for region in &regions {
            assert_eq!(settled(region, &thread), subject.granules(2));
        }
    }
    assert_eq!(thread.used(), subject.granules(24));
}
