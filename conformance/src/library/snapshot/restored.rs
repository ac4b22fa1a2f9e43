//! The restored parts of a snapshot.

use super::{filled, restore_one, ring, save};
use crate::case::cases;
use crate::library::flights;
use crate::library::folder::Folder;
use crate::library::tools::{idle, refused, streams_idle};
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{
    Access, Address, Bytes, Detail, DeviceId, GrowthKind, PhysicalMemory, Placement, Properties, Region,
    StagingRing, WaitFor,
};
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm_testkit::TestKit;

cases! { "snapshot":
    /// A region that was written and dropped is restored at its address with its mappings, holes, access, tag and contents.
    comes_back_as_it_was,
    /// A restored region works like any other: it grows by the same memory with the same access, and shrinks.
    goes_on_growing,
    /// Growth of a restored region gives the same devices access as before the snapshot.
    grows_for_the_same_devices,
    /// Memory that is mapped several times, in one region or in two, is one piece again, and is written once.
    what_is_mapped_twice,
    /// Pieces are restored correctly if the first piece may be written only through its last mapping.
    what_is_read_only_at_first,
    /// A region of several reservations has the same reservations again, at the same addresses, and its step of extension.
    of_several_reservations,
    /// A region with memory of two devices has it again, and each device has the access that it had.
    of_two_devices,
    /// Memory that its owner may not read is in the snapshot, and may not be read after the restore either.
    unreadable_memory,
    /// Memory that the host can access is written and restored, and the host can access it again.
    memory_that_the_host_reaches,
    /// A region without mappings is restored with its addresses.
    addresses_alone,
    /// A guarded region has its guard again, also elsewhere, and cannot be extended into it.
    of_a_guarded_region,
    /// A portable region is portable again: at its address, or at a restorable address if its own is taken.
    of_a_portable_region,
    /// Restoring works with any number of threads and any buffer size of the ring.
    with_any_ring,
    /// Exportable memory is exportable again, as new memory, and so is the memory by which its region grows.
    of_memory_to_be_shared,
    /// A snapshot waits for running work, and contains its writes.
    after_the_work_that_writes,
}

fn memory_that_the_host_reaches<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = filled(subject, 1, 1);
    or_skip(region.set_access(Bytes(0), subject.unit(), DeviceId::HOST, RW));
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(region.access(Bytes(0), DeviceId::HOST), RW);
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn comes_back_as_it_was<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let granule = subject.granularity();
    let place = Placement::Exact(subject.hole(8));
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(subject.granules(8)).at(place);
    let mut region = builder.tag("weights: layer 1").build().unwrap();
    // Granules 0, 1 and 2 in two pieces, a hole, and granules 4 and 5.
    for (at, count) in [(0, 1), (1, 2), (4, 2)] {
        subject.open(&mut region, subject.granules(at), &subject.piece(count));
        subject.write(&mut region, subject.granules(at), subject.granules(count), at);
    }
    region.set_access(granule, subject.granules(2), subject.device, Access::Read).unwrap();
    let seen = |region: &Region<B>| {
        let mappings = region.mappings().map(|mapping| {
            let properties = mapping.memory.properties();
            (mapping.offset, mapping.length, properties, region.access(mapping.offset, subject.device))
        });
        (region.reservations().collect::<Vec<_>>(), region.tag().to_owned(), mappings.collect::<Vec<_>>())
    };
    let before = seen(&region);
    let (file, stats) = save(&folder, "a", &[&region]);
    assert_eq!(stats.contents, subject.granules(5), "the hole has contents");
    drop(region);
    let restored = restore_one(&subject.backend, &Restore::new(), &file);
    let region = restored.region;
    assert_eq!(seen(&region), before);
    assert_eq!(restored.was, region.range());
    for (at, count) in [(0, 1), (1, 2), (4, 2)] {
        subject.check(&region, subject.granules(at), subject.granules(count), at);
    }
    assert!(region.mapping_at(subject.granules(3)).is_none());
    // The same file again, after the regions of the first restore were dropped.
    drop(region);
    let again = restore_one(&subject.backend, &Restore::new(), &SnapshotFile::open(file.path()).unwrap());
    assert_eq!(seen(&again.region), before);
}

