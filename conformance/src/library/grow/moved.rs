//! Growth to a larger range elsewhere, with the same memory.

use super::{full, walled};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, GrowthKind, Operation, PhysicalMemory, Placement, Region};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "grow":
    /// A movable region that cannot grow in place moves to a larger range with its bytes, and its old addresses are freed.
    remapped,
    /// A movable region that can grow in place keeps its address.
    moved_only_if_it_must,
    /// A move keeps the access of every mapping and the allocations themselves.
    remapped_keeps_access_and_aliases,
    /// A region of several reservations has one reservation after a move, with its bytes in order.
    moved_into_one_reservation,
    /// A hole stays a hole after a move, and the mappings around it keep their offsets.
    moved_with_a_hole,
    /// If a range of twice the size cannot be reserved, a region moves to one of the size that it needs.
    moved_without_spare_addresses,
    /// A move allocates only the memory of the growth.
    a_move_takes_no_memory,
    /// A region can move repeatedly.
    moved_again_and_again,
    /// A region that was built with an alignment keeps it after a move.
    alignment_is_kept,
    /// If memory runs out during a move, the region stays at its old address and keeps all of its memory.
    a_move_without_memory,
    /// Separate calls can move memory too: unmapping everything, closing the region, reserving a larger one, and mapping the same
    /// handles there.
    remapped_by_hand,
}

fn remapped<B: TestKit>(subject: &Subject<B>) {
    let (mut region, wall) = walled(subject, 4);
    subject.write(&mut region, Bytes(0), subject.units(4), 7);
    let before = region.address();
    let growth = region.grow_or_move(subject.units(9), idle()).unwrap();
    assert_eq!(
        (growth.how, growth.end, growth.added),
        (GrowthKind::Remapped, subject.units(9), subject.units(5))
    );
    assert_ne!(growth.address, before);
    assert_eq!((region.address(), region.reservations().len()), (growth.address, 1));
    assert!(region.reserved() >= subject.units(18), "a move reserves spare addresses: {}", region.reserved());
    subject.check(&region, Bytes(0), subject.units(4), 7);
    region.write(subject.units(8), b"new").unwrap();
    // The old addresses are free again.
    let old = subject.region(4).at(Placement::Exact(before)).build().unwrap();
    assert_eq!(old.address(), before);
    drop(wall);
}

fn moved_only_if_it_must<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 2);
    let address = region.address();
    let growth = region.grow_or_move(subject.units(3), idle()).unwrap();
    assert_eq!((growth.how, growth.address), (GrowthKind::Extended, address));
    let growth = region.grow_or_move(subject.units(2), idle()).unwrap();
    assert_eq!((growth.how, growth.address, growth.added), (GrowthKind::Within, address, Bytes(0)));
}

fn remapped_keeps_access_and_aliases<B: TestKit>(subject: &Subject<B>) {
    let (mut region, _wall) = walled(subject, 2);
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    let shared = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    let mut other = subject.region(2).build().unwrap();
    subject.open(&mut other, Bytes(0), &shared);
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap();
    region.grow_or_move(subject.units(3), idle()).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::Read);
    assert_eq!(region.access(subject.units(2), subject.device), RW);
    assert!(region.mapping_at(Bytes(0)).unwrap().memory.is_same_as(&shared));
    subject.check(&region, Bytes(0), subject.units(2), 1);
    subject.write(&mut other, Bytes(0), subject.units(2), 2);
    subject.check(&region, Bytes(0), subject.units(2), 2);
}

fn moved_into_one_reservation<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 1);
    for units in 2..=4 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert_eq!(region.reservations().len(), 4);
    subject.write(&mut region, Bytes(0), subject.units(4), 3);
    let behind = Placement::Exact(region.range().end());
    let _wall = subject.region(1).at(behind).build().unwrap();
    let growth = region.grow_or_move(subject.units(5), idle()).unwrap();
    assert_eq!((growth.how, region.reservations().len()), (GrowthKind::Remapped, 1));
    subject.check(&region, Bytes(0), subject.units(4), 3);
    // Access and unmapping work by handle: the old ones and the new one.
    assert_eq!(region.mappings().count(), 5);
    region.unmap(subject.unit(), subject.units(2), idle()).unwrap();
    subject.check(&region, Bytes(0), subject.unit(), 3);
}

