//! Memory that suspensions add to the caller's list, and that resumes and growth take from it.

use super::{MEMORY, check_varied, keeping, pinned, varied};
use crate::case::cases;
use crate::library::tools::{has, idle, write};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Access, BackingStore, Bytes, Detail, PhysicalMemory, Region, RegionState};
use gpu_vmm_testkit::TestKit;
use std::slice;

cases! { "suspend":
    /// A suspension adds every piece to the list once, the memory stays allocated, and another region can grow by it.
    memory_goes_to_the_list,
    /// A resume takes fitting pieces from the list and creates the rest; contents, access and aliases are restored.
    a_resume_takes_from_the_list,
    /// Pieces of another size or with other properties stay in the list.
    unfit_pieces_stay_in_the_list,
    /// Pieces that are also held elsewhere stay in the list: by a clone, a mapping or an importer.
    what_others_hold_stays_in_the_list,
    /// Memory that another region also maps stays allocated, is not saved, and is mapped again with the bytes written
    /// meanwhile.
    shared_memory_stays,
    /// Memory that several regions share is saved once, when the last of them is suspended; the first that resumes restores it,
    /// and the others map the same memory.
    shared_memory_leaves_with_the_last,
    /// A second suspension saves shared memory that its other holders have let go of.
    shared_memory_leaves_the_second_time,
    /// Shared memory stays if the store keeps nothing or has no room; a second suspension returns the error.
    shared_memory_without_room_stays,
    /// Memory that the caller has cloned or exported stays allocated too.
    held_memory_stays,
    /// A resume without enough memory leaves the list with the same memory, and the region suspended.
    failed_resume_returns_the_list,
    /// A second suspension adds nothing to the list, and a resume of an active region takes nothing from it.
    a_second_time_leaves_the_list,
}

/// A region of one granule of `prefix` and one granule of its own, with room for four.
fn sequence<B: TestKit>(subject: &Subject<B>, prefix: &PhysicalMemory<B>, seed: u64) -> Region<B> {
    let mut region = subject.space(4).build().unwrap();
    region.map_with_access(Bytes(0), std::slice::from_ref(prefix), subject.device, Access::Read).unwrap();
    region.grow_with(&[subject.piece(1)]).unwrap();
    subject.write(&mut region, subject.granularity(), subject.granularity(), seed);
    region
}

/// The prefix with its pattern, which three sequences begin with.
fn three<B: TestKit>(subject: &Subject<B>) -> [Region<B>; 3] {
    let prefix = subject.piece(1);
    let mut written = subject.space(1).build().unwrap();
    written.map_with_access(Bytes(0), slice::from_ref(&prefix), subject.device, Access::ReadWrite).unwrap();
    subject.write(&mut written, Bytes(0), subject.granularity(), 7);
    [1, 2, 3].map(|seed| sequence(subject, &prefix, seed))
}

fn check_sequence<B: TestKit>(subject: &Subject<B>, region: &Region<B>, seed: u64) {
    let granule = subject.granularity();
    subject.check(region, Bytes(0), granule, 7);
    subject.check(region, granule, granule, seed);
    assert_eq!(
        [Bytes(0), granule].map(|at| region.access(at, subject.device)),
        [Access::Read, Access::ReadWrite]
    );
}

fn shared_memory_leaves_with_the_last<B: TestKit>(subject: &Subject<B>) {
    let one = subject.granularity();
    for store in keeping(subject, 4) {
        let mut free = Vec::new();
        let [mut a, mut b, mut c] = three(subject);
        for region in [&mut a, &mut b] {
            let did = region.suspend_into(&store, idle(), &mut free).unwrap();
            assert_eq!((did.memory, did.kept, did.shared), (one, one, one));
        }
        let did = c.suspend_into(&store, idle(), &mut free).unwrap();
        assert_eq!((did.memory, did.kept, did.shared), (one + one, one + one, Bytes(0)));
        let lacks = |region: &Region<B>| match region.state() {
            RegionState::Suspended { memory, .. } => memory,
            RegionState::Active => Bytes(0),
        };
        assert_eq!([&a, &b, &c].map(lacks), [one + one; 3]);
        assert_eq!(free.len(), 4, "{:?}", store.kind());
        let pieces = free.len();
        let did = b.resume_from(&mut free).unwrap();
        assert_eq!((did.memory, did.contents, free.len()), (one + one, one + one, pieces - 2));
        check_sequence(subject, &b, 2);
        assert_eq!([&a, &b, &c].map(lacks), [one, Bytes(0), one]);
        // Once more, in another order, while one of them stays suspended.
        let did = b.suspend_into(&store, idle(), &mut free).unwrap();
        assert_eq!((did.memory, did.shared), (one + one, Bytes(0)));
        drop(b);
        for (region, seed) in [(&mut c, 3), (&mut a, 1)] {
            region.resume_from(&mut free).unwrap();
            check_sequence(subject, region, seed);
        }
        let prefixes = [&a, &c].map(|region| region.mapping_at(Bytes(0)).unwrap().memory.id());
        assert!(prefixes[0] == prefixes[1], "{:?}: each has its own copy", store.kind());
        assert_eq!(a.mapping_at(Bytes(0)).unwrap().memory.holders(), 2);
    }
}

