//! A region of one process as one contiguous range in another, and its changes.

use super::channels::{
    SOON, channel_from, channel_to, movable_region, move_away, receive, share, shareable_region,
};
use crate::case::cases;
use crate::leaks;
use crate::library::folder::Folder;
use crate::library::sharing::{or_cannot_share, shareable};
use crate::library::tools::{has, idle, write};
use crate::peer::Peer;
use crate::subject::{RW, Subject, note};
use gpu_vmm_core::{
    Access, Address, Bytes, Detail, Error, GrowthKind, PhysicalMemory, Placement, Properties, Region,
};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Allowed, Channel, Event, Exporter, ImportOptions, Listener, ReleaseOutcome};
use gpu_vmm_testkit::TestKit;
use std::fs;
use std::time::Duration;

cases! { "share":
    /// A region of 16 handles (1 GiB if the device has it) can be used by two processes at one address, outlives its killed
    /// exporter, and is free again when the importer releases it.
    a_gigabyte_at_one_address with exports_a_gigabyte,
    /// A piece that the exporter's region maps twice is one piece in the importer's region too, and holes stay holes, at any
    /// address.
    aliases_and_holes with imports_elsewhere,
    /// Published growth and shrinking reach the importer at the same address, also beyond its reservation.
    changes_are_published with applies_changes,
    /// Memory that an importer has imported stays the same handle when more memory is published.
    what_came_before_stays with follows_growth,
    /// Memory that leaves the region and returns is sent again to an importer that has released it.
    what_left_comes_back with follows_what_left,
    /// An importer at the exporter's address follows a region that has moved and been emptied.
    emptied_and_moved with follows_an_empty_region,
    /// If the addresses behind the importer's region are taken, applying growth fails without a change, the exporter learns
    /// of it, and the growth can be applied at another address with the same access.
    growth_into_a_wall with applies_behind_a_wall,
    /// A refusal of one change does not affect the changes that are published after it.
    refused_once with refuses_once,
    /// An importer can import a region read-only, and then no device of it can write.
    a_region_to_read with imports_to_read,
    /// An importer releases the memory on request, and the exporter learns of the release.
    release_requested with releases,
    /// An importer that is killed while it holds a region does not harm the exporter's memory, and the next importer gets the
    /// region.
    an_importer_is_killed with holds_until_killed,
    /// The exporter learns at once that an importer was killed before it applied a change, keeps its memory, and can share it
    /// with another importer.
    killed_before_it_applies with leaves_a_change,
    /// Sharing a region of memory that was not created as shareable is refused, and the importer sees its channel closed.
    what_cannot_be_shared with waits_for_nothing,
    /// A listener removes its path when it is dropped, unless the path belongs to another listener by then.
    a_path_of_another_listener,
}

const SEED: u64 = 900;

/// The number of handles of a large region.
const HANDLES: u64 = 16;

/// The size at each end of a large handle that is written and checked.
const EDGE: Bytes = Bytes::kib(64);

/// The offsets of both ends of a region's mappings.
fn edges<B: TestKit>(region: &Region<B>) -> Vec<Bytes> {
    region.mappings().flat_map(|one| [one.offset, one.offset + one.length - EDGE]).collect()
}

fn write_edges<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, seed: u64) {
    for edge in edges(region) {
        region.write_pattern(subject.device, edge, EDGE, seed + edge.0).unwrap();
    }
}

fn has_edges<B: TestKit>(subject: &Subject<B>, region: &Region<B>, seed: u64) -> bool {
    let wrong = |edge: &Bytes| region.count_wrong(subject.device, *edge, EDGE, seed + edge.0).unwrap();
    edges(region).iter().map(wrong).sum::<u64>() == 0
}

