//! Copies by a device between regions and plain allocations.
#![allow(unsafe_code)] // regions copy to and from the host only

use crate::case::cases;
use crate::library::plain::{Plain, copy};
use crate::library::tools::refused;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "data":
    /// A device can copy from a plain allocation to a region of several mappings and back.
    plain_and_region,
    /// A device can copy from one region to another, wherever the borders of mappings and reservations are on either side.
    region_to_region,
    /// A copy needs write access to the target and read access to the source, both mapped, on one backend; otherwise it copies
    /// no byte.
    refused_copies,
    /// A device can copy from one mapping to another of the same region, across the borders of mappings.
    within_a_region,
    /// Plain allocations and regions coexist with separate addresses and bytes.
    plain_beside_regions,
}

/// Creates a region of six granules in mappings of different sizes.
fn mapped<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(6).build().unwrap();
    for granules in [1, 3, 6] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    region
}

fn plain_and_region<B: TestKit>(subject: &Subject<B>) {
    let length = subject.granules(6);
    let mut plain = Plain::new(subject, subject.device, length);
    let mut region = mapped(subject);
    plain.write(1);
    // SAFETY: both sides have this length, are mapped in one reservation or plain, and the device may read and write them.
    unsafe { copy(subject, subject.device, region.address(), plain.address(), length) };
    subject.check(&region, Bytes(0), length, 1);
    subject.write(&mut region, Bytes(0), length, 2);
    // SAFETY: as above.
    unsafe { copy(subject, subject.device, plain.address(), region.address(), length) };
    assert_eq!(plain.wrong(2), 0);
    assert_ne!(plain.wrong(1), 0);
}

fn region_to_region<B: TestKit>(subject: &Subject<B>) {
    let length = subject.granules(6);
    let (mut one, mut other) = (mapped(subject), mapped(subject));
    subject.write(&mut one, Bytes(0), length, 1);
    subject.write(&mut other, Bytes(0), length, 2);
    other.copy_from(Bytes(0), &one, Bytes(0), length).unwrap();
    subject.check(&other, Bytes(0), length, 1);
    subject.check(&one, Bytes(0), length, 1);
    // Copies between a region of two reservations and one of a single one, in both directions, at offsets that are not multiples
    // of a granule.
    let mut extended = extended(subject);
    let (at, size) = (subject.unit() - Bytes(40), Bytes(80));
    subject.write(&mut extended, Bytes(0), subject.units(2), 500);
    other.copy_from(Bytes(24), &extended, at, size).unwrap();
    subject.check(&other, Bytes(24), size, 500 + at.0 / 8);
    subject.check(&other, Bytes(0), Bytes(24), 1);
    extended.copy_from(at, &one, Bytes(8), size).unwrap();
    subject.check(&extended, at, size, 2);
    subject.check(&extended, at + size, Bytes(8), 500 + (at + size).0 / 8);
}

/// Creates a fully mapped region of two reservations of one unit each.
fn extended<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region =
        subject.region(1).at(Placement::Exact(subject.hole(2))).extend_by(subject.unit()).build().unwrap();
    for units in 1..=2 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert_eq!(region.reservations().len(), 2);
    region
}

fn refused_copies<B: TestKit>(subject: &Subject<B>) {
    let (granule, length) = (subject.granules(1), subject.granules(2));
    let (mut one, mut other) = (mapped(subject), mapped(subject));
    subject.write(&mut one, Bytes(0), length, 1);
    subject.write(&mut other, Bytes(0), length, 2);
    let end = one.end();
    refused!(
        other.copy_from(end, &one, Bytes(0), Bytes(1)),
        Detail::OutOfRange { .. } | Detail::NotMapped { .. }
    );
    refused!(
        other.copy_from(Bytes(0), &one, end, Bytes(1)),
        Detail::OutOfRange { .. } | Detail::NotMapped { .. }
    );
    refused!(other.copy_from(Bytes(0), &one, Bytes(u64::MAX), Bytes(2)), Detail::Overflow { .. });
    refused!(other.copy_from(Bytes(1), &one, Bytes(0), Bytes(u64::MAX)), Detail::Overflow { .. });
    one.set_access(Bytes(0), granule, subject.device, Access::None).unwrap();
    refused!(other.copy_from(Bytes(0), &one, Bytes(0), length), Detail::NoAccess { need: Access::Read, .. });
    one.set_access(Bytes(0), granule, subject.device, RW).unwrap();
    other.set_access(Bytes(0), granule, subject.device, Access::Read).unwrap();
    refused!(other.copy_from(Bytes(0), &one, Bytes(0), length), Detail::NoAccess { need: RW, .. });
    subject.check(&other, Bytes(0), length, 2);
    one.copy_from(Bytes(0), &other, Bytes(0), granule).unwrap();
    subject.check(&one, Bytes(0), granule, 2);
    if let Some(foreign) = subject.target.foreign() {
        let mut theirs = Region::builder(&foreign).reserve(granule).build().unwrap();
        theirs.grow_to(granule).unwrap();
        refused!(one.copy_from(Bytes(0), &theirs, Bytes(0), Bytes(1)), Detail::ForeignHandle { .. });
    }
}

fn within_a_region<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject);
    let half = subject.granules(3);
    subject.write(&mut region, Bytes(0), half, 1);
    subject.write(&mut region, half, half, 1000);
    let (from, to) = (region.address() + Bytes(8), region.address() + half);
    // SAFETY: both parts are mapped in one reservation and do not overlap, and the device may read and write them.
    unsafe { copy(subject, subject.device, to, from, half - Bytes(8)) };
    // The copy began at the second word, so the last word is unchanged.
    subject.check(&region, half, half - Bytes(8), 2);
    let last = region.end() - Bytes(8);
    subject.check(&region, last, Bytes(8), 1000 + half.0 / 8 - 1);
}

fn plain_beside_regions<B: TestKit>(subject: &Subject<B>) {
    let length = subject.granules(2);
    let mut plain: Vec<Plain<'_, B>> = (0..3).map(|_| Plain::new(subject, subject.device, length)).collect();
    let mut regions: Vec<Region<B>> = (0..3).map(|_| mapped(subject)).collect();
    for (plain, seed) in plain.iter_mut().zip(0..) {
        plain.write(seed);
    }
    for (region, seed) in regions.iter_mut().zip(10..) {
        subject.write(region, Bytes(0), subject.granules(6), seed);
    }
    for (plain, seed) in plain.iter().zip(0..) {
        assert!(regions.iter().all(|region| !region.range().contains(plain.address())));
        assert_eq!(plain.wrong(seed), 0);
    }
    drop(plain);
    for (region, seed) in regions.iter().zip(10..) {
        subject.check(region, Bytes(0), subject.granules(6), seed);
    }
}
