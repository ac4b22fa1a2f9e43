//! The offsets at which memory can be mapped, in which sizes and orders.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, PhysicalMemory, Placement};
use gpu_vmm_testkit::{TestKit, write_pattern_words};

cases! { "map":
    /// Memory of 1 to 63 granules is mapped whole: the device reaches its first and its last page.
    multiples_of_the_granularity,
    /// Handles that are not contiguous in physical memory form one range: one access call, one kernel and one copy cover all
    /// of them.
    chunks_that_are_apart,
    /// One call maps memory and gives access to the named device only; an invalid call maps nothing.
    with_access,
    /// Memory can be mapped at the very end of a reservation.
    at_the_end,
    /// Pieces of different sizes can be mapped in any order, and each is at its own offset.
    in_any_order,
    /// A handle is mapped whole or not at all: if there is too little room, nothing is mapped.
    whole_or_not_at_all,
    /// A piece can be mapped into a gap of exactly its size, and its neighbors keep their bytes and access.
    into_a_gap,
    /// 256 mappings in one region are each at their own offset, and dropping the region releases the memory of all.
    many_mappings,
    /// A region reports at every step which memory is mapped at which offset.
    the_books_tell,
    /// Mapping a handle across the border of two reservations is refused with the border's offset; the handle fits on either
    /// side.
    across_a_border,
}

fn with_access<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(4).build().unwrap();
    let (memory, device, unit) = (subject.piece(1), subject.device, subject.granularity());
    let one = std::slice::from_ref(&memory);
    region.map_with_access(Bytes(0), one, device, RW).unwrap();
    region.map_with_access(unit, one, device, Access::Read).unwrap();
    assert_eq!([Bytes(0), unit].map(|offset| region.access(offset, device)), [RW, Access::Read]);
    subject.write(&mut region, Bytes(0), unit, 5);
    subject.check(&region, unit, unit, 5);
    refused!(region.write(unit, &[1]), Detail::NoAccess { .. });
    region.unmap(unit, unit, idle()).unwrap();
    let missing = DeviceId(1000);
    refused!(region.map_with_access(unit, one, missing, RW), Detail::NoSuchDevice { .. });
    refused!(region.map_with_access(Bytes(0), one, device, RW), Detail::AlreadyMapped { .. });
    assert_eq!((region.mapped(), region.access(Bytes(0), device)), (unit, RW));
    // Several pieces, and none of them if one has no place.
    let two = [subject.piece(2), memory.clone()];
    region.map_with_access(unit, &two, device, Access::Read).unwrap();
    assert_eq!((region.mapped(), region.mappings().count()), (subject.granules(4), 3));
    subject.check(&region, subject.granules(3), unit, 5);
    region.unmap(unit, subject.granules(2), idle()).unwrap();
    refused!(region.map_with_access(unit, &two, device, RW), Detail::AlreadyMapped { .. });
    assert_eq!(region.mapped(), subject.granules(2));
    region.map_with_access(unit, &[], device, RW).unwrap();
}

fn multiples_of_the_granularity<B: TestKit>(subject: &Subject<B>) {
    let page = Bytes(4096);
    let mut region = subject.space(63).build().unwrap();
    for granules in 1..=63 {
        let memory = subject.piece(granules);
        subject.open(&mut region, Bytes(0), &memory);
        let last = memory.size() - page;
        subject.write(&mut region, Bytes(0), page, granules);
        subject.write(&mut region, last, page, granules + 1);
        subject.check(&region, Bytes(0), page, granules);
        subject.check(&region, last, page, granules + 1);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    }
}

fn chunks_that_are_apart<B: TestKit>(subject: &Subject<B>) {
    // The memory that is created between the chunks keeps them apart.
    let (chunks, between): (Vec<PhysicalMemory<B>>, Vec<PhysicalMemory<B>>) =
        [2, 1, 3].map(|granules| (subject.piece(granules), subject.piece(1))).into_iter().unzip();
    let mut region = subject.space(6).build().unwrap();
    let mut end = Bytes(0);
    for chunk in chunks {
        region.map(end, &chunk).unwrap();
        end += chunk.size();
    }
    region.set_access(Bytes(0), end, subject.device, RW).unwrap();
    subject.write(&mut region, Bytes(0), end, 1);
    subject.check(&region, Bytes(0), end, 1);
    // Now through the host, in one copy.
    let mut words = vec![0; (end.0 / 8) as usize];
    write_pattern_words(&mut words, 9, 0);
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    region.write(Bytes(0), bytes).unwrap();
    subject.check(&region, Bytes(0), end, 9);
    let mut back = vec![0; bytes.len()];
    region.read(Bytes(0), &mut back).unwrap();
    assert!(bytes == back);
    drop(between);
}