fn a_gigabyte_at_one_address<B: TestKit>(subject: &Subject<B>) {
    // Memory that the device needs for a process and its kernels is allocated before the counting.
    write(subject, &mut shareable_region(subject, &[1]), SEED);
    let mut child = subject.child();
    let gigabyte = Bytes::gib(1);
    let size = if child.receive::<u64>() >= gigabyte.0 { gigabyte } else { subject.units(HANDLES) };
    let at_first = subject.free_here();
    note(format!("{size} in {HANDLES} handles"));
    let place = subject.hole(size.0.div_ceil(subject.unit().0));
    child.send((place.0, size.0));
    let channel = channel_to(&mut child);
    child.receive::<()>();
    let created = subject.free_here();
    let mut imported = receive(subject, ImportOptions::new().same_address(), channel);
    assert_eq!((imported.region().address(), imported.region().end()), (place, size));
    assert_eq!(imported.region().mappings().count() as u64, HANDLES);
    assert!(has_edges(subject, imported.region(), SEED), "the exporter's write is not visible");
    write_edges(subject, imported.region_mut(), SEED + 1);
    child.send(());
    assert!(child.receive::<bool>(), "the exporter does not see this process's write");
    assert!(imported.is_connected());
    assert!(has_edges(subject, imported.region(), SEED + 2), "the exporter's second write is not visible");
    child.kill();
    child.finish_by(libc::SIGKILL);
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
    assert!(!imported.channel().is_connected());
    assert!(has_edges(subject, imported.region(), SEED + 2), "the bytes are lost with the exporter");
    write_edges(subject, imported.region_mut(), SEED + 3);
    assert!(has_edges(subject, imported.region(), SEED + 3));
    let held = subject.free_here();
    drop(imported);
    let end = subject.free_here();
    // A device counts the memory of all processes; a simulated one counts only its own process's memory.
    if created + size <= at_first {
        assert!(
            held + size <= end + subject.unit(),
            "the importer's release has freed nothing: {held}, then {end}"
        );
    }
    if !subject.has_quirk("import-leaks") {
        assert!(
            end + subject.unit() > at_first,
            "memory is still in use after the last release: {at_first}, then {end}"
        );
    }
}

fn exports_a_gigabyte<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    write(subject, &mut shareable_region(subject, &[1]), SEED);
    peer.send(subject.free_here().0);
    let (place, size) = peer.receive::<(u64, u64)>();
    let channel = channel_from(peer);
    let memory = Properties::on(subject.device).shareable();
    let place = Placement::Exact(Address(place));
    let builder = Region::builder(&subject.backend).memory(memory).reserve(Bytes(size));
    let mut region = builder.at(place).build().unwrap();
    for handle in 1..=HANDLES {
        or_cannot_share(subject, region.grow_to(Bytes(size / HANDLES * handle)));
    }
    write_edges(subject, &mut region, SEED);
    peer.send(());
    let _exporter = share(subject, channel, &region);
    peer.receive::<()>();
    let seen = has_edges(subject, &region, SEED + 1);
    write_edges(subject, &mut region, SEED + 2);
    peer.send(seen);
    // Waits to be killed.
    peer.receive::<()>();
}

fn aliases_and_holes<B: TestKit>(subject: &Subject<B>) {
    let (one, two) = (shareable(subject, 1), shareable(subject, 2));
    let mut region = subject.region(6).at(Placement::Exact(subject.hole(6))).build().unwrap();
    // The first piece, a hole, the second piece, a hole, and the first piece again.
    for (unit, memory) in [(0, &one), (2, &two), (5, &one)] {
        region.map(subject.units(unit), memory).unwrap();
        region.set_access(subject.units(unit), memory.size(), subject.device, RW).unwrap();
    }
    let unit = subject.unit();
    region.write_pattern(subject.device, Bytes(0), unit, SEED).unwrap();
    region.write_pattern(subject.device, subject.units(2), subject.units(2), SEED + 1).unwrap();
    let mut child = subject.child();
    let exporter = share(subject, channel_to(&mut child), &region);
    child.receive::<()>();
    // The importer's write to the alias.
    assert_eq!(region.count_wrong(subject.device, Bytes(0), unit, SEED + 2).unwrap(), 0);
    drop(exporter);
    child.finish();
}