fn goes_on_growing<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = filled(subject, 2, 1);
    let (file, _) = save(&folder, "a", &[&region]);
    let grown = region.grow_to(subject.units(3)).unwrap();
    drop(region);
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(region.grow_to(subject.units(3)).unwrap(), grown, "the restored region grew in another way");
    subject.write(&mut region, subject.units(2), subject.unit(), 2);
    subject.check(&region, Bytes(0), subject.units(2), 1);
    subject.check(&region, subject.units(2), subject.unit(), 2);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    assert!(region.mapped().is_zero());
}

fn grows_for_the_same_devices<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let place = Placement::Exact(subject.hole(4));
    let mut region = subject.region(2).at(place).access(other, Access::Read).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    region.grow_to(subject.units(2)).unwrap();
    for at in [Bytes(0), subject.unit()] {
        assert_eq!([one, other].map(|device| region.access(at, device)), [RW, Access::Read], "at {at}");
    }
}

fn what_is_mapped_twice<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let granule = subject.granularity();
    let hole = subject.hole(16);
    let place = |units| Placement::Exact(hole.checked_add(subject.units(units)).unwrap());
    let memory = subject.piece(1);
    let mut first = subject.space(3).at(place(0)).tag("first").build().unwrap();
    subject.open(&mut first, Bytes(0), &memory);
    subject.open(&mut first, granule, &subject.piece(1));
    subject.open(&mut first, granule + granule, &memory);
    let mut second = subject.space(1).at(place(8)).tag("second").build().unwrap();
    second.map(Bytes(0), &memory).unwrap();
    second.set_access(Bytes(0), granule, subject.device, Access::Read).unwrap();
    subject.write(&mut first, Bytes(0), granule, 1);
    subject.write(&mut first, granule, granule, 2);
    let (file, stats) = save(&folder, "a", &[&first, &second, &first]);
    assert_eq!(stats.contents, granule + granule, "a piece was written more than once");
    drop((first, second, memory));
    let before = subject.free_here();
    let mut all = Restore::new().regions(&file, &ring(&subject.backend)).unwrap();
    assert_eq!(subject.free_here(), before - granule - granule);
    let (second, mut first) = (all.pop().unwrap().region, all.pop().unwrap().region);
    assert_eq!((first.tag(), second.tag(), all.len()), ("first", "second", 0));
    let of = |region: &Region<B>, at| region.mapping_at(at).unwrap().memory.clone();
    let memory = of(&first, Bytes(0));
    assert!(memory.is_same_as(&of(&first, granule + granule)) && memory.is_same_as(&of(&second, Bytes(0))));
    assert!(!memory.is_same_as(&of(&first, granule)));
    subject.check(&second, Bytes(0), granule, 1);
    subject.check(&first, granule, granule, 2);
    subject.write(&mut first, granule + granule, granule, 3);
    subject.check(&second, Bytes(0), granule, 3);
    assert_eq!(second.access(Bytes(0), subject.device), Access::Read);
}

fn what_is_read_only_at_first<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let granule = subject.granularity();
    let mut region = subject.space(3).at(Placement::Exact(subject.hole(4))).build().unwrap();
    let memory = subject.piece(1);
    for (at, memory) in [(0, &memory), (1, &subject.piece(1)), (2, &memory)] {
        subject.open(&mut region, subject.granules(at), memory);
    }
    subject.write(&mut region, Bytes(0), granule, 1);
    subject.write(&mut region, granule, granule, 2);
    region.set_access(Bytes(0), granule, subject.device, Access::Read).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop((region, memory));
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    for (at, seed) in [(0, 1), (1, 2), (2, 1)] {
        subject.check(&region, subject.granules(at), granule, seed);
    }
}

fn of_several_reservations<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let place = Placement::Exact(subject.hole(16));
    let mut region = subject.region(2).at(place).extend_by(subject.units(1)).build().unwrap();
    for units in [2, 3, 5] {
        region.grow_to(subject.units(units)).unwrap();
    }
    subject.write(&mut region, Bytes(0), subject.units(5), 1);
    let before: Vec<_> = region.reservations().collect();
    assert_eq!(before.len(), 3, "{before:?}");
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(region.reservations().collect::<Vec<_>>(), before);
    assert_eq!(region.settings().extend_by, subject.units(1));
    subject.check(&region, Bytes(0), subject.units(5), 1);
    assert_eq!(region.grow_to(subject.units(6)).unwrap().how, GrowthKind::Extended);
}