fn shared_memory_leaves_the_second_time<B: TestKit>(subject: &Subject<B>) {
    let (one, store) = (subject.granularity(), pinned(subject, 2));
    let [mut a, b, c] = three(subject);
    let mut free = Vec::new();
    a.suspend_into(&store, idle(), &mut free).unwrap();
    drop((b, c));
    let did = a.suspend_into(&store, idle(), &mut free).unwrap();
    assert_eq!((did.memory, did.kept, did.shared, did.already), (one + one, one + one, Bytes(0), true));
    assert_eq!(free.len(), 2);
    let again = a.suspend_into(&store, idle(), &mut free).unwrap();
    assert_eq!((again, free.len()), (did, 2));
    a.resume_from(&mut free).unwrap();
    assert!(free.is_empty());
    check_sequence(subject, &a, 1);
}

fn shared_memory_without_room_stays<B: TestKit>(subject: &Subject<B>) {
    let (one, store) = (subject.granularity(), pinned(subject, 3));
    let [mut a, mut b, mut c] = three(subject);
    let mut free = Vec::new();
    for region in [&mut a, &mut b] {
        region.suspend_into(&store, idle(), &mut free).unwrap();
    }
    // The first call suspends the region, and the second one finds it suspended.
    for _ in 0..2 {
        let full = c.suspend_into(&store, idle(), &mut free).unwrap_err();
        assert!(matches!(full.detail(), Detail::BackingStoreFull { .. }), "{full}");
        assert!(
            matches!(c.state(), RegionState::Suspended { memory, .. } if memory == one),
            "{:?}",
            c.state()
        );
        assert_eq!(free.len(), 3);
    }
    let nothing = BackingStore::nothing();
    assert_eq!(c.suspend_into(&nothing, idle(), &mut free).unwrap().shared, one, "nothing would keep it");
    // The room of a region that resumes, or another store, will do.
    b.resume_from(&mut free).unwrap();
    drop(b);
    assert_eq!(c.suspend_into(&store, idle(), &mut free).unwrap().shared, Bytes(0));
    for (region, seed) in [(&mut c, 3), (&mut a, 1)] {
        region.resume_from(&mut free).unwrap();
        check_sequence(subject, region, seed);
    }
}

fn memory_goes_to_the_list<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    let before = subject.free_here();
    let mut free = Vec::new();
    let did = region.suspend_into(&BackingStore::nothing(), idle(), &mut free).unwrap();
    let all = subject.granules(MEMORY);
    assert_eq!((did.memory, did.kept, did.shared, did.already), (all, Bytes(0), Bytes(0), false));
    assert_eq!(free.iter().map(PhysicalMemory::size).sum::<Bytes>(), all);
    let sizes: Vec<u64> = free.iter().map(|memory| memory.size().0 / subject.granularity().0).collect();
    assert_eq!(
        sizes,
        [1, 2, 1, 1, 2],
        "the pieces are not in the order of the offsets at which they are copied"
    );
    assert_eq!(subject.free_here(), before, "the list has released memory");
    let mut other = subject.space(MEMORY).build().unwrap();
    let growth = other.grow_with(&free).unwrap();
    assert_eq!((growth.end, growth.added, other.mapped()), (all, all, all));
    drop(free);
    write(subject, &mut other, 9);
    assert!(has(subject, &other, 9));
}

fn a_resume_takes_from_the_list<B: TestKit>(subject: &Subject<B>) {
    for store in keeping(subject, MEMORY) {
        let mut region = varied(subject);
        let before = subject.free_here();
        let mut free = Vec::new();
        region.suspend_into(&store, idle(), &mut free).unwrap();
        // One piece of each size is released to the device.
        let (one, two) = (free.remove(1), free.remove(0));
        let ids: Vec<_> = free.iter().map(PhysicalMemory::id).collect();
        drop((one, two));
        let did = region.resume_from(&mut free).unwrap();
        assert_eq!((did.memory, did.contents), (subject.granules(MEMORY), subject.granules(MEMORY)));
        assert!(free.is_empty(), "{:?}: {} pieces were left", store.kind(), free.len());
        let mapped = |id| region.mappings().any(|mapping| mapping.memory.id() == id);
        assert!(ids.into_iter().all(mapped), "{:?}", store.kind());
        assert_eq!(subject.free_here(), before);
        check_varied(subject, &mut region);
    }
}

fn unfit_pieces_stay_in_the_list<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).build().unwrap();
    region.grow_with(&[subject.piece(2)]).unwrap();
    write(subject, &mut region, 3);
    region.suspend(&pinned(subject, 2), idle()).unwrap();
    let shareable =
        PhysicalMemory::create(&subject.backend, subject.granules(2), subject.properties().shareable());
    let mut free = vec![subject.piece(1), subject.piece(4)];
    free.extend(shareable);
    let ids: Vec<_> = free.iter().map(PhysicalMemory::id).collect();
    region.resume_from(&mut free).unwrap();
    assert_eq!(free.iter().map(PhysicalMemory::id).collect::<Vec<_>>(), ids);
    assert!(has(subject, &region, 3));
}

