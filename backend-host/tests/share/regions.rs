//! Imported regions: the same mappings, holes and bytes, at the address and with the access that the importer requests.

use crate::bench::{RW, empty, far, full, machine, piece, put, seen, shared};
use crate::child::{is_child, start};
use crate::{LONG, ONE, TWO, UNIT, units};
use gpu_vmm_core::{
    Access, Bytes, Detail, DeviceId, Error, GrowthKind, Location, PhysicalMemory, Placement, Properties,
    Region, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Channel, Event, Exporter, ImportOptions, ImportedRegion, ReleaseOutcome};

#[test]
fn a_region_arrives_with_its_holes_aliases_and_bytes() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
    assert_eq!(imported.region().reserved(), units(8), "just what is needed");

    // The alias is one piece of memory here too, and each side sees the other's writes.
    let memory: Vec<_> = imported.region().mappings().map(|mapping| mapping.memory.clone()).collect();
    assert!(memory[0].is_same_as(&memory[2]) && !memory[0].is_same_as(&memory[1]));
    assert_eq!(memory.iter().map(PhysicalMemory::device).collect::<Vec<_>>(), [ONE, ONE, ONE, TWO]);
    imported.region_mut().write(units(4), b"from there").unwrap();
    region.write(units(6), b"from here").unwrap();
    let mut bytes = [0; 10];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"from there");
    imported.region().read(units(6), &mut bytes[..9]).unwrap();
    assert_eq!(&bytes[..9], b"from here");
}

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
fn the_importer_says_who_has_access() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let access = |imported: &ImportedRegion<HostBackend>, at| {
        [ONE, TWO, DeviceId::HOST].map(|device| imported.region().access(units(at), device))
    };
    let none = Access::None;
    let (_exporter, owners) = shared(&region, &ImportOptions::new(), &there);
    assert_eq!((access(&owners, 0), access(&owners, 6)), ([RW, none, none], [none, RW, none]));
    let wide = ImportOptions::new().access(TWO, Access::Read).access(DeviceId::HOST, RW);
    let (_exporter, named) = shared(&region, &wide, &there);
    assert_eq!(access(&named, 0), [RW, Access::Read, RW]);
    assert_eq!(access(&named, 6), [none, Access::Read, RW], "of the owner too, where it is named");
    let (_exporter, mut reader) = shared(&region, &wide.read_only(), &there);
    assert_eq!(access(&reader, 0), [Access::Read; 3]);
    assert_eq!(seen(reader.region()), seen(&region));
    let error = reader.region_mut().write(Bytes(0), b"x").unwrap_err();
    assert!(matches!(error.detail(), Detail::NoAccess { have: Access::Read, .. }), "{error}");
}

#[test]
fn an_imported_region_grows_by_memory_and_access_as_it_has() {
    let (here, there) = (machine(), machine());
    let properties = Properties::on(TWO).shareable();
    let mut region = Region::builder(&here).memory(properties).reserve(units(1)).build().unwrap();
    region.grow_to(units(1)).unwrap();
    let import = ImportOptions::new().access(ONE, Access::Read).reserve(units(2));
    let (_exporter, imported) = shared(&region, &import, &there);
    let mut detached = imported.detach();
    detached.grow_to(units(2)).unwrap();
    let memory: Vec<_> = detached.mappings().map(|mapping| mapping.memory.properties()).collect();
    assert_eq!(memory, [properties; 2]);
    for at in [0, 1] {
        assert_eq!([ONE, TWO].map(|device| detached.access(units(at), device)), [Access::Read, RW]);
    }
}

