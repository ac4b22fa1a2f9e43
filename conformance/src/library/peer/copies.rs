//! Copies between the devices.
#![allow(unsafe_code)] // regions copy only to and from the host

use crate::case::cases;
use crate::library::plain::{Plain, copy};
use crate::subject::Subject;
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, Region};
use gpu_vmm_testkit::TestKit;

cases! { "peer":
    /// A device copies from another device's region, which it may only read, into its own region.
    region_to_region,
    /// A device copies from another device's region into its own plain allocation, and from there into a region.
    region_to_plain,
    /// A copy from another device's memory spans several mappings of the source and of the target.
    over_several_mappings,
    /// A copy that is larger than one chunk is complete.
    more_than_at_a_time,
    /// A device with access to one region only cannot copy from a neighboring region, and cannot copy from the first one
    /// after its access is revoked.
    access_is_by_region,
    /// A device copies memory to which the memory's owner has no access, or the copy is refused before the driver.
    without_the_owner,
}

/// A region of one device's memory that the other device may read, filled with a pattern.
fn readable<B: TestKit>(subject: &Subject<B>, owner: DeviceId, reader: DeviceId, seed: u64) -> Region<B> {
    let mut region = subject.space(4).on(owner).access(reader, Access::Read).build().unwrap();
    for granules in [1, 4] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    region.write_pattern(owner, Bytes(0), subject.granules(4), seed).unwrap();
    region
}

fn region_to_region<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(4);
    for (owner, other, seed) in [(a, b, 1), (b, a, 2)] {
        let source = readable(subject, owner, other, seed);
        let mut target = subject.space(4).on(other).build().unwrap();
        target.grow_to(length).unwrap();
        target.fill(Bytes(0), length, 0).unwrap();
        target.copy_from(Bytes(0), &source, Bytes(0), length).unwrap();
        assert_eq!(target.count_wrong(other, Bytes(0), length, seed).unwrap(), 0);
    }
}

fn region_to_plain<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(4);
    let source = readable(subject, a, b, 1);
    let mut plain = Plain::new(subject, b, length);
    plain.write(2);
    // SAFETY: the source is mapped in one reservation and the device may read it; the target belongs to the device.
    unsafe { copy(subject, b, plain.address(), source.address(), length) };
    assert_eq!(plain.wrong(1), 0);
    let mut target = subject.space(4).on(b).build().unwrap();
    target.grow_to(length).unwrap();
    // SAFETY: both sides belong to the device and have this length.
    unsafe { copy(subject, b, target.address(), plain.address(), length) };
    assert_eq!(target.count_wrong(b, Bytes(0), length, 1).unwrap(), 0);
}

fn over_several_mappings<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let source = readable(subject, a, b, 1);
    let mut target = subject.space(4).on(b).build().unwrap();
    for granules in 1..=4 {
        target.grow_to(subject.granules(granules)).unwrap();
    }
    target.write_pattern(b, Bytes(0), subject.granules(4), 5).unwrap();
    // From the second page to the end.
    let (skipped, length) = (Bytes(4096), subject.granules(4) - Bytes(4096));
    target.copy_from(Bytes(0), &source, skipped, length).unwrap();
    assert_eq!(target.count_wrong(b, Bytes(0), length, 1 + skipped.0 / 8).unwrap(), 0);
    // The bytes behind the copy were not written.
    assert_eq!(target.count_wrong(b, length, skipped, 5 + length.0 / 8).unwrap(), 0);
}

fn access_is_by_region<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(4);
    let mut granted = readable(subject, a, b, 1);
    let mut neighbour = subject.space(4).on(a).build().unwrap();
    neighbour.grow_to(length).unwrap();
    let mut target = subject.space(4).on(b).build().unwrap();
    target.grow_to(length).unwrap();
    target.copy_from(Bytes(0), &granted, Bytes(0), length).unwrap();
    let refused = target.copy_from(Bytes(0), &neighbour, Bytes(0), length).unwrap_err();
    assert!(matches!(refused.detail(), Detail::NoAccess { have: Access::None, .. }), "{refused}");
    assert_eq!((granted.access(Bytes(0), b), neighbour.access(Bytes(0), b)), (Access::Read, Access::None));
    granted.set_access(Bytes(0), length, b, Access::None).unwrap();
    neighbour.set_access(Bytes(0), length, b, Access::Read).unwrap();
    let refused = target.copy_from(Bytes(0), &granted, Bytes(0), length).unwrap_err();
    assert!(matches!(refused.detail(), Detail::NoAccess { have: Access::None, .. }), "{refused}");
    assert_eq!(
        target.count_wrong(b, Bytes(0), length, 1).unwrap(),
        0,
        "the bytes of the earlier copy have changed"
    );
    target.copy_from(Bytes(0), &neighbour, Bytes(0), length).unwrap();
}

fn more_than_at_a_time<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = Bytes::mib(34);
    let regions = [(a, b), (b, a)].map(|(owner, reader)| {
        let builder = Region::builder(&subject.backend).on(owner).reserve(length);
        let mut region = builder.access(reader, Access::Read).build().unwrap();
        region.grow_to(length).unwrap();
        region
    });
    let [mut source, mut target] = regions;
    source.write_pattern(a, Bytes(0), length, 9).unwrap();
    target.copy_from(Bytes(0), &source, Bytes(0), length).unwrap();
    assert_eq!(target.count_wrong(b, Bytes(0), length, 9).unwrap(), 0);
}

fn without_the_owner<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let (first, length) = (subject.granules(1), subject.granules(4));
    let mut source = readable(subject, a, b, 1);
    // The owner keeps its access to the first mapping, where the copy begins.
    source.set_access(first, length - first, a, Access::None).unwrap();
    let mut target = subject.space(4).on(b).build().unwrap();
    target.grow_to(length).unwrap();
    match target.copy_from(Bytes(0), &source, Bytes(0), length) {
        Ok(()) => assert_eq!(target.count_wrong(b, Bytes(0), length, 1).unwrap(), 0),
        Err(refused) => assert!(matches!(refused.detail(), Detail::Unsupported { .. }), "{refused}"),
    }
    target.copy_from(Bytes(0), &source, Bytes(0), first).unwrap();
    assert_eq!(target.count_wrong(b, Bytes(0), first, 1).unwrap(), 0);
}