fn at_the_end<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    let memory = subject.piece(1);
    let last = region.reserved() - memory.size();
    subject.open(&mut region, last, &memory);
    assert_eq!((region.end(), region.mapped()), (region.reserved(), memory.size()));
    subject.write(&mut region, last, memory.size(), 1);
    subject.check(&region, last, memory.size(), 1);
    refused!(region.map(last, &memory), Detail::AlreadyMapped { .. });
    refused!(region.map(last + memory.size(), &memory), Detail::OutOfRange { .. }, region.reserved());
}

fn in_any_order<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(16).build().unwrap();
    let order = [(9, 4), (0, 2), (13, 1), (5, 4), (2, 3), (14, 2)];
    for (at, granules) in order {
        subject.open(&mut region, subject.granules(at), &subject.piece(granules));
        subject.write(&mut region, subject.granules(at), subject.granules(granules), at);
    }
    for (at, granules) in order {
        subject.check(&region, subject.granules(at), subject.granules(granules), at);
    }
    let offsets: Vec<Bytes> = region.mappings().map(|mapping| mapping.offset).collect();
    assert_eq!(offsets, [0, 2, 5, 9, 13, 14].map(|at| subject.granules(at)));
}

fn whole_or_not_at_all<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(1).build().unwrap();
    let (end, memory) = (region.reserved(), subject.piece(3));
    refused!(region.map(end - subject.granules(2), &memory), Detail::OutOfRange { .. }, memory.size(), end);
    region.map(Bytes(0), &subject.piece(1)).unwrap();
    let mut small = subject.space(5).build().unwrap();
    for at in [0, 3] {
        small.map(subject.granules(at), &subject.piece(1)).unwrap();
    }
    refused!(small.map(subject.granularity(), &memory), Detail::AlreadyMapped { .. }, memory.size());
    assert_eq!(small.mapped(), subject.granules(2));
}

fn into_a_gap<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(6).build().unwrap();
    for at in [0, 4] {
        subject.open(&mut region, subject.granules(at), &subject.piece(2));
        subject.write(&mut region, subject.granules(at), subject.granules(2), at);
    }
    let middle = subject.granules(2);
    region.map(middle, &subject.piece(2)).unwrap();
    assert_eq!(region.access(middle, subject.device), Access::None);
    region.set_access(middle, middle, subject.device, RW).unwrap();
    subject.write(&mut region, middle, middle, 2);
    for at in [0, 2, 4] {
        assert_eq!(region.access(subject.granules(at), subject.device), RW);
        subject.check(&region, subject.granules(at), subject.granules(2), at);
    }
}

fn many_mappings<B: TestKit>(subject: &Subject<B>) {
    const COUNT: u64 = 256;
    let before = subject.free();
    let mut region = subject.space(COUNT).build().unwrap();
    for place in 0..COUNT {
        region.map(subject.granules(place), &subject.piece(1)).unwrap();
    }
    region.set_access(Bytes(0), subject.granules(COUNT), subject.device, RW).unwrap();
    assert_eq!((region.mappings().count() as u64, region.end()), (COUNT, subject.granules(COUNT)));
    // Around each border, so that a piece at another offset would be noticed.
    let words = Bytes(8 * 64);
    for place in 1..COUNT {
        subject.write(&mut region, subject.granules(place) - words, words + words, place);
    }
    for place in 1..COUNT {
        subject.check(&region, subject.granules(place) - words, words + words, place);
    }
    drop(region);
    assert_eq!(subject.free(), before);
}

fn the_books_tell<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(8).build().unwrap();
    let (one, other) = (subject.piece(2), subject.piece(1));
    region.map(subject.granules(1), &one).unwrap();
    region.map(subject.granules(5), &other).unwrap();
    assert_eq!((region.end(), region.mapped()), (subject.granules(6), subject.granules(3)));
    let at = |granules| region.mapping_at(subject.granules(granules));
    assert!(at(0).is_none() && at(3).is_none() && at(4).is_none() && at(6).is_none());
    for inside in [subject.granules(1), subject.granules(2), subject.granules(3) - Bytes(1)] {
        let found = region.mapping_at(inside).unwrap();
        assert_eq!((found.offset, found.length), (subject.granules(1), subject.granules(2)));
        assert!(found.memory.is_same_as(&one));
    }
    let all: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    let expected = [(1, 2), (5, 1)].map(|(at, length)| (subject.granules(at), subject.granules(length)));
    assert_eq!(all, expected);
    region.unmap(subject.granules(5), subject.granules(1), idle()).unwrap();
    assert_eq!((region.end(), region.mapped()), (subject.granules(3), subject.granules(2)));
}

fn across_a_border<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(16);
    let mut region =
        subject.region(2).at(Placement::Exact(base)).extend_by(subject.units(2)).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    assert_eq!(region.reservations().len(), 2);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    let memory = subject.memory(2);
    refused!(region.map(subject.unit(), &memory), Detail::CrossesReservation { .. }, subject.units(2));
    for offset in [Bytes(0), subject.units(2)] {
        subject.open(&mut region, offset, &memory);
    }
    subject.write(&mut region, Bytes(0), memory.size(), 1);
    subject.check(&region, subject.units(2), memory.size(), 1);
}
