//! The contents of a region after a move, for every path.

use super::{SEED, check, filled, owners, two, ways};
use crate::case::cases;
use crate::library::flights::{finish, goes_on, start, start_longer};
use crate::library::tools::{idle, streams_idle};
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{
    Access, Bytes, Location, MovePath, Moved, Operation, PhysicalMemory, Placement, Region, StagingRing,
};
use gpu_vmm_testkit::TestKit;

cases! { "moved":
    /// After a move by any path, the new device's kernels find and write the bytes at the old address, and the old device's
    /// memory is free again.
    to_the_other_device,
    /// If the new device can access the old device's memory, bytes move by a peer copy unless the caller requests the ring,
    /// and the result reports the path.
    reports_the_move_path,
    /// A ring moves parts whose sizes are not multiples of its chunks, with one thread and with several.
    through_rings_of_all_sizes,
    /// A region that is moved away and back has the same bytes, address and access.
    there_and_back,
    /// Mappings with holes between them, and in several reservations, keep their offsets.
    holes_and_borders,
    /// Memory that already belongs to the new device stays the same memory, and is not counted as moved.
    what_is_there_already,
    /// Memory that is mapped twice is copied once and stays one piece.
    aliases_stay_aliases,
    /// An empty region moves without a copy, and then grows by the new device's memory.
    an_empty_region,
    /// Host memory is moved too, and stays host memory.
    memory_of_the_host,
    /// A move returns after the work on the region has ended, and keeps the results of that work.
    work_is_waited_for,
    /// Work on another region continues while a move waits for a stream, and other regions are unchanged.
    other_regions_keep_working,
}

fn to_the_other_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let ring = StagingRing::new(&subject.backend, 1, subject.granules(1)).unwrap();
    for via in ways(&ring) {
        let before = [a, b].map(|device| subject.free_of(device));
        let mut region = filled(subject, &[2, 1]);
        region.write(Bytes(8), b"from the host").unwrap();
        let (address, size) = (region.address(), subject.granules(3));
        let moved = region.move_to_device(b, via, idle()).unwrap();
        assert_eq!(moved.by_peer + moved.through_host, size);
        assert_eq!((region.address(), region.end(), owners(&region)), (address, size, vec![b, b]));
        let wrong = region.count_wrong(b, Bytes(24), size - Bytes(24), SEED + 3).unwrap();
        assert_eq!(wrong, 0, "words that differ as the new device's kernel reads them");
        let mut bytes = [0; 13];
        region.read(Bytes(8), &mut bytes).unwrap();
        assert_eq!(&bytes, b"from the host");
        region.write_pattern(b, Bytes(0), size, 9).unwrap();
        assert_eq!(region.count_wrong(b, Bytes(0), size, 9).unwrap(), 0);
        if subject.gives_back_at_once() {
            let after = [a, b].map(|device| subject.free_of(device));
            assert_eq!(after, [before[0], before[1] - size]);
        }
    }
}

fn reports_the_move_path<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let peers = subject.backend.can_access(b, subject.device).unwrap();
    let ring = StagingRing::new(&subject.backend, 1, subject.granules(1)).unwrap();
    let size = subject.granules(2);
    for via in ways(&ring) {
        let mut region = filled(subject, &[2]);
        let moved = region.move_to_device(b, via, idle()).unwrap();
        let by_peer = peers && matches!(via, MovePath::Fastest(_));
        let expected = if by_peer {
            Moved { by_peer: size, through_host: Bytes(0) }
        } else {
            Moved { by_peer: Bytes(0), through_host: size }
        };
        assert_eq!(moved, expected);
        check(&region, b);
    }
}

fn through_rings_of_all_sizes<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let granule = subject.granularity();
    for (threads, chunk) in
        [(1, granule.0 * 8), (1, granule.0), (2, granule.0 / 4 + 24), (3, granule.0 * 3 / 2)]
    {
        let ring = StagingRing::new(&subject.backend, threads, Bytes(chunk)).unwrap();
        let mut region = filled(subject, &[1, 3, 1, 2]);
        region.move_to_device(b, MovePath::Ring(&ring), idle()).unwrap();
        check(&region, b);
        // The same ring again, in the other direction.
        region.move_to_device(a, MovePath::Ring(&ring), idle()).unwrap();
        check(&region, a);
    }
}

fn there_and_back<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let before = subject.free();
    let mut region = filled(subject, &[1, 2]);
    let address = region.address();
    for device in [b, a, b, a] {
        region.move_to_device(device, MovePath::Fastest(None), idle()).unwrap();
        check(&region, device);
        assert_eq!((region.address(), owners(&region)), (address, vec![device; 2]));
    }
    assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (RW, Access::None));
    drop(region);
    assert_eq!(subject.free(), before);
}