#[test]
fn memory_of_different_kinds_arrives_with_its_kind() {
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
fn a_peer_that_cannot_reach_the_memory_is_no_importer() {
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
fn the_importer_says_where_and_how_much_is_reserved() {
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
fn an_address_that_is_taken_is_named_with_the_one_that_was_offered() {
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
fn another_process_has_the_region_at_the_same_address() {
    let host = machine();
    if is_child() {
        let channel = Channel::from_stdin().unwrap();
        let mut imported = ImportOptions::new().same_address().receive(&host, channel).unwrap();
        assert_eq!(Placement::Exact(imported.region().address()), far(0));
        imported.region_mut().write(units(6), b"from the child").unwrap();
        assert_eq!(imported.next(LONG).unwrap(), Some(Event::ReleaseRequested));
        imported.release(WaitFor::all_devices()).unwrap();
        return;
    }
    let mut region = Region::builder(&host)
        .memory(Properties::on(ONE).shareable())
        .reserve(units(64))
        .at(far(0))
        .build()
        .unwrap();
    put(&mut region, 0, &piece(&host, ONE, 2), 1);
    put(&mut region, 6, &piece(&host, ONE, 2), 2);
    let (ours, theirs) = Channel::pair().unwrap();
    let test = "regions::another_process_has_the_region_at_the_same_address";
    let mut child = start(test, theirs.into_socket());
    let mut exporter = Exporter::share(ours, &region).unwrap();
    exporter.wait_applied(LONG).unwrap();
    exporter.request_release().unwrap();
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Released);
    assert!(child.wait().unwrap().success());
    let mut bytes = [0; 14];
    region.read(units(6), &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the child");
}

#[test]
fn a_region_at_the_same_address_goes_after_the_exporters() {
    let test = "regions::a_region_at_the_same_address_goes_after_the_exporters";
    let host = machine();
    let done = WaitFor::all_devices();
    if is_child() {
        let channel = Channel::from_stdin().unwrap();
        let mut imported = ImportOptions::new().same_address().receive(&host, channel).unwrap();
        let Some(Event::Changed(change)) = imported.next(LONG).unwrap() else { panic!("no change") };
        let error = imported.apply(done).unwrap_err();
        let (here, theirs) = (imported.region().address(), change.address);
        let expected = format!("the exporter's address is {theirs}; the region here is at {here}");
        assert_eq!(error.to_string(), format!("apply change: {expected}"));
        assert_eq!(Placement::Exact(here), far(11));
        assert_eq!(imported.apply_or_move(done).unwrap(), GrowthKind::Remapped);
        assert_eq!(Placement::Exact(imported.region().address()), far(12));
        assert_eq!(change.address, imported.region().address());
        imported.region_mut().write(units(3), b"moved").unwrap();
        imported.release(done).unwrap();
        return;
    }
    let region = |at| {
        let memory = Properties::on(ONE).shareable();
        Region::builder(&host).memory(memory).reserve(units(8)).at(at).build().unwrap()
    };
    let memory = piece(&host, ONE, 2);
    let (mut first, mut second) = (region(far(11)), region(far(12)));
    put(&mut first, 0, &memory, 1);
    put(&mut second, 3, &memory, 1);
    let (ours, theirs) = Channel::pair().unwrap();
    let mut child = start(test, theirs.into_socket());
    let mut exporter = Exporter::share(ours, &first).unwrap();
    exporter.wait_applied(LONG).unwrap();
    exporter.publish(&second).unwrap();
    assert!(matches!(
        exporter.wait_applied(LONG).as_ref().map_err(Error::extension),
        Err(Some(PeerError::Refused { .. }))
    ));
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Released);
    assert!(child.wait().unwrap().success());
    let mut bytes = [0; 5];
    first.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"moved");
}

#[test]
fn memory_that_cannot_leave_the_process_is_not_shared() {
    let here = machine();
    let mut region = full(&here);
    let alone = PhysicalMemory::create(&here, UNIT, Properties::on(ONE)).unwrap();
    region.map(units(10), &alone).unwrap();
    let (ours, mut theirs) = Channel::pair().unwrap();
    let error = Exporter::share(ours, &region).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("shareable")),
        "{error}"
    );
    // Nothing was sent before.
    let heard = theirs.receive_memory(&here).unwrap_err();
    assert!(matches!(heard.extension(), Some(PeerError::Gone { .. })), "{heard}");
}

#[test]
fn imported_memory_is_shared_again_where_the_driver_exports_it() {
    let (here, there, third) = (machine(), machine(), machine());
    let region = full(&here);
    let (_first, imported) = shared(&region, &ImportOptions::new(), &there);
    let (mut second, again) = shared(imported.region(), &ImportOptions::new(), &third);
    second.wait_applied(LONG).unwrap();
    assert_eq!(seen(again.region()), seen(&region));
}
