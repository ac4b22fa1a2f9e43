//! Restoring at other addresses and on other devices.

use super::{filled, restore_one, ring, save};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, Placement, Properties, Region};
use gpu_vmm_snapshot::Restore;
use gpu_vmm_testkit::TestKit;

cases! { "snapshot":
    /// If its addresses are taken, a region with `relocate` is restored elsewhere, and the result has its old range.
    relocated,
    /// Of several regions, only those whose addresses are taken are restored elsewhere.
    relocates_only_where_needed,
    /// A region of several reservations becomes one reservation if it is restored elsewhere.
    several_reservations_become_one_elsewhere,
    /// A region with a large alignment keeps this alignment elsewhere.
    aligned_elsewhere,
    /// Memory of one device can be restored on another device at the same addresses.
    on_another_device,
    /// The memory of two devices can be exchanged.
    devices_change_places,
    /// Access of a device that is left out is dropped; leaving out a device whose memory is in the snapshot is refused.
    without_a_device,
    /// A function that sets the properties of restored memory does not choose its device.
    the_device_of_new_properties,
}

fn relocated<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let first = filled(subject, 2, 1);
    let (file, _) = save(&folder, "a", &[&first]);
    let again = restore_one(&subject.backend, &Restore::new().relocate(), &file);
    assert!(again.has_moved() && again.was == first.range(), "{again:?}");
    assert_ne!(again.region.address(), first.address());
    assert_eq!((again.region.reserved(), again.region.tag()), (first.reserved(), first.tag()));
    subject.check(&again.region, Bytes(0), subject.units(2), 1);
    drop(again);
    let range = first.range();
    drop(first);
    let again = restore_one(&subject.backend, &Restore::new().relocate(), &file);
    assert!(!again.has_moved(), "the region moved although its addresses are free");
    assert_eq!(again.region.range(), range);
}

fn relocates_only_where_needed<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let hole = subject.hole(32);
    let region = |number: u64| {
        let at = hole.checked_add(subject.units(number * 8)).unwrap();
        let builder = subject.region(1).at(Placement::Exact(at));
        let mut region = builder.tag(format!("region {number}")).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        subject.write(&mut region, Bytes(0), subject.unit(), number);
        region
    };
    let regions = [0, 1, 2].map(region);
    let (file, _) = save(&folder, "a", &regions.each_ref());
    let addresses = regions.each_ref().map(Region::address);
    let [first, second, third] = regions;
    drop((first, third));
    let all = Restore::new().relocate().regions(&file, &ring(&subject.backend)).unwrap();
    for (number, (restored, address)) in all.iter().zip(addresses).enumerate() {
        assert_eq!(restored.region.tag(), format!("region {number}"));
        assert_eq!(restored.was.base, address);
        assert_eq!(restored.has_moved(), number == 1);
        assert_eq!(restored.region.address() != address, number == 1);
        subject.check(&restored.region, Bytes(0), subject.unit(), number as u64);
    }
    subject.check(&second, Bytes(0), subject.unit(), 1);
}

fn several_reservations_become_one_elsewhere<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let place = Placement::Exact(subject.hole(8));
    let mut region = subject.region(1).at(place).extend_by(subject.unit()).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    assert_eq!(region.reservations().len(), 2);
    let (file, _) = save(&folder, "a", &[&region]);
    let again = restore_one(&subject.backend, &Restore::new().relocate(), &file).region;
    assert_eq!((again.reservations().len(), again.reserved()), (1, subject.units(2)));
    subject.check(&again, Bytes(0), subject.units(2), 1);
}

fn aligned_elsewhere<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let alignment = Bytes::gib(1);
    let mut region = subject.region(1).alignment(alignment).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    let again = restore_one(&subject.backend, &Restore::new().relocate(), &file).region;
    assert_ne!(again.address(), region.address());
    assert!(again.address().is_aligned_to(alignment), "it is at {}", again.address());
}

fn on_another_device<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let mut region = filled(subject, 2, 1);
    region.set_access(Bytes(0), subject.units(2), other, Access::Read).unwrap();
    let range = region.range();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    for options in [Restore::new().all_on(other), Restore::new().device(one, other)] {
        let mut region = restore_one(&subject.backend, &options, &file).region;
        assert_eq!(region.range(), range);
        assert_eq!(region.mapping_at(Bytes(0)).unwrap().memory.device(), other);
        let access = [one, other].map(|device| region.access(Bytes(0), device));
        assert_eq!(access, [Access::None, RW]);
        assert_eq!(region.count_wrong(other, Bytes(0), subject.units(2), 1).unwrap(), 0);
        region.grow_to(subject.units(3)).unwrap();
        let last = region.mapping_at(subject.units(2)).unwrap();
        assert_eq!(last.memory.device(), other, "the region grew by another device's memory");
        let access = [one, other].map(|device| region.access(subject.units(2), device));
        assert_eq!(access, [Access::None, RW], "growth gave another device access");
    }
}

fn devices_change_places<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let granule = subject.granularity();
    let mut region = subject.space(2).at(Placement::Exact(subject.hole(4))).build().unwrap();
    for (offset, device) in [(Bytes(0), one), (granule, other)] {
        region.map(offset, &subject.piece_on(device, 1)).unwrap();
        region.set_access(offset, granule, device, RW).unwrap();
        region.write_pattern(device, offset, granule, u64::from(device.0)).unwrap();
    }
    region.set_access(Bytes(0), granule, other, Access::Read).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let options = Restore::new().device(one, other).device(other, one);
    let region = restore_one(&subject.backend, &options, &file).region;
    for (offset, was, is) in [(Bytes(0), one, other), (granule, other, one)] {
        assert_eq!(region.mapping_at(offset).unwrap().memory.device(), is);
        assert_eq!(region.count_wrong(is, offset, granule, u64::from(was.0)).unwrap(), 0);
    }
    assert_eq!([Bytes(0), granule].map(|at| region.access(at, one)), [Access::Read, RW]);
}

fn without_a_device<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let mut region = filled(subject, 1, 1);
    region.set_access(Bytes(0), subject.unit(), other, RW).unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new().without(other), &file).region;
    let access = [one, other, DeviceId::HOST].map(|device| region.access(Bytes(0), device));
    assert_eq!(access, [RW, Access::None, Access::None]);
    drop(region);
    let error = Restore::new().without(one).regions(&file, &ring(&subject.backend)).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("device")),
        "{error}"
    );
}

fn the_device_of_new_properties<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let folder = Folder::new();
    let region = filled(subject, 2, 1);
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let options = Restore::new().device(one, other).memory(|_| Properties::on(DeviceId(999)));
    let mut region = restore_one(&subject.backend, &options, &file).region;
    region.grow_to(subject.units(3)).unwrap();
    for offset in [Bytes(0), subject.units(2)] {
        assert_eq!(region.mapping_at(offset).unwrap().memory.properties(), Properties::on(other));
    }
}
