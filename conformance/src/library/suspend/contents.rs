//! What a resume restores: bytes, access, aliases and holes, from each kind of backing store.

use super::{check_mappings, check_varied, directory, keeping, pinned, resume, ring, suspend, varied};
use crate::case::cases;
use crate::library::tools::{has, idle, streams_idle, write};
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{Access, BackingKind, BackingStore, Bytes, DeviceVec, PhysicalMemory, Placement};
use gpu_vmm_testkit::TestKit;

cases! { "suspend":
    /// A region is resumed at its address with the same bytes, access, aliases and holes, from every store that keeps
    /// contents.
    comes_back,
    /// Without a store, a region is resumed with the same access, aliases and holes, and can be used.
    comes_back_without_contents,
    /// A region of several reservations is restored in all of them.
    over_several_reservations,
    /// Memory of two devices in one region is restored on each device, with the access of the other.
    with_memory_of_two_devices,
    /// Memory that is large enough for copies and mapping to overlap is restored completely, from a store and through a ring.
    more_than_is_mapped_at_once,
    /// Many small pieces with differing access are restored in their order.
    many_small_pieces,
    /// A vector keeps its elements and its pointer.
    of_a_vector,
    /// Shareable memory is shareable again after a resume, and can be exported.
    of_memory_that_can_be_shared,
    /// A suspension waits for work on the memory, and the resume restores the work's result.
    waits_for_work,
    /// A suspension can wait for the work on one stream.
    waits_for_a_stream,
}

fn comes_back<B: TestKit>(subject: &Subject<B>) {
    let several = BackingStore::files([directory(), directory()], ring(subject)).unwrap();
    for store in keeping(subject, super::MEMORY).into_iter().chain([several]) {
        let mut region = varied(subject);
        let (range, mapped, end) = (region.range(), region.mapped(), region.end());
        let memory = subject.granules(super::MEMORY);
        let did = suspend(&mut region, &store);
        assert_eq!((did.memory, did.kept), (memory, memory), "{:?}", store.kind());
        let did = resume(&mut region);
        assert_eq!((did.memory, did.contents), (memory, memory), "{:?}", store.kind());
        assert_eq!((region.range(), region.mapped(), region.end()), (range, mapped, end));
        check_varied(subject, &mut region);
        // Still one piece, and not two with the same bytes.
        let [one, other] = [0, 4].map(|at| subject.granules(at));
        subject.write(&mut region, other, subject.granules(2), 77);
        subject.check(&region, one, subject.granules(2), 77);
    }
}

fn comes_back_without_contents<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    let range = region.range();
    let did = suspend(&mut region, &BackingStore::nothing());
    assert_eq!((did.memory, did.kept), (subject.granules(super::MEMORY), Bytes(0)));
    let did = resume(&mut region);
    assert_eq!((did.memory, did.contents), (subject.granules(super::MEMORY), Bytes(0)));
    assert_eq!(region.range(), range);
    check_mappings(subject, &region);
    subject.write(&mut region, subject.granules(4), subject.granules(2), 5);
    subject.check(&region, Bytes(0), subject.granules(2), 5);
    region.write(subject.granules(8), b"used").unwrap();
    assert!(region.write(subject.granules(6), b"x").is_err());
}

fn over_several_reservations<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(64));
    let mut region = subject.region(1).at(at).extend_by(subject.unit()).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    write(subject, &mut region, 3);
    let ranges: Vec<_> = region.reservations().collect();
    assert!(ranges.len() > 1, "{ranges:?}");
    for store in keeping(subject, region.end().0 / subject.granularity().0) {
        suspend(&mut region, &store);
        assert_eq!(region.reservations().collect::<Vec<_>>(), ranges);
        resume(&mut region);
        assert_eq!(region.reservations().collect::<Vec<_>>(), ranges);
        assert!(has(subject, &region, 3), "{:?}", store.kind());
    }
    region.grow_to(subject.units(4)).unwrap();
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(3), 3).unwrap(), 0);
}

fn with_memory_of_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (here, there) = subject.two_devices();
    let mut region = subject.space(8).build().unwrap();
    let pieces = [
        (0, here, there, RW),
        (2, there, here, Access::Read),
        (4, here, there, Access::Read),
        (6, there, there, RW),
    ];
    for (at, owner, peer, access) in pieces {
        let (offset, memory) = (subject.granules(at), subject.piece_on(owner, 2));
        region.map(offset, &memory).unwrap();
        region.set_access(offset, memory.size(), owner, RW).unwrap();
        region.write_pattern(owner, offset, memory.size(), at).unwrap();
        region.set_access(offset, memory.size(), peer, access).unwrap();
    }
    let free = [here, there].map(|device| subject.free_of(device));
    for store in keeping(subject, 8) {
        suspend(&mut region, &store);
        resume(&mut region);
        assert_eq!([here, there].map(|device| subject.free_of(device)), free);
        for (at, owner, peer, access) in pieces {
            let (offset, length) = (subject.granules(at), subject.granules(2));
            assert_eq!(region.mapping_at(offset).unwrap().memory.device(), owner);
            assert_eq!(region.access(offset, peer), access);
            for device in [owner, peer] {
                let wrong = region.count_wrong(device, offset, length, at).unwrap();
                assert_eq!(wrong, 0, "{device} at {at} from {:?}", store.kind());
            }
        }
    }
}