fn imports_elsewhere<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let channel = channel_from(peer);
    let elsewhere = subject.hole(6);
    let mut imported = or_cannot_share(
        subject,
        ImportOptions::new().at(Placement::Exact(elsewhere)).receive(&subject.backend, channel),
    );
    // Two pieces, however many mappings they have.
    (0..2).for_each(|_| leaks::counts_import());
    let unit = subject.unit();
    let region = imported.region();
    assert_eq!(
        (region.address(), region.end(), region.mapped()),
        (elsewhere, subject.units(6), subject.units(4))
    );
    let mappings: Vec<_> =
        region.mappings().map(|one| (one.offset.0 / unit.0, one.length.0 / unit.0)).collect();
    assert_eq!(mappings, [(0, 1), (2, 2), (5, 1)]);
    let memory: Vec<&PhysicalMemory<B>> = region.mappings().map(|one| one.memory).collect();
    assert!(memory[0].is_same_as(memory[2]) && !memory[0].is_same_as(memory[1]));
    assert_eq!(region.count_wrong(subject.device, Bytes(0), unit, SEED).unwrap(), 0);
    assert_eq!(region.count_wrong(subject.device, subject.units(2), subject.units(2), SEED + 1).unwrap(), 0);
    let alias = subject.units(5);
    imported.region_mut().write_pattern(subject.device, alias, unit, SEED + 2).unwrap();
    peer.send(());
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn changes_are_published<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 1]);
    write(subject, &mut region, SEED);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    assert!(child.receive::<bool>(), "the importer has other bytes");
    assert!(!exporter.publish(&region).unwrap(), "an unchanged region was published");
    for units in [3, 6, 1] {
        if subject.units(units) > region.end() {
            or_cannot_share(subject, region.grow_to(subject.units(units)));
            write(subject, &mut region, SEED + 1);
        } else {
            let _ = region.shrink_to(subject.units(units), idle()).unwrap();
        }
        assert!(exporter.publish(&region).unwrap(), "the change was not published");
        exporter.wait_applied(SOON).unwrap();
        assert!(child.receive::<bool>(), "the importer does not have {units} units with the bytes");
    }
    drop(exporter);
    child.finish();
}

fn applies_changes<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let channel = channel_from(peer);
    let mut imported = receive(subject, ImportOptions::new().at(Placement::Exact(subject.hole(16))), channel);
    let address = imported.region().address();
    assert_eq!(imported.region().reserved(), subject.units(2), "more is reserved than needed");
    peer.send(has(subject, imported.region(), SEED));
    for (units, grown) in [(3, GrowthKind::Extended), (6, GrowthKind::Extended), (1, GrowthKind::Within)] {
        let Some(Event::Changed(change)) = imported.next(SOON).unwrap() else { panic!("no change arrived") };
        assert_eq!(change.end, subject.units(units));
        assert!(imported.is_behind());
        let before = imported.region().mappings().count();
        assert_eq!(imported.apply(idle()).unwrap(), grown);
        assert!(!imported.is_behind());
        for _ in before..imported.region().mappings().count() {
            leaks::counts_import();
        }
        assert_eq!((imported.region().address(), imported.region().end()), (address, subject.units(units)));
        peer.send(has(subject, imported.region(), SEED + 1));
    }
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn what_came_before_stays<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    for units in [2, 3] {
        or_cannot_share(subject, region.grow_to(subject.units(units)));
        exporter.publish(&region).unwrap();
        exporter.wait_applied(SOON).unwrap();
    }
    drop(exporter);
    child.finish();
}

fn follows_growth<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    let mut known: Vec<PhysicalMemory<B>> = Vec::new();
    for units in [2, 3] {
        known.extend(imported.region().mappings().skip(known.len()).map(|one| one.memory.clone()));
        let event = imported.next(SOON).unwrap();
        assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
        imported.apply_or_move(idle()).unwrap();
        leaks::counts_import();
        assert_eq!(imported.region().end(), subject.units(units));
        let all = imported.region().mappings().zip(&known);
        assert!(
            all.into_iter().all(|(now, before)| now.memory.is_same_as(before)),
            "known memory was imported again"
        );
    }
    drop(known);
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn what_left_comes_back<B: TestKit>(subject: &Subject<B>) {
    let (first, second) = (shareable(subject, 1), shareable(subject, 1));
    let mut region = subject.region(2).at(Placement::Exact(subject.hole(2))).build().unwrap();
    subject.open(&mut region, Bytes(0), &first);
    subject.open(&mut region, subject.unit(), &second);
    write(subject, &mut region, SEED);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    // First without another piece in its place, then with one.
    let third = shareable(subject, 1);
    for memory in [None, Some(&second), Some(&third), Some(&second)] {
        if region.end() > subject.unit() {
            region.unmap(subject.unit(), subject.unit(), idle()).unwrap();
        }
        memory.into_iter().for_each(|memory| subject.open(&mut region, subject.unit(), memory));
        exporter.publish(&region).unwrap();
        exporter.wait_applied(SOON).unwrap();
    }
    assert!(child.receive::<bool>(), "the importer has other bytes");
    drop(exporter);
    child.finish();
}

