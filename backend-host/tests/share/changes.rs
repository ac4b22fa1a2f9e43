//! Changes of a region after it was shared: published by one side, applied by the other.

use crate::bench::{empty, far, full, machine, piece, put, seen, shared};
use crate::forger::{Begin, Description, Forger, Say};
use crate::{LONG, ONE, TWO, UNIT, units};
use gpu_vmm_core::{
    Backend, Bytes, Detail, GrowthKind, Location, PhysicalMemory, Placement, Properties, Region, WaitFor,
};
use gpu_vmm_host::HostConfig;
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Change, Event, Exporter, ImportOptions, ImportedRegion};
use gpu_vmm_testkit::FaultInject;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::time::Duration;

const IDLE: WaitFor<'static> = WaitFor::all_devices();

/// Receives the next change, which must have arrived.
fn change<B: Backend>(imported: &mut ImportedRegion<B>) -> Change {
    match imported.next(LONG).unwrap() {
        Some(Event::Changed(change)) => change,
        other => panic!("{other:?}"),
    }
}

/// Publishes and applies a change, and waits until the exporter has the answer.
fn follow<A: Backend, B: Backend>(
    exporter: &mut Exporter<A>,
    region: &Region<A>,
    imported: &mut ImportedRegion<B>,
) -> GrowthKind {
    assert!(exporter.publish(region).unwrap());
    let told = change(imported);
    assert_eq!((told.address, told.end), (region.address(), region.end()));
    assert!(imported.is_behind());
    let grown = imported.apply(IDLE).unwrap();
    assert!(!imported.is_behind());
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(region));
    grown
}

/// Keeps the addresses after a region reserved.
fn wall<B: Backend>(region: &Region<B>) -> Region<B> {
    let behind = region.address().checked_add(region.reserved()).unwrap();
    Region::builder(region.backend()).reserve(units(1)).at(Placement::Exact(behind)).build().unwrap()
}

#[test]
fn growth_extends_reservation_as_needed() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().at(far(1)), &there);
    let address = imported.region().address();
    for end in [10, 11, 30] {
        region.grow_to(units(end)).unwrap();
        assert_eq!(follow(&mut exporter, &region, &mut imported), GrowthKind::Extended);
        assert_eq!(imported.region().reserved(), units(end));
        assert_eq!(imported.region().address(), address);
    }
}

#[test]
fn mapping_across_border_moves_if_allowed() {
    let (here, there) = (machine(), machine());
    let mut region = empty(&here);
    put(&mut region, 0, &piece(&here, ONE, 1), 1);
    put(&mut region, 7, &piece(&here, ONE, 1), 2);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().at(far(3)), &there);
    put(&mut region, 8, &piece(&here, ONE, 1), 3);
    assert_eq!(follow(&mut exporter, &region, &mut imported), GrowthKind::Extended);
    region.unmap(units(7), units(2), IDLE).unwrap();
    put(&mut region, 7, &piece(&here, ONE, 2), 4);
    exporter.publish(&region).unwrap();
    change(&mut imported);
    let error = imported.apply(IDLE).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::CrossesReservation { border, .. } if *border == units(8)),
        "{error}"
    );
    assert_eq!(imported.region().mappings().count(), 3);
    assert_eq!(imported.apply_or_move(IDLE).unwrap(), GrowthKind::Remapped);
    exporter.wait_applied(LONG).unwrap_err();
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn shrinking_releases_memory_on_both_sides() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    assert_eq!((there.live().handles, there.live().mappings), (3, 4));
    // The exporter keeps no memory that its region has dropped.
    let free = here.memory_info(TWO).unwrap().free;
    let _ = region.shrink_to(units(6), IDLE).unwrap();
    assert_eq!(here.memory_info(TWO).unwrap().free, free + units(2));
    follow(&mut exporter, &region, &mut imported);
    assert_eq!((there.live().handles, there.live().mappings), (2, 3));
    region.unmap(Bytes(0), units(2), IDLE).unwrap();
    follow(&mut exporter, &region, &mut imported);
    assert_eq!((there.live().handles, there.live().mappings), (2, 2), "one of its two mappings is left");
    region.unmap(units(3), units(3), IDLE).unwrap();
    follow(&mut exporter, &region, &mut imported);
    assert_eq!((there.live().handles, there.live().mappings), (0, 0));
}