fn moved_with_a_hole<B: TestKit>(subject: &Subject<B>) {
    let (mut region, _wall) = walled(subject, 4);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    for at in [0, 3] {
        subject.open(&mut region, subject.units(at), &subject.memory(1));
        subject.write(&mut region, subject.units(at), subject.unit(), at);
    }
    let growth = region.grow_or_move(subject.units(5), idle()).unwrap();
    assert_eq!((growth.how, growth.added), (GrowthKind::Remapped, subject.unit()));
    for at in [0, 3] {
        subject.check(&region, subject.units(at), subject.unit(), at);
    }
    let mapped: Vec<Bytes> = region.mappings().map(|mapping| mapping.offset).collect();
    assert_eq!(mapped, [0, 3, 4].map(|at| subject.units(at)));
}

fn moved_without_spare_addresses<B: TestKit>(subject: &Subject<B>) {
    // Each call fails in turn until it is the reservation of twice the size.
    let is_found = (0..20).any(|failing| {
        let backend = FaultInject::new(subject.backend.clone());
        let builder = Region::builder(&backend).on(subject.device).reserve(subject.units(2));
        let mut region = builder.at(Placement::Exact(subject.hole(8))).build().unwrap();
        region.grow_to(subject.units(2)).unwrap();
        region.write_pattern(subject.device, Bytes(0), region.end(), 1).unwrap();
        let _wall = subject.region(1).at(Placement::Exact(region.range().end())).build().unwrap();
        backend.fail(failing, 1);
        let grown = region.grow_or_move(subject.units(3), idle());
        backend.stop();
        assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(2), 1).unwrap(), 0);
        grown.is_ok_and(|grown| grown.how == GrowthKind::Remapped) && region.reserved() == subject.units(3)
    });
    assert!(is_found, "no move to a range without spare addresses");
}

fn a_move_takes_no_memory<B: TestKit>(subject: &Subject<B>) {
    let (mut region, _wall) = walled(subject, 4);
    let free = subject.free_here();
    region.grow_or_move(subject.units(6), idle()).unwrap();
    assert_eq!(subject.free_here(), free - subject.units(2));
}

fn moved_again_and_again<B: TestKit>(subject: &Subject<B>) {
    let (mut region, wall) = walled(subject, 2);
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    let mut walls = vec![wall];
    for round in 0..3 {
        let (from, all) = (region.end(), region.reserved());
        let growth = region.grow_or_move(all + subject.unit(), idle()).unwrap();
        // In later rounds the addresses behind the region may be free by chance.
        assert!(growth.how == GrowthKind::Remapped || round > 0, "{growth:?}");
        subject.write(&mut region, from, growth.added, 1 + from.0 / 8);
        subject.check(&region, Bytes(0), growth.end, 1);
        let behind = Placement::Prefer(region.range().end());
        walls.push(subject.region(1).at(behind).build().unwrap());
    }
}

fn alignment_is_kept<B: TestKit>(subject: &Subject<B>) {
    let (alignment, base) = (Bytes::gib(1), subject.hole(4));
    let at = Placement::Exact(base);
    let mut region = subject.region(1).alignment(alignment).at(at).build().unwrap();
    let _wall = subject.region(1).at(Placement::Exact(base + subject.unit())).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    subject.write(&mut region, Bytes(0), subject.unit(), 1);
    let growth = region.grow_or_move(subject.units(3), idle()).unwrap();
    assert_eq!(growth.how, GrowthKind::Remapped);
    assert!(growth.address.is_aligned_to(alignment), "{} for {alignment}", growth.address);
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn a_move_without_memory<B: TestKit>(subject: &Subject<B>) {
    let (mut region, _wall) = walled(subject, 2);
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    let _held = subject.memory(1);
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    let before = (region.range(), region.end(), subject.free());
    let error = region.grow_or_move(total, idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfMemory { .. }), "{error}");
    assert_eq!((region.range(), region.end(), subject.free()), before);
    subject.check(&region, Bytes(0), subject.units(2), 1);
}

fn remapped_by_hand<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(5).build().unwrap();
    for granules in [2, 5] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    subject.write(&mut region, Bytes(0), subject.granules(5), 1);
    let free = subject.free();
    let pieces: Vec<PhysicalMemory<B>> = region.mappings().map(|mapping| mapping.memory.clone()).collect();
    region.unmap(Bytes(0), region.end(), idle()).unwrap();
    region.close(idle()).unwrap();
    assert_eq!(subject.free(), free);
    let mut larger = subject.space(9).build().unwrap();
    for memory in pieces.iter().chain([&subject.piece(4)]) {
        larger.map(larger.end(), memory).unwrap();
    }
    larger.set_access(Bytes(0), subject.granules(9), subject.device, RW).unwrap();
    subject.check(&larger, Bytes(0), subject.granules(5), 1);
    let words = subject.granules(5).0 / 8;
    subject.write(&mut larger, subject.granules(5), subject.granules(4), 1 + words);
    subject.check(&larger, Bytes(0), subject.granules(9), 1);
}