fn follows_what_left<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    for units in [1, 2, 2, 2] {
        let event = imported.next(SOON).unwrap();
        assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
        imported.apply_or_move(idle()).unwrap();
        assert_eq!(imported.region().end(), subject.units(units));
        if units == 2 {
            leaks::counts_import();
        }
    }
    peer.send(has(subject, imported.region(), SEED));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn emptied_and_moved<B: TestKit>(subject: &Subject<B>) {
    let mut region = movable_region(subject);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    move_away(subject, &mut region);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    exporter.publish(&region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    assert_eq!(child.receive::<u64>(), region.address().0);
    drop(exporter);
    child.finish();
}

fn follows_an_empty_region<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new().same_address(), channel_from(peer));
    let event = imported.next(SOON).unwrap();
    let Some(Event::Changed(change)) = event else { panic!("{event:?}") };
    assert_eq!(imported.apply_or_move(idle()).unwrap(), GrowthKind::Remapped);
    assert_eq!((imported.region().address(), imported.region().end()), (change.address, Bytes(0)));
    peer.send(imported.region().address().0);
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn growth_into_a_wall<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1]);
    write(subject, &mut region, SEED);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    child.receive::<()>();
    or_cannot_share(subject, region.grow_to(subject.units(2)));
    write(subject, &mut region, SEED + 1);
    exporter.publish(&region).unwrap();
    let refused = exporter.wait_applied(SOON).unwrap_err();
    assert!(
        matches!(refused.extension(), Some(PeerError::Refused { why, .. }) if why.contains("the driver returned address")),
        "{refused}"
    );
    child.send(());
    exporter.wait_applied(SOON).unwrap();
    assert!(child.receive::<bool>(), "the importer does not have the bytes at its new address");
    drop(exporter);
    child.finish();
}

fn applies_behind_a_wall<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let channel = channel_from(peer);
    let place = subject.hole(8);
    let mut imported = receive(subject, ImportOptions::new().at(Placement::Exact(place)), channel);
    imported.region_mut().set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    let _wall = subject.region(1).at(Placement::Exact(place + subject.unit())).build().unwrap();
    peer.send(());
    let event = imported.next(SOON).unwrap();
    assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
    let error = imported.apply(idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    assert_eq!((imported.region().address(), imported.region().end()), (place, subject.unit()));
    assert!(imported.is_behind());
    peer.receive::<()>();
    assert_eq!(imported.apply_or_move(idle()).unwrap(), GrowthKind::Remapped);
    leaks::counts_import();
    assert_ne!(imported.region().address(), place);
    let access = [Bytes(0), subject.unit()].map(|at| imported.region().access(at, subject.device));
    assert_eq!(access, [Access::Read, RW]);
    peer.send(has(subject, imported.region(), SEED + 1));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn a_region_to_read<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 2]);
    write(subject, &mut region, SEED);
    let mut child = subject.child();
    let exporter = share(subject, channel_to(&mut child), &region);
    child.receive::<()>();
    write(subject, &mut region, SEED + 1);
    child.send(());
    child.receive::<()>();
    assert!(has(subject, &region, SEED + 1), "the importer has written");
    drop(exporter);
    child.finish();
}

fn imports_to_read<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new().read_only(), channel_from(peer));
    assert_eq!(imported.region().access(Bytes(0), subject.device), Access::Read);
    assert!(has(subject, imported.region(), SEED));
    let refused = imported.region_mut().write(Bytes(0), &[0; 8]).unwrap_err();
    assert!(matches!(refused.detail(), Detail::NoAccess { have: Access::Read, .. }), "{refused}");
    peer.send(());
    peer.receive::<()>();
    assert!(has(subject, imported.region(), SEED + 1), "the importer does not read a later write");
    peer.send(());
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn release_requested<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 1]);
    write(subject, &mut region, SEED);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    assert!(matches!(
        exporter.wait_released(Duration::from_millis(1)).as_ref().map_err(Error::extension),
        Err(Some(PeerError::TimedOut { .. }))
    ));
    exporter.request_release().unwrap();
    assert_eq!(exporter.wait_released(SOON).unwrap(), ReleaseOutcome::Released);
    child.receive::<()>();
    child.finish();
    assert!(has(subject, &region, SEED), "the exporter's memory has changed");
}

