//! Growth with premapped memory.

use super::{by, check, grow, growing, is_ready, settled, thread, write};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail, GrowthKind, Region};
use gpu_vmm_premap::{GrowingRegion, PremapOutcome};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "premap":
    /// Growth into premapped memory makes no driver call.
    a_premapped_step_calls_no_driver,
    /// Growth beyond the premapped memory maps the missing part itself, at the same address, and reports that.
    missing_step_maps_itself,
    /// Over many steps the address and the bytes stay the same, and every step finds its memory premapped.
    many_steps,
    /// Growth to a size that the region already has changes nothing.
    a_size_that_is_there_already,
    /// A size of zero, a size beyond the address space, and a size beyond a guarded reservation are refused.
    sizes_that_cannot_be,
    /// Growth beyond the reservation extends it, as in any region.
    beyond_the_reservation,
    /// Growth waits while another thread has the region locked, and reports that it waited.
    waits_for_the_region_lock,
    /// Threads that grow one region at the same time each get at least the size that they requested, and the end is the
    /// largest size.
    many_threads_grow_one_region,
}

fn a_premapped_step_calls_no_driver<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let space = Region::builder(&backend).on(subject.device).reserve(subject.granules(16)).build().unwrap();
    // While part of it is unused, there is no room for another step.
    let region = GrowingRegion::new(space, by(subject, 4, 4), &thread);
    assert_eq!(settled(&region, &thread), subject.granules(4));
    backend.fail(0, u64::MAX);
    for granules in 1..=3 {
        let before = region.end();
        let grown = region.grow_to(subject.granules(granules) - Bytes(1)).unwrap();
        assert!(is_ready(&grown.outcome), "{grown:?}");
        let growth = grown.growth;
        assert_eq!((growth.how, growth.address), (GrowthKind::Within, region.address()));
        assert_eq!((growth.added, growth.end), (subject.granules(1), before + subject.granules(1)));
        assert_eq!(region.end(), growth.end);
    }
    assert_eq!(backend.stop(), 0, "driver calls");
    let mut inside = region.lock().unwrap();
    inside.fill(Bytes(0), region.end(), 1).unwrap();
    assert_eq!(inside.end(), subject.granules(4));
}

fn missing_step_maps_itself<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 2, 2), &thread);
    let address = region.address();
    let grown = region.grow_to(subject.granules(7)).unwrap();
    assert!(matches!(grown.outcome, PremapOutcome::Not(None)), "{grown:?}");
    assert_eq!((grown.growth.added, grown.growth.address), (subject.granules(7), address));
    assert_eq!(region.end(), subject.granules(7));
    write(subject, &region, 3);
    check(subject, &region, subject.granules(7), 3);
    assert_eq!(settled(&region, &thread), subject.granules(2), "the region was not premapped again");
    assert!(is_ready(&grow(subject, &region, 9)));
}

fn many_steps<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 8, 2), &thread);
    let address = region.address();
    let mut ready = 0;
    for granules in 1..=64 {
        let from = region.end();
        ready += u32::from(is_ready(&grow(subject, &region, granules)));
        let length = subject.granules(1);
        subject.write(&mut region.lock().unwrap(), from, length, 5 + from.0 / 8);
        if granules % 4 == 0 {
            settled(&region, &thread);
        }
    }
    assert_eq!(region.address(), address);
    check(subject, &region, subject.granules(64), 5);
    assert_eq!(ready, 64, "steps that found their memory premapped");
}

fn a_size_that_is_there_already<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 2), &thread);
    grow(subject, &region, 3);
    let grown = region.grow_to(subject.granules(2)).unwrap();
    assert!(is_ready(&grown.outcome));
    assert_eq!((grown.growth.added, grown.growth.end), (Bytes::ZERO, subject.granules(3)));
    assert_eq!(region.end(), subject.granules(3));
}

fn sizes_that_cannot_be<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = GrowingRegion::new(subject.space(16).guarded().build().unwrap(), by(subject, 4, 2), &thread);
    settled(&region, &thread);
    let reserved = region.lock().unwrap().reserved();
    refused!(region.grow_to(Bytes(0)), Detail::ZeroSize);
    refused!(region.grow_to(Bytes(u64::MAX)), Detail::ExceedsAddressSpace { .. });
    refused!(region.grow_to(Bytes(1 << 50)), Detail::ExceedsAddressSpace { .. });
    refused!(region.grow_to(reserved + Bytes(1)), Detail::Guarded { .. });
    refused!(region.shrink_to(Bytes(1), idle()), Detail::OutOfRange { .. });
    assert_eq!((region.end(), region.premapped()), (Bytes::ZERO, subject.granules(4)));
}

fn beyond_the_reservation<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let at = gpu_vmm_core::Placement::Exact(subject.hole(16));
    let space = subject.region(2).at(at).extend_by(subject.units(4)).build().unwrap();
    let region = GrowingRegion::new(space, by(subject, 2, 2), &thread);
    let grown = region.grow_to(subject.units(3)).unwrap();
    assert_eq!((grown.growth.how, region.end()), (GrowthKind::Extended, subject.units(3)));
    write(subject, &region, 9);
    check(subject, &region, subject.units(3), 9);
    assert_eq!(settled(&region, &thread), subject.granules(2));
}

fn waits_for_the_region_lock<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 2), &thread);
    // A thread that comes after the unlock does not wait, hence several rounds.
    let region = &region;
    let waited = (0..100).any(|round| {
        std::thread::scope(|scope| {
            let inside = region.lock().unwrap();
            let target = region.end() + subject.granules(1);
            if target > inside.reserved() {
                panic!("no thread has waited in {round} rounds");
            }
            let other = scope.spawn(move || region.grow_to(target).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(region.end() < target, "growth does not wait for the region");
            drop(inside);
            let grown = other.join().unwrap();
            settled(region, &thread);
            assert!(!matches!(grown.outcome, PremapOutcome::Not(_)), "{grown:?}");
            matches!(grown.outcome, PremapOutcome::Waited)
        })
    });
    assert!(waited);
}

fn many_threads_grow_one_region<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 6, 2), &thread);
    std::thread::scope(|scope| {
        for number in 1..=6 {
            let region = &region;
            scope.spawn(move || {
                for granules in (number..=48).step_by(6) {
                    let wanted = subject.granules(granules);
                    let grown = region.grow_to(wanted).unwrap();
                    assert!(grown.growth.end >= wanted && region.end() >= wanted, "{grown:?}");
                    let mut bytes = [0; 8];
                    region.lock().unwrap().read(wanted - Bytes(8), &mut bytes).unwrap();
                }
            });
        }
    });
    assert_eq!(region.end(), subject.granules(48));
    settled(&region, &thread);
    let inside = region.lock().unwrap();
    assert_eq!(inside.mapped(), inside.end(), "the region has a hole");
    assert_eq!(inside.end(), subject.granules(48) + region.premapped());
}