fn what_others_hold_stays_in_the_list<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(1).build().unwrap();
    region.grow_with(&[subject.piece(1)]).unwrap();
    write(subject, &mut region, 3);
    region.suspend(&pinned(subject, 1), idle()).unwrap();
    let (mapped, twice) = (subject.piece(1), subject.piece(1));
    let mut other = subject.space(1).build().unwrap();
    other.grow_with(slice::from_ref(&mapped)).unwrap();
    write(subject, &mut other, 8);
    let mut list = vec![mapped, twice.clone(), twice];
    let ids: Vec<_> = list.iter().map(PhysicalMemory::id).collect();
    region.resume_from(&mut list).unwrap();
    assert_eq!(list.iter().map(PhysicalMemory::id).collect::<Vec<_>>(), ids);
    assert!(has(subject, &region, 3) && has(subject, &other, 8));
    region.suspend(&BackingStore::nothing(), idle()).unwrap();
    let shareable = subject.properties().shareable();
    let exported = or_skip(PhysicalMemory::create(&subject.backend, subject.granularity(), shareable));
    let mut region = subject.space(1).memory(shareable).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    region.suspend(&BackingStore::nothing(), idle()).unwrap();
    drop(or_skip(exported.export()));
    list = vec![exported];
    region.resume_from(&mut list).unwrap();
    assert_eq!(list.len(), 1, "exported memory was taken from the list");
}

fn shared_memory_stays<B: TestKit>(subject: &Subject<B>) {
    let prefix = subject.piece(1);
    let mut regions = [5, 6].map(|seed| sequence(subject, &prefix, seed));
    drop(prefix);
    let (store, mut free) = (pinned(subject, 1), Vec::new());
    let unit = subject.granularity();
    let [first, second] = &mut regions;
    let did = first.suspend_into(&store, idle(), &mut free).unwrap();
    assert_eq!((did.memory, did.kept, did.shared, free.len()), (unit, unit, unit, 1));
    second.set_access(Bytes(0), unit, subject.device, Access::ReadWrite).unwrap();
    subject.write(second, Bytes(0), unit, 77);
    first.resume_from(&mut free).unwrap();
    assert!(free.is_empty());
    let is_same = |one: &Region<B>, other: &Region<B>| {
        let memory = |region: &Region<B>| region.mapping_at(Bytes(0)).unwrap().memory.id();
        memory(one) == memory(other)
    };
    assert!(is_same(first, second));
    assert_eq!(first.access(Bytes(0), subject.device), Access::Read);
    for (region, offset, seed) in [(0, Bytes(0), 77), (0, unit, 5), (1, unit, 6)] {
        subject.check(&regions[region], offset, unit, seed);
    }
}

fn held_memory_stays<B: TestKit>(subject: &Subject<B>) {
    let shareable =
        PhysicalMemory::create(&subject.backend, subject.granularity(), subject.properties().shareable());
    let (clone, exported) = (subject.piece(1), or_skip(shareable));
    let descriptor = or_skip(exported.export());
    let mut region = subject.space(2).build().unwrap();
    region.grow_with(&[clone.clone(), exported]).unwrap();
    write(subject, &mut region, 4);
    let mut free = Vec::new();
    let did = region.suspend_into(&BackingStore::nothing(), idle(), &mut free).unwrap();
    assert_eq!((did.memory, did.shared, free.len()), (Bytes(0), subject.granules(2), 0));
    region.resume().unwrap();
    assert!(has(subject, &region, 4));
    drop((descriptor, clone));
}

fn failed_resume_returns_the_list<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    let (store, mut free) = (pinned(subject, MEMORY), Vec::new());
    region.suspend_into(&store, idle(), &mut free).unwrap();
    drop(free.pop());
    let mut ids: Vec<_> = free.iter().map(PhysicalMemory::id).collect();
    let taken = super::memory::take_all(subject);
    let error = region.resume_from(&mut free).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    ids.retain(|id| !free.iter().any(|memory| memory.id() == *id));
    assert!(ids.is_empty() && free.len() == 4, "{} pieces are lost, {} are there", ids.len(), free.len());
    drop(taken);
    region.resume_from(&mut free).unwrap();
    check_varied(subject, &mut region);
}

fn a_second_time_leaves_the_list<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    let mut free = Vec::new();
    region.suspend_into(&BackingStore::nothing(), idle(), &mut free).unwrap();
    let did = region.suspend_into(&BackingStore::nothing(), idle(), &mut free).unwrap();
    assert_eq!((did.already, did.memory, free.len()), (true, subject.granules(MEMORY), 5));
    region.resume_from(&mut free).unwrap();
    free.push(subject.piece(1));
    let did = region.resume_from(&mut free).unwrap();
    assert_eq!((did.already, did.memory, free.len()), (true, Bytes(0), 1));
}
