//! Changes to the region inside of a growing region, through its lock.

use super::{by, check, grow, growing, is_ready, settled, thread, write};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{BackingStore, Bytes, Detail, Operation, Placement, Region};
use gpu_vmm_premap::GrowingRegion;
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::panic::resume_unwind;
use std::sync::mpsc::channel;

cases! { "premap":
    /// Memory by which the locked region grows counts as premapped, and the growing region grows into it.
    grown_inside,
    /// If the locked region shrinks below the growing region's end, that end shrinks with it.
    emptied_inside,
    /// If the locked region moves, the growing region has the new address, and is premapped there.
    moved_inside,
    /// A suspended region is not premapped and refuses growth; after the resume it has its end and its bytes, and is
    /// premapped again.
    suspended_inside,
    /// A region that is already suspended when a growing region is made from it is not premapped.
    suspended_before,
    /// If a thread panics while it has the region locked, the region grows and is premapped as before.
    left_by_a_panic,
    /// If a step of the thread panics, the region grows without the thread, and nothing waits for it.
    without_its_thread,
}

fn grown_inside<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 2, 2), &thread);
    region.lock().unwrap().grow_to(subject.granules(9)).unwrap();
    assert_eq!((region.end(), region.premapped()), (Bytes::ZERO, subject.granules(9)));
    assert_eq!(thread.used(), subject.granules(9));
    assert!(is_ready(&grow(subject, &region, 9)));
    assert_eq!(settled(&region, &thread), subject.granules(2));
}

fn emptied_inside<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 2, 1), &thread);
    grow(subject, &region, 1);
    settled(&region, &thread);
    grow(subject, &region, 3);
    settled(&region, &thread);
    let mut inside = region.lock().unwrap();
    let _ = inside.shrink_to(subject.granules(1), idle()).unwrap();
    drop(inside);
    assert_eq!(region.end(), subject.granules(1));
    assert_eq!(settled(&region, &thread), subject.granules(2));
    assert!(is_ready(&grow(subject, &region, 3)));
    write(subject, &region, 4);
}

fn moved_inside<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let at = Placement::Exact(subject.hole(16));
    let region = GrowingRegion::new(subject.region(2).at(at).build().unwrap(), by(subject, 2, 2), &thread);
    region.grow_to(subject.unit()).unwrap();
    write(subject, &region, 2);
    let (before, end) = (region.address(), region.end());
    let behind = before + region.lock().unwrap().reserved();
    let _wall = subject.region(1).at(Placement::Exact(behind)).build().unwrap();
    let growth = region.lock().unwrap().grow_or_move(subject.units(3), idle()).unwrap();
    assert_ne!(growth.address, before);
    assert_eq!((region.address(), region.end()), (growth.address, end));
    assert!(is_ready(&region.grow_to(subject.units(3)).unwrap().outcome));
    check(subject, &region, end, 2);
    assert_eq!(settled(&region, &thread), subject.granules(2));
}

fn suspended_inside<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 2), &thread);
    grow(subject, &region, 3);
    write(subject, &region, 6);
    settled(&region, &thread);
    let store = BackingStore::pinned(&subject.backend, subject.granules(16)).unwrap();
    region.lock().unwrap().suspend(&store, idle()).unwrap();
    assert_eq!((region.end(), settled(&region, &thread)), (subject.granules(3), Bytes::ZERO));
    assert_eq!((thread.used(), region.lock().unwrap().mapped()), (Bytes::ZERO, Bytes::ZERO));
    refused!(region.grow_to(subject.granules(4)), Detail::Suspended { .. });
    refused!(region.shrink_to(Bytes(0), idle()), Detail::Suspended { .. });
    assert_eq!((region.end(), settled(&region, &thread)), (subject.granules(3), Bytes::ZERO));
    region.lock().unwrap().resume().unwrap();
    assert!(region.premapped() >= subject.granules(3), "the premapped memory was not restored");
    assert!(is_ready(&grow(subject, &region, 4)));
    check(subject, &region, subject.granules(3), 6);
    assert!(settled(&region, &thread) >= subject.granules(3));
}

fn suspended_before<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let mut space = subject.space(16).build().unwrap();
    space.grow_to(subject.granules(2)).unwrap();
    space.suspend(&BackingStore::nothing(), idle()).unwrap();
    let region = GrowingRegion::new(space, by(subject, 2, 2), &thread);
    assert_eq!(settled(&region, &thread), Bytes::ZERO);
    refused!(region.grow_to(subject.granules(4)), Detail::Suspended { .. });
    region.lock().unwrap().resume().unwrap();
    assert!(is_ready(&grow(subject, &region, 2)));
    assert_eq!(settled(&region, &thread), subject.granules(2));
}

fn left_by_a_panic<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 2), &thread);
    let panics = || {
        let _inside = region.lock().unwrap();
        resume_unwind(Box::new("while it has the region"))
    };
    std::thread::scope(|scope| scope.spawn(panics).join()).unwrap_err();
    assert!(is_ready(&grow(subject, &region, 2)));
    assert_eq!(settled(&region, &thread), subject.granules(4));
}

fn without_its_thread<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let backend = FaultInject::new(subject.backend.clone());
    let (panics, panicked) = channel();
    backend.during(Operation::CreateMemory, move || {
        panics.send(()).unwrap();
        resume_unwind(Box::new("in a step"))
    });
    let space = Region::builder(&backend).on(subject.device).reserve(subject.units(4)).build().unwrap();
    let region = GrowingRegion::new(space, by(subject, 4, 2), &thread);
    panicked.recv().unwrap();
    for count in 1..=4 {
        let grown = region.grow_to(subject.units(count)).unwrap();
        assert_eq!(grown.growth.end, subject.units(count));
        assert!(!is_ready(&grown.outcome), "memory was premapped by a thread that has ended");
    }
    region.lock().unwrap().write_pattern(subject.device, Bytes(0), subject.units(4), 3).unwrap();
    assert_eq!(region.lock().unwrap().count_wrong(subject.device, Bytes(0), subject.units(4), 3).unwrap(), 0);
}