fn of_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let granule = subject.granularity();
    let mut region = subject.space(3).at(Placement::Exact(subject.hole(4))).build().unwrap();
    for (at, owner) in [(0, one), (1, other), (2, one)] {
        let offset = subject.granules(at);
        region.map(offset, &subject.piece_on(owner, 1)).unwrap();
        region.set_access(offset, granule, owner, RW).unwrap();
    }
    region.set_access(Bytes(0), granule, other, Access::Read).unwrap();
    region.write_pattern(one, Bytes(0), granule, 1).unwrap();
    region.write_pattern(other, granule, granule, 2).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    let owners: Vec<_> = region.mappings().map(|mapping| mapping.memory.device()).collect();
    assert_eq!(owners, [one, other, one]);
    let access = |at| [one, other].map(|device| region.access(subject.granules(at), device));
    let expected = [[RW, Access::Read], [Access::None, RW], [RW, Access::None]];
    assert_eq!([0, 1, 2].map(access), expected);
    assert_eq!(region.count_wrong(other, Bytes(0), granule, 1).unwrap(), 0, "the peer reads other bytes");
    assert_eq!(region.count_wrong(other, granule, granule, 2).unwrap(), 0);
}

fn unreadable_memory<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let granule = subject.granularity();
    let mut region = subject.space(2).at(Placement::Exact(subject.hole(4))).build().unwrap();
    for at in [Bytes(0), granule] {
        subject.open(&mut region, at, &subject.piece(1));
        subject.write(&mut region, at, granule, 1 + at.0);
    }
    region.set_access(granule, granule, subject.device, Access::None).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    assert_eq!(region.access(granule, subject.device), Access::None, "the snapshot changed the access");
    drop(region);
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    let access = |region: &Region<B>| [Bytes(0), granule].map(|at| region.access(at, subject.device));
    assert_eq!(access(&region), [RW, Access::None]);
    assert!(region.read(granule, &mut [0]).is_err());
    region.set_access(granule, granule, subject.device, Access::Read).unwrap();
    subject.check(&region, granule, granule, 1 + granule.0);
}

fn addresses_alone<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let region = subject.region(4).at(Placement::Exact(subject.hole(4))).tag("empty").build().unwrap();
    let range = region.range();
    let (file, stats) = save(&folder, "a", &[&region]);
    assert_eq!((stats.contents, stats.blocks), (Bytes(0), 0));
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!((region.range(), region.tag(), region.mapped()), (range, "empty", Bytes(0)));
}

fn of_a_guarded_region<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let guard = subject.units(2);
    let at = subject.hole(16).checked_add(subject.units(4)).unwrap();
    let builder = subject.region(2).at(Placement::Exact(at)).guard(guard).access(subject.device, RW);
    let mut region = builder.build().unwrap();
    region.grow_to(region.reserved()).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    let range = region.range();
    let (file, _) = save(&folder, "a", &[&region]);
    let check = |region: &mut Region<B>| {
        assert_eq!((region.guard(), region.reserved()), (guard, range.size));
        subject.check(region, Bytes(0), range.size, 1);
        let base = region.address().0;
        for beside in [
            base - guard.0,
            base - subject.unit().0,
            base + range.size.0,
            base + range.size.0 + subject.unit().0,
        ] {
            let taken = subject.region(1).at(Placement::Exact(Address(beside))).build().unwrap_err();
            assert!(matches!(taken.detail(), Detail::AddressTaken { .. }), "{taken}");
        }
        refused!(region.grow_to(range.size + Bytes(1)), Detail::Guarded { .. }, guard);
    };
    let mut moved = restore_one(&subject.backend, &Restore::new().relocate(), &file).region;
    assert_ne!(moved.address(), at);
    check(&mut moved);
    drop((region, moved));
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(region.range(), range);
    check(&mut region);
}

fn of_a_portable_region<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let size = Bytes::mib(32);
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(size).portable();
    let hole = Placement::Exact(subject.hole(size.0.div_ceil(subject.unit().0)));
    let mut region = builder.at(hole).build().unwrap();
    let grown = region.grow_to(Bytes(1)).unwrap();
    let granule = region.granularity().bytes();
    subject.write(&mut region, Bytes(0), granule, 1);
    let (range, end) = (region.range(), grown.end);
    let (file, _) = save(&folder, "a", &[&region]);
    let check = |region: &mut Region<B>| {
        assert!(region.is_portable());
        assert_eq!(
            (region.granularity().bytes(), region.end(), region.reserved()),
            (granule, end, range.size)
        );
        subject.check(region, Bytes(0), granule, 1);
        assert_eq!(region.grow_to(end + Bytes(1)).unwrap().end, end + granule);
    };
    let moved = Restore::new().relocate();
    let mut others = [0, 1].map(|_| restore_one(&subject.backend, &moved, &file).region);
    let window = Address(0x3800_0000_0000)..Address(0x5000_0000_0000);
    for other in &mut others {
        assert!(window.contains(&other.address()), "{}", other.range());
        check(other);
    }
    drop((region, others));
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(region.range(), range);
    check(&mut region);
    // A region that is not portable is restored as not portable.
    drop(region);
    let (file, _) = save(&folder, "b", &[&filled(subject, 1, 1)]);
    assert!(!restore_one(&subject.backend, &Restore::new(), &file).region.is_portable());
}