#[test]
fn replaced_memory_follows_without_touching_rest() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    region.unmap(units(3), units(1), IDLE).unwrap();
    put(&mut region, 3, &piece(&here, TWO, 1), 9);
    exporter.publish(&region).unwrap();
    change(&mut imported);
    there.fail(u64::MAX, 0);
    imported.apply(IDLE).unwrap();
    // Import, wait for one device, unmap, map, set access.
    assert_eq!(there.stop(), 5);
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn exporter_move_changes_only_the_base() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let mut region = Region::builder(&here)
        .memory(Properties::on(ONE).shareable())
        .reserve(units(8))
        .at(far(4))
        .build()
        .unwrap();
    put(&mut region, 0, &piece(&here, ONE, 8), 1);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    let _taken = wall(&region);
    let address = imported.region().address();
    assert_eq!(region.grow_or_move(units(9), IDLE).unwrap().how, GrowthKind::Remapped);
    let _ = region.shrink_to(units(8), IDLE).unwrap();
    assert!(exporter.publish(&region).unwrap());
    assert_eq!(change(&mut imported).address, region.address());
    there.fail(u64::MAX, 0);
    imported.apply(IDLE).unwrap();
    assert_eq!((there.stop(), imported.region().address()), (0, address));
    exporter.wait_applied(LONG).unwrap();
}

#[test]
fn unchanged_region_is_not_published() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    assert!(!exporter.publish(&region).unwrap());
    put(&mut region, 10, &piece(&here, ONE, 1), 1);
    region.unmap(units(10), units(1), IDLE).unwrap();
    assert!(!exporter.publish(&region).unwrap());
    assert_eq!(imported.next(Duration::from_millis(1)).unwrap(), None);
    // Without a change, nothing is applied or answered.
    assert_eq!(imported.apply(IDLE).unwrap(), GrowthKind::Within);
    exporter.wait_applied(LONG).unwrap();
    assert!(!exporter.publish(&region).unwrap());
}

#[test]
fn several_changes_are_applied_as_one() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().reserve(units(32)), &there);
    for at in 10..20 {
        put(&mut region, at, &piece(&here, ONE, 1), at as u8);
        exporter.publish(&region).unwrap();
    }
    region.unmap(units(10), units(5), IDLE).unwrap();
    exporter.publish(&region).unwrap();
    for revision in 1..=11 {
        assert_eq!(change(&mut imported).revision, revision);
    }
    assert_eq!(imported.region().mappings().count(), 4, "nothing is applied yet");
    there.fail(u64::MAX, 0);
    imported.apply(IDLE).unwrap();
    // Five imports, five mappings, one access for the run.
    assert_eq!(there.stop(), 11);
    assert_eq!(seen(imported.region()), seen(&region));
    exporter.wait_applied(LONG).unwrap();
}

#[test]
fn exporter_waits_within_its_limit() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    exporter.wait_applied(Duration::ZERO).unwrap();
    region.unmap(units(3), units(1), IDLE).unwrap();
    exporter.publish(&region).unwrap();
    let error = exporter.wait_applied(Duration::from_millis(5)).unwrap_err();
    assert!(
        matches!(error.extension(), Some(PeerError::TimedOut { waited, .. }) if *waited == Duration::from_millis(5)),
        "{error}"
    );
    assert_eq!(error.to_string(), "wait until applied: no answer from the importer within 5ms");
    change(&mut imported);
    imported.apply(IDLE).unwrap();
    exporter.wait_applied(LONG).unwrap();
}

