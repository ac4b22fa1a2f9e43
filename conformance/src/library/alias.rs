//! One allocation at several addresses, in one region and in several.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, Region};
use gpu_vmm_testkit::TestKit;

cases! { "alias":
    /// A device's write through one of three mappings is visible through all three once the device has finished.
    one_write_is_seen_at_all,
    /// One allocation can be mapped in three regions at once, and each region can write what the others read.
    in_three_regions,
    /// Access belongs to a mapping: while one mapping is writable, another of the same memory can be read-only or inaccessible.
    access_is_each_mapping_s_own,
    /// Memory stays allocated until its last mapping is gone, and mapping it again allocates no memory.
    memory_lives_until_the_last,
    /// One of several mappings can be unmapped: the others stay usable, and a new one can be added.
    one_of_several_is_unmapped,
    /// The same memory mapped twice in a row is a ring buffer: a write across the end continues at the start.
    a_ring_by_double_mapping,
    /// One granule mapped at 64 consecutive addresses uses the memory of one granule and contains the same bytes 64 times.
    one_granule_64_times,
    /// A mapping of another region's memory keeps its bytes and its access, whatever that region does next.
    the_first_region_moves_on,
    /// A region forked from another one shares the bytes of its beginning without a copy, and neither may write them; a part that is
    /// made private has a copy, which the other region does not see.
    forked_and_made_private,
    /// A fork of half a mapping, over other mappings, or beyond the other region is refused, and changes nothing.
    refused_forks,
    /// An allocation mapped between two mappings of another has its own bytes.
    with_another_piece_between,
}

fn one_write_is_seen_at_all<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(8).build().unwrap();
    let memory = subject.piece(2);
    let places = [0, 2, 5].map(|at| subject.granules(at));
    for offset in places {
        subject.open(&mut region, offset, &memory);
    }
    for (offset, seed) in places.into_iter().zip(11..) {
        subject.write(&mut region, offset, memory.size(), seed);
        for other in places {
            subject.check(&region, other, memory.size(), seed);
        }
    }
    region.unmap(places[1], memory.size(), idle()).unwrap();
    subject.check(&region, places[2], memory.size(), 13);
}

fn in_three_regions<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let mut regions: Vec<Region<B>> = (0..3).map(|_| subject.space(2).build().unwrap()).collect();
    for region in &mut regions {
        subject.open(region, Bytes(0), &memory);
    }
    for writer in 0..3 {
        subject.write(&mut regions[writer], Bytes(0), memory.size(), writer as u64);
        for reader in &regions {
            subject.check(reader, Bytes(0), memory.size(), writer as u64);
        }
    }
}

fn access_is_each_mapping_s_own<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(3).build().unwrap();
    let (memory, granule) = (subject.piece(1), subject.granularity());
    for (at, access) in [(0, RW), (1, Access::Read), (2, Access::None)] {
        region.map(subject.granules(at), &memory).unwrap();
        region.set_access(subject.granules(at), granule, subject.device, access).unwrap();
    }
    subject.write(&mut region, Bytes(0), granule, 1);
    subject.check(&region, granule, granule, 1);
    refused!(region.write(granule, b"x"), Detail::NoAccess { have: Access::Read, .. }, granule);
    refused!(region.read(granule + granule, &mut [0]), Detail::NoAccess { have: Access::None, .. });
    subject.check(&region, Bytes(0), granule, 1);
}

fn memory_lives_until_the_last<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let memory = subject.memory(2);
    let held = subject.free();
    let mut region = subject.region(8).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    region.map(subject.units(4), &memory).unwrap();
    region.set_access(subject.units(4), subject.units(2), subject.device, RW).unwrap();
    assert_eq!(subject.free(), held, "mapping allocates no memory");
    drop(memory);
    region.unmap(Bytes(0), subject.units(2), idle()).unwrap();
    assert_eq!(subject.free(), held, "one mapping keeps the memory");
    region.write(subject.units(4), b"alive").unwrap();
    drop(region);
    assert_eq!(subject.free(), before);
}

fn one_of_several_is_unmapped<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(8).build().unwrap();
    let memory = subject.piece(2);
    let places = [0, 2, 4].map(|at| subject.granules(at));
    for offset in places {
        subject.open(&mut region, offset, &memory);
    }
    subject.write(&mut region, places[0], memory.size(), 1);
    region.unmap(places[0], memory.size(), idle()).unwrap();
    for offset in &places[1..] {
        subject.check(&region, *offset, memory.size(), 1);
    }
    let fresh = subject.granules(6);
    subject.open(&mut region, fresh, &memory);
    subject.check(&region, fresh, memory.size(), 1);
    subject.write(&mut region, fresh, memory.size(), 2);
    subject.check(&region, places[1], memory.size(), 2);
}

fn a_ring_by_double_mapping<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).build().unwrap();
    let (memory, granule) = (subject.piece(1), subject.granularity());
    region.map(Bytes(0), &memory).unwrap();
    region.map(granule, &memory).unwrap();
    region.set_access(Bytes(0), granule + granule, subject.device, RW).unwrap();
    region.write(granule - Bytes(3), b"around").unwrap();
    let mut start = [0; 3];
    region.read(Bytes(0), &mut start).unwrap();
    assert_eq!(&start, b"und");
    // A kernel writes across the end: the second half of its data is at the start.
    let half = Bytes(4096);
    subject.write(&mut region, granule - half, half + half, 1);
    subject.check(&region, Bytes(0), half, 1 + half.0 / 8);
}