fn with_any_ring<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    // Several blocks, of which the last one is partial.
    let memory =
        PhysicalMemory::create(&subject.backend, Bytes::mib(4) + Bytes::kib(4), subject.properties());
    let memory = memory.unwrap();
    let place = Placement::Exact(subject.hole(4));
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(memory.size()).at(place);
    let mut region = builder.build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    // Blocks of zeros between others.
    let (zeros, count, behind) = (Bytes::mib(1), Bytes::mib(2), Bytes::mib(3));
    let size = memory.size();
    subject.write(&mut region, Bytes(0), zeros, 1);
    region.fill(zeros, count, 0).unwrap();
    subject.write(&mut region, behind, size - behind, 2);
    let rings =
        [(1, Bytes::mib(16)), (2, Bytes::mib(1)), (3, Bytes::kib(768)), (2, Bytes::kib(4) + Bytes(24))];
    let rings = rings.map(|(threads, chunk)| StagingRing::new(&subject.backend, threads, chunk).unwrap());
    drop(memory);
    for (number, ring) in rings.iter().enumerate() {
        let path = folder.file(number.to_string());
        Snapshot::new(ring).region(&region).write(&path, idle()).unwrap();
        drop(region);
        let file = SnapshotFile::open(&path).unwrap();
        region = Restore::new().regions(&file, ring).unwrap().remove(0).region;
        subject.check(&region, Bytes(0), zeros, 1);
        let mut bytes = vec![1; count.to_usize().unwrap()];
        region.read(zeros, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        subject.check(&region, behind, size - behind, 2);
    }
}

fn of_memory_to_be_shared<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let memory = crate::library::sharing::shareable(subject, 1);
    let builder = subject.region(2).memory(memory.properties()).at(Placement::Exact(subject.hole(2)));
    let mut region = builder.build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), memory.size(), 1);
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
    let again = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    assert!(again.properties().is_shareable());
    drop(again.export().unwrap());
    region.grow_to(subject.units(2)).unwrap();
    assert!(region.mappings().all(|one| one.memory.properties().is_shareable()), "growth adds other memory");
    subject.write(&mut region, Bytes(0), memory.size(), 2);
    // The restored memory is other memory than the original.
    let mut old = subject.region(1).build().unwrap();
    subject.open(&mut old, Bytes(0), &memory);
    subject.check(&old, Bytes(0), memory.size(), 1);
    drop((region, again));
    // For a target that cannot share memory.
    let bare = Restore::new().memory(|was| Properties::on(was.device));
    let region = restore_one(&subject.backend, &bare, &file).region;
    assert!(!region.mapping_at(Bytes(0)).unwrap().memory.properties().is_shareable());
    subject.check(&region, Bytes(0), memory.size(), 1);
}

fn after_the_work_that_writes<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = filled(subject, 1, 1);
    let ring = ring(&subject.backend);
    let snapshot = |done: WaitFor<'_>, region: &Region<B>, name: &str| {
        Snapshot::new(&ring).region(region).write(folder.file(name), done).unwrap();
        SnapshotFile::open(folder.file(name)).unwrap()
    };
    let flight = flights::start(subject, &region, Bytes(0), 2);
    let all = snapshot(idle(), &region, "all");
    drop(flight);
    let flight = flights::start(subject, &region, Bytes(0), 3);
    let stream = snapshot(streams_idle(&[flight.stream()]), &region, "stream");
    drop(flight);
    for (file, seed) in [(all, 2), (stream, 3)] {
        drop(region);
        region = restore_one(&subject.backend, &Restore::new(), &file).region;
        subject.check(&region, Bytes(0), subject.unit(), seed);
    }
}