fn holes_and_borders<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let at = Placement::Exact(subject.hole(64));
    let mut region = subject.region(3).at(at).extend_by(subject.unit()).build().unwrap();
    let places = [(0, 1), (2, 1), (3, 1)];
    subject.open(&mut region, Bytes(0), &subject.memory(1));
    subject.open(&mut region, subject.units(2), &subject.memory(1));
    region.grow_to(subject.units(4)).unwrap();
    assert_eq!(region.reservations().len(), 2);
    for (unit, count) in places {
        subject.write(&mut region, subject.units(unit), subject.units(count), SEED + unit);
    }
    let before: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    let ranges: Vec<_> = region.reservations().collect();
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect::<Vec<_>>(), before);
    assert_eq!((region.reservations().collect::<Vec<_>>(), owners(&region)), (ranges, vec![b; 3]));
    for (unit, count) in places {
        let wrong = region.count_wrong(b, subject.units(unit), subject.units(count), SEED + unit);
        assert_eq!(wrong.unwrap(), 0);
        assert_eq!(region.access(subject.units(unit), a), Access::None);
    }
}

fn what_is_there_already<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(6).on(a).access(b, RW).build().unwrap();
    region.grow_to(subject.granules(1)).unwrap();
    region.grow_to_on(b, subject.granules(3)).unwrap();
    region.grow_to(subject.granules(4)).unwrap();
    region.write_pattern(b, Bytes(0), region.end(), SEED).unwrap();
    let there = region.mapping_at(subject.granules(1)).unwrap().memory.clone();
    let moved = region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(moved.by_peer, subject.granules(2));
    assert_eq!(owners(&region), [b, b, b]);
    assert!(region.mapping_at(subject.granules(1)).unwrap().memory.is_same_as(&there));
    check(&region, b);
    assert_eq!(region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap(), Moved::default());
    check(&region, b);
}

fn aliases_stay_aliases<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let free = subject.free_of(b);
    let mut region = subject.space(5).build().unwrap();
    let memory = subject.piece(2);
    for at in [0, 3] {
        subject.open(&mut region, subject.granules(at), &memory);
    }
    subject.write(&mut region, Bytes(0), subject.granules(2), SEED);
    drop(memory);
    let moved = region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(moved.by_peer + moved.through_host, subject.granules(2));
    assert_eq!(subject.free_of(b), free - subject.granules(2));
    let length = subject.granules(2);
    assert_eq!(region.count_wrong(b, subject.granules(3), length, SEED).unwrap(), 0);
    region.write_pattern(b, Bytes(0), length, 6).unwrap();
    assert_eq!(region.count_wrong(b, subject.granules(3), length, 6).unwrap(), 0);
}

fn an_empty_region<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let mut region = subject.space(2).build().unwrap();
    assert_eq!(region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap(), Moved::default());
    region.grow_to(subject.granules(1)).unwrap();
    assert_eq!((owners(&region), region.access(Bytes(0), b)), (vec![b], RW));
}

fn memory_of_the_host<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let properties = subject.properties().located(Location::Host);
    let size = or_skip(subject.backend.granularity_of(Operation::QueryGranularity, &properties)).bytes();
    drop(or_skip(PhysicalMemory::create(&subject.backend, size, properties)));
    let mut region = Region::builder(&subject.backend).memory(properties).reserve(size).build().unwrap();
    region.grow_to(size).unwrap();
    subject.write(&mut region, Bytes(0), size, SEED);
    let moved = region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(moved.by_peer + moved.through_host, size);
    let now = region.mapping_at(Bytes(0)).unwrap().memory.properties();
    assert_eq!((now.device, now.location), (b, Location::Host));
    check(&region, b);
    assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (Access::None, RW));
}

fn work_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 40;
    let (_, b) = two(subject);
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert!(flight.is_done().unwrap(), "moved before the work on the region had ended");
    assert_eq!(region.count_wrong(b, Bytes(0), subject.unit(), AFTER).unwrap(), 0);
}

fn other_regions_keep_working<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 40;
    let (_, b) = two(subject);
    let mut other = filled(subject, &[2]);
    let mut theirs = subject.space(1).on(b).build().unwrap();
    theirs.grow_to(subject.granules(1)).unwrap();
    theirs.write_pattern(b, Bytes(0), theirs.end(), SEED).unwrap();
    goes_on(subject, |times| {
        let mut busy = subject.region(1).build().unwrap();
        busy.grow_to(subject.unit()).unwrap();
        let mut region = filled(subject, &[1]);
        let long = start_longer(subject, &busy, Bytes(0), AFTER, 2 * times);
        region.move_to_device(b, MovePath::Fastest(None), streams_idle(&[])).unwrap();
        let went_on = !long.is_done().unwrap();
        finish(subject, &*long);
        subject.check(&busy, Bytes(0), subject.unit(), AFTER);
        check(&region, b);
        went_on
    });
    check(&other, subject.device);
    check(&theirs, b);
    other.write(Bytes(0), b"still here").unwrap();
    other.grow_to(subject.granules(3)).unwrap();
}