fn one_granule_64_times<B: TestKit>(subject: &Subject<B>) {
    const COUNT: u64 = 64;
    let memory = subject.piece(1);
    let held = subject.free();
    let mut region = subject.space(COUNT).build().unwrap();
    for place in 0..COUNT {
        region.map(subject.granules(place), &memory).unwrap();
    }
    assert_eq!(subject.free(), held);
    assert_eq!(region.mapped(), subject.granules(COUNT));
    region.set_access(Bytes(0), subject.granules(COUNT), subject.device, RW).unwrap();
    subject.write(&mut region, subject.granules(17), memory.size(), 1);
    for place in 0..COUNT {
        subject.check(&region, subject.granules(place), memory.size(), 1);
    }
}

fn the_first_region_moves_on<B: TestKit>(subject: &Subject<B>) {
    let mut first = subject.space(4).build().unwrap();
    first.grow_to(subject.granules(2)).unwrap();
    subject.write(&mut first, Bytes(0), subject.granules(2), 1);
    let memory = first.mapping_at(Bytes(0)).unwrap().memory.clone();
    let mut second = subject.space(2).build().unwrap();
    subject.open(&mut second, Bytes(0), &memory);
    first.grow_to(subject.granules(4)).unwrap();
    first.set_access(Bytes(0), memory.size(), subject.device, Access::None).unwrap();
    subject.check(&second, Bytes(0), memory.size(), 1);
    let _ = first.shrink_to(Bytes(0), idle()).unwrap();
    first.grow_to(subject.granules(2)).unwrap();
    subject.write(&mut first, Bytes(0), subject.granules(2), 2);
    subject.check(&second, Bytes(0), memory.size(), 1);
}

fn with_another_piece_between<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(3).build().unwrap();
    let (memory, other, granule) = (subject.piece(1), subject.piece(1), subject.granularity());
    for (offset, memory) in [(Bytes(0), &memory), (granule, &other), (granule + granule, &memory)] {
        region.map(offset, memory).unwrap();
    }
    region.set_access(Bytes(0), subject.granules(3), subject.device, RW).unwrap();
    subject.write(&mut region, granule, granule, 1);
    subject.write(&mut region, Bytes(0), granule, 2);
    subject.check(&region, granule, granule, 1);
    subject.check(&region, granule + granule, granule, 2);
}

fn forked_and_made_private<B: TestKit>(subject: &Subject<B>) {
    let (one, device) = (subject.granularity(), subject.device);
    let mut first = subject.space(4).on(device).build().unwrap();
    for end in 1..=3 {
        first.grow_to(subject.granules(end)).unwrap();
    }
    subject.write(&mut first, Bytes(0), subject.granules(3), 1);
    let free = subject.free_here();
    let mut second = subject.space(4).build().unwrap();
    first.fork(one + one, &mut second).unwrap();
    assert_eq!((second.end(), subject.free_here()), (one + one, free));
    for region in [&mut first, &mut second] {
        assert_eq!(region.access(one, device), Access::Read);
        subject.check(region, Bytes(0), one + one, 1);
        refused!(region.write(one, &[1]), Detail::NoAccess { .. });
    }
    assert_eq!(first.access(one + one, device), RW, "behind the fork");
    // One piece comes from the list.
    let mut list = vec![subject.piece(2), subject.piece(1)];
    let copied = second.make_private(one, one, &mut list, idle()).unwrap();
    assert_eq!((copied, list.len(), second.access(one, device)), (one, 1, RW));
    subject.write(&mut second, one, one, 2);
    subject.check(&first, Bytes(0), one + one, 1);
    let memory = |region: &Region<B>, at| region.mapping_at(at).unwrap().memory.id();
    assert!(memory(&first, Bytes(0)) == memory(&second, Bytes(0)));
    assert!(memory(&first, one) != memory(&second, one));
    // The first region holds the piece alone now.
    let free = subject.free_here();
    assert_eq!(first.make_private(one, one + one, &mut list, idle()).unwrap(), Bytes(0));
    subject.write(&mut first, one, one + one, 3);
    assert_eq!(first.make_private(Bytes(0), one, &mut Vec::new(), idle()).unwrap(), one);
    assert_eq!(subject.free_here(), free - one);
    subject.write(&mut first, Bytes(0), one, 4);
    subject.check(&second, Bytes(0), one, 1);
    subject.check(&second, one, one, 2);
}

fn refused_forks<B: TestKit>(subject: &Subject<B>) {
    let (one, device) = (subject.granularity(), subject.device);
    let mut first = subject.space(4).on(device).build().unwrap();
    first.grow_to(one + one).unwrap();
    let mut small = subject.space(1).build().unwrap();
    let mut taken = subject.space(4).build().unwrap();
    subject.open(&mut taken, one, &subject.piece(1));
    refused!(first.fork(one, &mut taken), Detail::PartialMapping { .. });
    refused!(first.fork(one + one + one, &mut taken), Detail::NotMapped { .. });
    refused!(first.fork(one + one, &mut taken), Detail::AlreadyMapped { .. });
    if small.reserved() == one {
        refused!(first.fork(one + one, &mut small), Detail::OutOfRange { .. });
    }
    refused!(first.make_private(one, one, &mut Vec::new(), idle()), Detail::PartialMapping { .. });
    assert_eq!((first.access(Bytes(0), device), taken.mapped(), small.mapped()), (RW, one, Bytes(0)));
}
