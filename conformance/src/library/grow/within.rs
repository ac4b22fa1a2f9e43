//! Growth inside the reservation.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{Access, BackingStore, Bytes, Detail, Growth, GrowthKind, PhysicalMemory};
use gpu_vmm_testkit::TestKit;
use std::slice;

cases! { "grow":
    /// Inside its reservation a region grows at the same address and keeps its bytes.
    within,
    /// A size is rounded up to the granularity, and the result reports the region's end and the added size.
    sizes_are_rounded_and_said,
    /// Each step creates one handle of exactly the step's size, on the device that the region was built for.
    one_handle_a_step,
    /// The caller's memory is mapped at the end, one allocation after the other, with the region's access.
    with_the_callers_memory,
    /// The caller's memory is refused as a whole if it would cross the end of the reservation, if its size is not a multiple of the
    /// region's granularity, or if the region is suspended.
    with_memory_that_does_not_fit,
    /// Growing to a size that is already mapped does nothing and reports that.
    nothing_to_do,
    /// Steps of any sizes form one contiguous range for kernels.
    unequal_steps,
    /// Growth continues behind the last mapping and does not fill holes.
    after_a_hole,
    /// Growth continues behind memory that the caller has mapped, at any offset.
    behind_what_was_mapped_by_hand,
    /// A reservation can be filled up to its last byte.
    up_to_the_last_byte,
}

fn within<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(64).build().unwrap();
    let address = region.address();
    for units in [1, 2, 5, 16, 64] {
        let from = region.end();
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!(
            (growth.how, growth.address, growth.end),
            (GrowthKind::Within, address, subject.units(units))
        );
        assert_eq!(growth.added, growth.end - from);
        subject.write(&mut region, from, growth.added, 7 + from.0 / 8);
        subject.check(&region, Bytes(0), growth.end, 7);
    }
    // Shows that the check can fail.
    region.fill(subject.unit(), Bytes(8), 0x5a).unwrap();
    assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 7).unwrap(), 1);
}

fn with_the_callers_memory<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(4).build().unwrap();
    let (address, unit) = (region.address(), subject.granularity());
    region.grow_to(unit).unwrap();
    let pieces = [subject.piece(2), subject.piece(1)];
    let free = subject.free();
    let growth = region.grow_with(&pieces).unwrap();
    let size = subject.granules(4);
    assert_eq!(growth, Growth { how: GrowthKind::Within, address, end: size, added: subject.granules(3) });
    let lengths: Vec<Bytes> = region.mappings().map(|mapping| mapping.length).collect();
    assert_eq!(lengths, [1, 2, 1].map(|granules| subject.granules(granules)));
    subject.write(&mut region, Bytes(0), size, 7);
    subject.check(&region, Bytes(0), size, 7);
    // Growth continues in a reservation behind the region's own if that is full and the addresses are free.
    let reserved = region.reserved();
    match region.grow_with(&pieces) {
        Ok(growth) => {
            let end = subject.granules(7);
            let how = if end > reserved { GrowthKind::Extended } else { GrowthKind::Within };
            assert_eq!(growth, Growth { how, address, end, added: end - size });
            subject.check(&region, size, unit, 7 + unit.0 / 8);
        }
        Err(error) => assert!(matches!(error.detail(), Detail::OutgrewReservation { .. }), "{error}"),
    }
    let end = region.end();
    assert_eq!(region.grow_with(&[]).unwrap().end, end);
    assert_eq!(subject.free(), free, "no memory was created");
    let mut read_only = subject.space(1).access(subject.device, Access::Read).build().unwrap();
    read_only.grow_with(&[subject.piece(1)]).unwrap();
    assert_eq!(read_only.access(Bytes(0), subject.device), Access::Read);
}