fn more_than_is_mapped_at_once<B: TestKit>(subject: &Subject<B>) {
    // Three pieces of 40 MiB: copying begins when 64 MiB are mapped.
    let granules = Bytes::mib(40).0.div_ceil(subject.granularity().0);
    let mut region = subject.space(3 * granules).build().unwrap();
    for count in 1..=3 {
        region.grow_to(subject.granules(count * granules)).unwrap();
    }
    write(subject, &mut region, 9);
    let (second, length) = (subject.granules(granules), subject.granules(granules));
    region.set_access(second, length, subject.device, Access::Read).unwrap();
    for store in [pinned(subject, 3 * granules), BackingStore::pageable(ring(subject))] {
        suspend(&mut region, &store);
        resume(&mut region);
        assert!(has(subject, &region, 9), "{:?}", store.kind());
        assert_eq!(region.access(second, subject.device), Access::Read);
        assert!(region.write(second, &[0]).is_err());
    }
}

fn many_small_pieces<B: TestKit>(subject: &Subject<B>) {
    const COUNT: u64 = 24;
    let mut region = subject.space(COUNT).build().unwrap();
    for at in 0..COUNT {
        subject.open(&mut region, subject.granules(at), &subject.piece(1));
    }
    write(subject, &mut region, 4);
    let access = |at: u64| if at % 5 < 2 { Access::Read } else { RW };
    for at in 0..COUNT {
        region.set_access(subject.granules(at), subject.granularity(), subject.device, access(at)).unwrap();
    }
    for store in keeping(subject, COUNT) {
        suspend(&mut region, &store);
        resume(&mut region);
        assert!(has(subject, &region, 4), "{:?}", store.kind());
        for at in 0..COUNT {
            let offset = subject.granules(at);
            assert_eq!(region.access(offset, subject.device), access(at));
            let mut first = [0];
            region.read(offset, &mut first).unwrap();
            assert_eq!(region.write(offset, &first).is_ok(), access(at) == RW, "at {at}");
        }
    }
}

fn of_a_vector<B: TestKit>(subject: &Subject<B>) {
    let store = pinned(subject, 64);
    let mut vector = DeviceVec::<u32, B>::build(subject.space(64)).unwrap();
    let values: Vec<u32> = (0..5000).collect();
    vector.extend_from_slice(&values).unwrap();
    let pointer = vector.as_device_ptr();
    vector.suspend(&store, idle()).unwrap();
    assert_eq!((vector.len(), vector.capacity()), (5000, 0));
    assert!(vector.get(0).is_err() && vector.push(1).is_err());
    vector.resume().unwrap();
    assert_eq!(vector.as_device_ptr(), pointer);
    assert_eq!(vector.to_vec().unwrap(), values);
    vector.push(5000).unwrap();
    assert_eq!(vector.get(5000).unwrap(), 5000);
}

fn of_memory_that_can_be_shared<B: TestKit>(subject: &Subject<B>) {
    let properties = subject.properties().shareable();
    let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granularity(), properties));
    let mut region = subject.space(1).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    drop(memory);
    write(subject, &mut region, 2);
    suspend(&mut region, &pinned(subject, 1));
    resume(&mut region);
    assert!(has(subject, &region, 2));
    let memory = region.mapping_at(Bytes(0)).unwrap().memory;
    assert_eq!(memory.properties(), properties);
    drop(or_skip(memory.export()));
}

/// The seed of the pattern that the work writes.
const AFTER: u64 = 1 << 40;

/// Suspends a region while work runs on it, and checks the work's result after the resume.
fn under_work<B: TestKit>(subject: &Subject<B>, on_its_stream: bool) {
    let units = subject.unit().0 / subject.granularity().0;
    for store in [pinned(subject, units), BackingStore::nothing()] {
        let mut region = subject.region(1).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        let flight = crate::library::flights::start(subject, &region, Bytes(0), AFTER);
        let streams = [flight.stream()];
        let done = if on_its_stream { streams_idle(&streams) } else { idle() };
        region.suspend(&store, done).unwrap();
        assert!(flight.is_done().unwrap(), "suspended before the work had ended");
        resume(&mut region);
        if store.kind() != BackingKind::Nothing {
            assert!(has(subject, &region, AFTER), "copied before the work had ended");
        }
    }
}

fn waits_for_work<B: TestKit>(subject: &Subject<B>) {
    under_work(subject, false);
}

fn waits_for_a_stream<B: TestKit>(subject: &Subject<B>) {
    under_work(subject, true);
}