/// One more change is published than was applied.
#[track_caller]
fn waits_for_the_next_answer<B: Backend>(exporter: &mut Exporter<B>, imported: &mut ImportedRegion<B>) {
    let error = exporter.wait_applied(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
    change(imported);
    imported.apply(IDLE).unwrap();
    exporter.wait_applied(LONG).unwrap();
}

#[test]
fn exporter_waits_for_its_last_change() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    region.unmap(units(3), units(1), IDLE).unwrap();
    exporter.publish(&region).unwrap();
    change(&mut imported);
    imported.apply(IDLE).unwrap();
    region.unmap(units(0), units(2), IDLE).unwrap();
    exporter.publish(&region).unwrap();
    waits_for_the_next_answer(&mut exporter, &mut imported);
}

#[test]
fn older_answer_does_not_count() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    for (at, count) in [(3, 1), (4, 2)] {
        region.unmap(units(at), units(count), IDLE).unwrap();
        exporter.publish(&region).unwrap();
    }
    change(&mut imported);
    imported.apply(IDLE).unwrap();
    waits_for_the_next_answer(&mut exporter, &mut imported);
}

#[test]
fn larger_granularity_moves_region_if_allowed() {
    let coarse = || {
        let config = HostConfig::new().devices(2).memory(Bytes::mib(64));
        config.granularity(UNIT).host_granularity(units(4)).open().unwrap()
    };
    let (here, there) = (coarse(), coarse());
    let mut region = Region::builder(&here).alignment(units(4)).reserve(units(8)).build().unwrap();
    put(&mut region, 0, &piece(&here, ONE, 1), 1);
    let Placement::Exact(aligned) = far(13) else { unreachable!() };
    let between = ImportOptions::new().at(Placement::Exact(aligned + UNIT)).reserve(units(8));
    let (mut exporter, mut imported) = shared(&region, &between, &there);
    let on_host = Properties::on(ONE).located(Location::Host).shareable();
    put(&mut region, 4, &PhysicalMemory::create(&here, units(4), on_host).unwrap(), 2);
    exporter.publish(&region).unwrap();
    change(&mut imported);
    let error = imported.apply(IDLE).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unaligned { what: "address", .. }), "{error}");
    assert_eq!(imported.apply_or_move(IDLE).unwrap(), GrowthKind::Remapped);
    exporter.wait_applied(LONG).unwrap_err();
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn next_change_corrects_manual_mappings() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().reserve(units(32)), &there);
    let ours = imported.region_mut();
    ours.unmap(units(3), units(1), IDLE).unwrap();
    put(ours, 20, &piece(&there, ONE, 1), 9);
    put(&mut region, 10, &piece(&here, ONE, 1), 5);
    follow(&mut exporter, &region, &mut imported);
}

/// The exporter reads no answer for a while. The newest one is what it needs then.
#[test]
fn blocked_answer_is_sent_later() {
    const LAST: u64 = 40;
    let wait = Duration::from_millis(5);
    let host = machine();
    let region = full(&host);
    let (mut forger, channel) = Forger::new();
    let _exporter = Exporter::share(channel, &region).unwrap();
    let truth = Description::hear(&mut forger);
    let (mut forger, mut channel) = Forger::new();
    channel.set_wait(wait);
    truth.say(&mut forger);
    let mut imported = ImportOptions::new().receive(&host, channel).unwrap();
    // The kernel makes it as small as it can.
    set_socket_send_buffer_size(&imported, 1).unwrap();
    for revision in 1..=LAST {
        let begin = Begin { revision, ..truth.begin.clone() };
        let (removed, pieces, mappings, descriptors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Description { begin, removed, pieces, mappings, descriptors }.counted().say(&mut forger);
        assert!(matches!(imported.next(LONG).unwrap(), Some(Event::Changed(_))));
        imported.apply(WaitFor::all_devices()).unwrap();
    }
    let answers = std::iter::from_fn(|| forger.heard()).count() as u64;
    assert!(answers < LAST, "there was room for all");
    assert_eq!(imported.next(wait).unwrap(), None);
    assert_eq!(forger.heard(), Some(Say::Applied { revision: LAST }));
}