fn releases<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    let before = subject.free_here();
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::ReleaseRequested));
    imported.release(idle()).unwrap();
    assert!(subject.free_here() + subject.unit() > before);
    peer.send(());
}

fn an_importer_is_killed<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 1]);
    write(subject, &mut region, SEED);
    for round in 1..=2 {
        let mut child = subject.child();
        let mut exporter = share(subject, channel_to(&mut child), &region);
        child.send(round);
        child.receive::<()>();
        child.kill();
        child.finish_by(libc::SIGKILL);
        assert_eq!(exporter.wait_released(SOON).unwrap(), ReleaseOutcome::Gone);
        let refused = exporter.publish(&region).unwrap_err();
        assert!(matches!(refused.extension(), Some(PeerError::Gone { .. })), "{refused}");
        assert!(has(subject, &region, SEED + round), "the importer's last write is lost");
    }
}

fn holds_until_killed<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    let round = peer.receive::<u64>();
    assert!(has(subject, imported.region(), SEED + round - 1));
    write(subject, imported.region_mut(), SEED + round);
    peer.send(());
    peer.receive::<()>();
}

fn killed_before_it_applies<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1]);
    for units in [2, 3] {
        write(subject, &mut region, SEED);
        let mut child = subject.child();
        let mut exporter = share(subject, channel_to(&mut child), &region);
        assert!(child.receive::<bool>(), "the importer does not read the exporter's write");
        or_cannot_share(subject, region.grow_to(subject.units(units)));
        exporter.publish(&region).unwrap();
        child.receive::<()>();
        assert!(exporter.is_connected());
        child.kill();
        let error = exporter.wait_applied(SOON).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
        assert!(!exporter.is_connected());
        child.finish_by(libc::SIGKILL);
        write(subject, &mut region, SEED + 1);
        assert!(has(subject, &region, SEED + 1));
    }
}

fn leaves_a_change<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    peer.send(has(subject, imported.region(), SEED));
    let event = imported.next(SOON).unwrap();
    assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
    peer.send(());
    // Waits to be killed.
    peer.receive::<()>();
}

fn what_cannot_be_shared<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let mut child = subject.child();
    let error = Exporter::share(channel_to(&mut child), &region).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "expected Unsupported, not: {error}");
    child.finish();
}

fn waits_for_nothing<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    // If the exporter was fast, opening the channel already fails.
    let channel = Channel::from_socket(peer.receive_fd(), Allowed::same_user());
    let error =
        channel.and_then(|channel| ImportOptions::new().receive(&subject.backend, channel)).unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
}

fn a_path_of_another_listener<B: TestKit>(_: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("socket");
    let first = Listener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = Listener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists(), "the first listener removed the path of the second");
    drop(second);
    assert!(!path.exists(), "the listener did not remove its path");
}

fn refused_once<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    child.receive::<()>();
    or_cannot_share(subject, region.grow_to(subject.units(2)));
    exporter.publish(&region).unwrap();
    child.receive::<()>();
    let _ = region.shrink_to(subject.unit(), idle()).unwrap();
    exporter.publish(&region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    drop(exporter);
    child.finish();
}

fn refuses_once<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let channel = channel_from(peer);
    let place = subject.hole(8);
    let mut imported = receive(subject, ImportOptions::new().at(Placement::Exact(place)), channel);
    let _wall = subject.region(1).at(Placement::Exact(place + subject.unit())).build().unwrap();
    peer.send(());
    for fits in [false, true] {
        let event = imported.next(SOON).unwrap();
        assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
        assert_eq!(imported.apply(idle()).is_ok(), fits);
        if !fits {
            leaks::counts_import();
            peer.send(());
        }
    }
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}