fn with_memory_that_does_not_fit<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(1).build().unwrap();
    let reserved = region.reserved();
    region.grow_to(subject.granularity()).unwrap();
    let (large, end) =
        (PhysicalMemory::create(&subject.backend, reserved, subject.properties()).unwrap(), region.end());
    if end < reserved {
        refused!(region.grow_with(slice::from_ref(&large)), Detail::CrossesReservation { .. }, reserved);
    }
    assert_eq!((region.end(), region.reserved()), (end, reserved));
    region.suspend(&BackingStore::nothing(), idle()).unwrap();
    refused!(region.grow_with(&[large]), Detail::Suspended { .. });
    // A portable region can have a larger granularity than the memory.
    let mut coarse = subject.region(1).portable().build().unwrap();
    if coarse.granularity().bytes() > subject.granularity() {
        refused!(coarse.grow_with(&[subject.piece(1)]), Detail::Unaligned { what: "size", .. });
    }
}

fn sizes_are_rounded_and_said<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    let least = subject.granularity();
    let growth = region.grow_to(Bytes(1)).unwrap();
    assert_eq!((growth.end, growth.added), (least, least));
    let growth = region.grow_to(least + Bytes(1)).unwrap();
    assert_eq!((growth.end, growth.added), (least + least, least));
}

fn one_handle_a_step<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(64).build().unwrap();
    let before = subject.free_here();
    for granules in [1, 8, 64] {
        region.grow_to(subject.granules(granules)).unwrap();
        assert_eq!(subject.free_here(), before - subject.granules(granules));
    }
    assert!(region.mappings().all(|mapping| mapping.memory.device() == subject.device));
    let lengths: Vec<Bytes> = region.mappings().map(|mapping| mapping.length).collect();
    assert_eq!(lengths, [1, 7, 56].map(|granules| subject.granules(granules)));
}

fn nothing_to_do<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    let free = subject.free();
    for units in [1, 2, 3] {
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.end, growth.added), (GrowthKind::Within, subject.units(3), Bytes(0)));
    }
    assert_eq!((subject.free(), region.mappings().count()), (free, 1));
}

fn unequal_steps<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(97).build().unwrap();
    for step in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] {
        let from = region.end();
        let growth = region.grow_to(from + subject.granules(step)).unwrap();
        subject.write(&mut region, from, growth.added, 7 + from.0 / 8);
    }
    assert_eq!(region.end(), subject.granules(97));
    subject.check(&region, Bytes(0), region.end(), 7);
}

fn after_a_hole<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(16).build().unwrap();
    for units in [2, 4, 6, 8] {
        region.grow_to(subject.units(units)).unwrap();
    }
    region.unmap(subject.units(2), subject.units(2), idle()).unwrap();
    let growth = region.grow_to(subject.units(9)).unwrap();
    assert_eq!((growth.added, region.mapped()), (subject.unit(), subject.units(7)));
    // Shrinking past the hole removes mappings on both sides of it.
    let shrunk = region.shrink_to(subject.units(1), idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(2), subject.units(5)));
}

fn behind_what_was_mapped_by_hand<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(8).build().unwrap();
    let (at, memory) = (subject.granules(3), subject.piece(2));
    subject.open(&mut region, at, &memory);
    subject.write(&mut region, at, memory.size(), 1);
    let growth = region.grow_to(subject.granules(7)).unwrap();
    assert_eq!((growth.how, growth.added), (GrowthKind::Within, subject.granules(2)));
    assert!(region.mapping_at(Bytes(0)).is_none());
    subject.check(&region, at, memory.size(), 1);
    subject.write(&mut region, at, subject.granules(4), 2);
    subject.check(&region, at, subject.granules(4), 2);
}

fn up_to_the_last_byte<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    let growth = region.grow_to(region.reserved()).unwrap();
    assert_eq!((growth.how, growth.end), (GrowthKind::Within, region.reserved()));
    region.write(region.reserved() - Bytes(1), &[7]).unwrap();
    let mut last = [0];
    region.read(region.reserved() - Bytes(1), &mut last).unwrap();
    assert_eq!(last, [7]);
    assert_eq!(region.reservations().len(), 1);
}
