//! Imported regions: their pieces, kinds of memory and addresses.

use crate::bench::{RW, empty, far, full, machine, piece, put, seen, shared};
use crate::{LONG, ONE, TWO, UNIT, units};
use gpu_vmm_core::{
    Access, Bytes, Detail, DeviceId, Error, Location, PhysicalMemory, Placement, Properties, Region, WaitFor,
};
use gpu_vmm_host::HostConfig;
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Channel, Exporter, ImportOptions, ReleaseOutcome};

#[test]
fn a_region_without_memory_arrives() {
    let (here, there) = (machine(), machine());
    let mut region = empty(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    exporter.wait_applied(LONG).unwrap();
    assert!(imported.region().end().is_zero() && !imported.region().reserved().is_zero());
    put(&mut region, 0, &piece(&here, ONE, 1), 1);
    assert!(exporter.publish(&region).unwrap());
    imported.next(LONG).unwrap();
    imported.apply(WaitFor::all_devices()).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn more_pieces_than_one_message_carries_arrive() {
    let (here, there) = (machine(), machine());
    let mut region =
        Region::builder(&here).memory(Properties::on(ONE).shareable()).reserve(units(600)).build().unwrap();
    for at in 0..300 {
        put(&mut region, at, &piece(&here, ONE, 1), at as u8);
    }
    let first = region.mappings().next().unwrap().memory.clone();
    for at in 300..600 {
        region.map(units(at), &first).unwrap();
    }
    region.set_access(units(300), units(300), ONE, RW).unwrap();
    let (mut exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn memory_kinds_arrive_unchanged() {
    let (here, there) = (machine(), machine());
    let mut region = empty(&here);
    let device = Properties::on(ONE).shareable();
    let kinds = [device, device.located(Location::Host), device];
    for (at, kind) in (0..).zip(kinds) {
        let memory = PhysicalMemory::create(&here, units(1), kind).unwrap();
        region.map(units(at), &memory).unwrap();
    }
    let (_exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    let arrived: Vec<_> = imported.region().mappings().map(|mapping| mapping.memory.properties()).collect();
    assert_eq!(arrived, kinds);
}

#[test]
fn unreachable_memory_is_not_imported() {
    let here = machine();
    let apart =
        HostConfig::new().devices(2).memory(Bytes::mib(64)).granularity(UNIT).without_peers().open().unwrap();
    let (ours, theirs) = Channel::pair().unwrap();
    let mut exporter = Exporter::share(ours, &full(&here)).unwrap();
    let error = ImportOptions::new().access(TWO, RW).receive(&apart, theirs).unwrap_err();
    assert!(matches!(error.detail(), Detail::PeerUnreachable { device: TWO, owner: ONE, .. }), "{error}");
    let told = exporter.wait_applied(LONG).unwrap_err();
    assert!(
        matches!(told.extension(), Some(PeerError::Refused { why, .. }) if *why == error.to_string()),
        "{told}"
    );
}

#[test]
fn importer_gives_the_cpu_access() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let wide = ImportOptions::new().access(DeviceId::HOST, RW);
    for (options, expected) in [(wide, RW), (wide.read_only(), Access::Read)] {
        let (_exporter, imported) = shared(&region, &options, &there);
        assert_eq!(imported.region().access(Bytes(0), DeviceId::HOST), expected);
    }
}

#[test]
fn importer_chooses_address_and_size() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    // The last place counts.
    let import = ImportOptions::new().same_address().at(far(5)).reserve(units(100));
    let (_exporter, imported) = shared(&region, &import, &there);
    assert_eq!(Placement::Exact(imported.region().address()), far(5));
    assert_eq!(imported.region().reserved(), units(100));
    assert_eq!(seen(imported.region()), seen(&region));
}

#[test]
fn taken_address_error_has_offered_one() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let (ours, theirs) = Channel::pair().unwrap();
    let mut exporter = Exporter::share(ours, &region).unwrap();
    let error = ImportOptions::new().same_address().receive(&there, theirs).unwrap_err();
    let Detail::AddressTaken { wanted, offered, .. } = error.detail() else { panic!("{error}") };
    assert!(*wanted == region.address() && offered != wanted, "{wanted} {offered}");
    assert!(matches!(
        exporter.wait_applied(LONG).as_ref().map_err(Error::extension),
        Err(Some(PeerError::Refused { .. }))
    ));
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Gone);
}

#[test]
fn imported_memory_is_shared_again() {
    let (here, there, third) = (machine(), machine(), machine());
    let region = full(&here);
    let (_first, imported) = shared(&region, &ImportOptions::new(), &there);
    let (mut second, again) = shared(imported.region(), &ImportOptions::new(), &third);
    second.wait_applied(LONG).unwrap();
    assert_eq!(seen(again.region()), seen(&region));
}
