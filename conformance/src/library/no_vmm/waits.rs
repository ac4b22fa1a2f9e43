//! Work, captures and observers while a region moves.

use super::{filled, grow};
use crate::case::cases;
use crate::library::captures::Announced;
use crate::library::flights::start;
use crate::library::registrar::{Registrar, Reply};
use crate::library::tools::{idle, streams_idle};
use crate::subject::Subject;
use gpu_vmm_core::{BackingEffect, BackingOutcome, Bytes, Detail, OffsetRange};
use gpu_vmm_testkit::TestKit;

cases! { "no_vmm":
    /// Growth waits for the work on the old memory, and its result is in the new memory.
    growth_waits_for_work,
    /// Growth that waits for a stream waits for that stream's work.
    growth_waits_for_a_stream,
    /// Shrinking waits for the work on the memory, also to zero.
    shrinking_waits_for_work,
    /// Dropping a region waits for the work on its memory.
    dropping_waits_for_work,
    /// While a capture is announced, a region neither grows nor shrinks, and a dropped region is kept until it can be freed.
    captures_are_not_disturbed,
    /// Observers are told of each move and of the new address, and can refuse it.
    observers_know_the_new_address,
}

/// The seed of the work.
const AFTER: u64 = 1 << 40;

fn growth_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let flight = start(subject, &region, Bytes(0), AFTER);
    grow(&mut region, subject.units(2));
    assert!(flight.is_done().unwrap());
    subject.check(&region, Bytes(0), subject.unit(), AFTER);
}

fn growth_waits_for_a_stream<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.grow_or_move(subject.units(2), streams_idle(&[flight.stream()])).unwrap();
    assert!(flight.is_done().unwrap());
    subject.check(&region, Bytes(0), subject.unit(), AFTER);
}

fn shrinking_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    grow(&mut region, subject.units(2));
    for size in [subject.unit(), Bytes(0)] {
        let flight = start(subject, &region, Bytes(0), AFTER);
        let _ = region.shrink_to(size, idle()).unwrap();
        assert!(flight.is_done().unwrap());
        if !size.is_zero() {
            subject.check(&region, Bytes(0), size, AFTER);
        }
    }
}

fn dropping_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let region = filled(subject, 1);
    let flight = start(subject, &region, Bytes(0), AFTER);
    drop(region);
    assert!(flight.is_done().unwrap());
}

fn captures_are_not_disturbed<B: TestKit>(subject: &Subject<B>) {
    let (mut region, dropped) = (filled(subject, 1), filled(subject, 2));
    let (address, deferred) = (region.address(), subject.backend.deferred());
    let free = subject.free_here();
    {
        let _announced = Announced::new(&subject.backend);
        let answers = [
            region.grow_to(subject.units(2)).map(drop),
            region.grow_or_move(subject.units(2), idle()).map(drop),
            region.shrink_to(Bytes(0), idle()).map(drop),
        ];
        for error in answers.map(Result::unwrap_err) {
            assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
        }
        assert_eq!((region.address(), region.end()), (address, subject.unit()));
        drop(dropped);
        assert_eq!((deferred.kept(), subject.free_here()), (subject.unit(), free));
        // A region without memory has no work to wait for.
        let mut new = subject.region(1).build().unwrap();
        new.grow_to(subject.unit()).unwrap();
        new.release_later();
    }
    assert_eq!(deferred.collect(&subject.backend).unwrap(), subject.units(2));
    assert!(subject.free_here() > free);
    subject.check(&region, Bytes(0), subject.unit(), 1);
    grow(&mut region, subject.units(2));
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn observers_know_the_new_address<B: TestKit>(subject: &Subject<B>) {
    let registrar = Registrar::default();
    let mut region = subject.region(1).build().unwrap();
    region.on_backing_change(registrar.clone());
    region.grow_to(subject.unit()).unwrap();
    assert!(registrar.calls().is_empty(), "no memory was replaced");
    subject.write(&mut region, Bytes(0), subject.unit(), 1);
    let whole = |units| vec![OffsetRange { offset: Bytes(0), length: subject.units(units) }];
    for (size, before) in [(subject.units(3), 1), (subject.units(2), 3)] {
        let old = region.address();
        if size > region.end() {
            region.grow_to(size).unwrap();
        } else {
            let _ = region.shrink_to(size, idle()).unwrap();
        }
        let [(change, outcome)] = &registrar.changes("the move")[..] else { panic!("one change") };
        assert_eq!((change.address, &change.parts), (old, &whole(before)));
        assert_eq!(change.effect, BackingEffect::Moved { to: region.address() });
        assert_eq!(*outcome, BackingOutcome::Changed);
    }
    registrar.reply(Reply::Refuse);
    let (address, free) = (region.address(), subject.free_here());
    for error in [
        region.grow_to(subject.units(5)).map(drop).unwrap_err(),
        region.shrink_to(subject.unit(), idle()).map(drop).unwrap_err(),
        region.shrink_to(Bytes(0), idle()).map(drop).unwrap_err(),
    ] {
        assert!(matches!(error.detail(), Detail::Vetoed { .. }), "{error}");
    }
    assert_eq!((region.address(), region.end(), subject.free_here()), (address, subject.units(2), free));
    subject.check(&region, Bytes(0), subject.unit(), 1);
}
