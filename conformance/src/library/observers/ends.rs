//! The end of a region, which cannot be refused, and forked children.
#![allow(unsafe_code)] // regions that no work uses end without waiting

use crate::case::cases;
use crate::fork_server::Ended;
use crate::library::fork::{first_wrong, forked};
use crate::library::registrar::{Change, Registrar, Reply};
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{
    Backend, BackingEffect, BackingOutcome, BackingStore, Bytes, OffsetRange, Operation, PhysicalMemory,
    Properties, Region,
};
use gpu_vmm_testkit::forked::is_forked;
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "observers":
    /// Dropping, closing and discarding a region report the removal of its memory once, whether or not the observer agrees.
    ends,
    /// A region without memory ends without a report: an empty one, and a suspended one, whose removal was reported.
    ends_without_memory,
    /// If the end of a region fails and some memory stays mapped, its observer learns that; if the second try succeeds, it learns
    /// that instead.
    failing_ends,
    /// A region dropped during a capture is announced when it is dropped, and reported when its memory is released.
    ends_during_captures,
    /// If memory that a region releases later stays mapped, its observer learns that.
    failing_later_ends,
    /// A forked child calls no observer, whatever it does with the region.
    forked_children,
}

fn region<B: Backend>(backend: &B, device: gpu_vmm_core::DeviceId, unit: Bytes) -> Region<B> {
    let mut region = Region::builder(backend).on(device).reserve(unit).build().unwrap();
    region.grow_to(unit).unwrap();
    region
}

/// The end of a region of one unit.
fn ending<B: Backend>(region: &Region<B>) -> Change {
    Change {
        operation: Operation::FreeReservation,
        effect: BackingEffect::Removed,
        address: region.address(),
        parts: vec![OffsetRange { offset: Bytes(0), length: region.end() }],
    }
}

fn ends<B: TestKit>(subject: &Subject<B>) {
    let ways: [fn(Region<B>); 4] = [
        drop,
        |region| region.close(idle()).unwrap(),
        // SAFETY: no work uses the region.
        |region| unsafe { region.discard() }.unwrap(),
        |region| {
            let backend = region.backend().clone();
            region.release_later();
            backend.deferred().collect(&backend).unwrap();
        },
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for reply in [Reply::Agree, Reply::Refuse, Reply::PanicBefore] {
            let (mut region, registrar) =
                (region(&subject.backend, subject.device, subject.unit()), Registrar::default());
            let other = Registrar::default();
            registrar.reply(reply);
            region.on_backing_change(registrar.clone());
            region.on_backing_change(other.clone());
            let right = [(ending(&region), BackingOutcome::Changed)];
            way(region);
            for registrar in [registrar, other] {
                assert_eq!(registrar.changes("the end"), right, "way {number}, {reply:?}");
            }
        }
    }
}

fn ends_without_memory<B: TestKit>(subject: &Subject<B>) {
    let registrar = Registrar::default();
    let mut empty = subject.region(1).build().unwrap();
    empty.on_backing_change(registrar.clone());
    empty.close(idle()).unwrap();
    let mut suspended = region(&subject.backend, subject.device, subject.unit());
    suspended.suspend(&BackingStore::nothing(), idle()).unwrap();
    suspended.on_backing_change(registrar.clone());
    drop(suspended);
    assert_eq!(registrar.calls(), []);
}

fn failing_ends<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let ways: [fn(Region<FaultInject<B>>); 2] = [drop, |region| drop(region.close(idle()))];
    let mut outcomes = Vec::new();
    for (way, count) in ways.into_iter().flat_map(|way| [(way, 1), (way, 64)]) {
        for first in 0.. {
            let (mut region, registrar) =
                (region(&backend, subject.device, subject.unit()), Registrar::default());
            region.on_backing_change(registrar.clone());
            let right = ending(&region);
            backend.fail(first, count);
            way(region);
            let calls = backend.stop();
            let changes = registrar.changes("the end");
            // The failure of the destructor.
            subject.backend.drop_log().take_last();
            let is_left = backend.live().mappings > 0;
            // SAFETY: the region is gone, and no work uses it.
            unsafe { backend.reclaim() }.unwrap();
            let outcome = if is_left { BackingOutcome::Poisoned } else { BackingOutcome::Changed };
            assert_eq!(changes, [(right, outcome)], "{count} calls from {first} on");
            outcomes.push(outcome);
            if calls <= first {
                break;
            }
        }
    }
    for outcome in [BackingOutcome::Poisoned, BackingOutcome::Changed] {
        assert!(outcomes.contains(&outcome), "{outcomes:?}");
    }
}

fn ends_during_captures<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let ways: [fn(Region<FaultInject<B>>); 3] =
        [drop, |region| drop(region.close(idle()).unwrap_err()), Region::release_later];
    for way in ways {
        let (mut region, registrar) =
            (region(&backend, subject.device, subject.unit()), Registrar::default());
        region.on_backing_change(registrar.clone());
        let right = ending(&region);
        backend.capture_on(subject.device, true);
        way(region);
        assert_eq!(registrar.calls(), [(right.clone(), None)], "the memory is still mapped");
        backend.capture_on(subject.device, false);
        backend.deferred().collect(&backend).unwrap();
        assert_eq!(registrar.calls(), [(right, Some(BackingOutcome::Changed))], "the memory was released");
    }
}

/// Memory that no device has access to is unmapped at once.
fn failing_later_ends<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let unit = subject.unit();
    let mut region = Region::builder(&backend).on(subject.device).reserve(unit).build().unwrap();
    let memory = PhysicalMemory::create(&backend, unit, Properties::on(subject.device)).unwrap();
    region.map(Bytes(0), &memory).unwrap();
    drop(memory);
    let registrar = Registrar::default();
    region.on_backing_change(registrar.clone());
    let right = ending(&region);
    backend.fail_calls(&[Operation::Unmap]);
    region.release_later();
    backend.stop();
    assert_eq!(registrar.changes("the end"), [(right, BackingOutcome::Poisoned)]);
    let logged = subject.backend.drop_log().take_last().expect("the failure is logged");
    assert_eq!(logged.operation(), Operation::Unmap, "{logged}");
    // SAFETY: the region is gone, and no work uses it.
    unsafe { backend.reclaim() }.unwrap();
}

fn forked_children<B: TestKit>(subject: &Subject<B>) {
    let (mut one, registrar) =
        (region(&subject.backend, subject.device, subject.unit()), Registrar::default());
    one.on_backing_change(registrar.clone());
    let mut other = region(&subject.backend, subject.device, subject.unit());
    other.on_backing_change(registrar.clone());
    let mut other = Some(other);
    let unit = subject.unit();
    let ended = forked(|| {
        let unmapped = is_forked(one.unmap(Bytes(0), unit, idle()));
        let suspended = is_forked(one.suspend(&BackingStore::nothing(), idle()));
        let closed = is_forked(other.take().expect("taken once").close(idle()));
        first_wrong(&[unmapped, suspended, closed, registrar.calls().is_empty()])
    });
    assert_eq!(ended, Ended::Exit(0));
    assert_eq!(registrar.calls(), []);
}
