//! One handle at several addresses, in one region and in several.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Done, Error, Workbench};

cases! { "alias":
    /// one write is seen at all.
    one_write_is_seen_at_all,
    /// access is each mapping s own.
    access_is_each_mapping_s_own,
    /// memory lives until the last.
    memory_lives_until_the_last,
    /// a ring by double mapping.
    a_ring_by_double_mapping,
    /// across regions.
    across_regions,
}

fn one_write_is_seen_at_all<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(8).build().unwrap();
    let memory = subject.memory(2);
    for offset in [0, 2, 5] {
        region.map(subject.units(offset), &memory).unwrap();
        region.set_access(subject.units(offset), subject.units(2), subject.device, RW).unwrap();
    }
    region.write_pattern(subject.device, subject.units(2), subject.units(2), 11).unwrap();
    for offset in [0, 2, 5] {
        assert_eq!(
            region.count_wrong(subject.device, subject.units(offset), subject.units(2), 11).unwrap(),
            0
        );
    }
    region.unmap(subject.units(2), subject.units(2), Done::when_devices_idle()).unwrap();
    assert_eq!(region.count_wrong(subject.device, subject.units(5), subject.units(2), 11).unwrap(), 0);
}

fn access_is_each_mapping_s_own<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    let memory = subject.memory(1);
    region.map(Bytes(0), &memory).unwrap();
    region.map(subject.unit(), &memory).unwrap();
    region.set_access(Bytes(0), subject.unit(), subject.device, RW).unwrap();
    region.set_access(subject.unit(), subject.unit(), subject.device, Access::Read).unwrap();
    region.write(Bytes(0), b"through the one").unwrap();
    let mut bytes = [0; 15];
    region.read(subject.unit(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"through the one");
    assert!(matches!(region.write(subject.unit(), b"x"), Err(Error::NoAccess { .. })));
}

fn memory_lives_until_the_last<B: Workbench>(subject: &Subject<B>) {
    let before = subject.free();
    let memory = subject.memory(2);
    let held = subject.free();
    let mut region = subject.region(8).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    region.map(subject.units(4), &memory).unwrap();
    region.set_access(subject.units(4), subject.units(2), subject.device, RW).unwrap();
    assert_eq!(subject.free(), held, "mapping takes no memory");
    drop(memory);
    region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle()).unwrap();
    assert_eq!(subject.free(), held, "one mapping is left");
    region.write(subject.units(4), b"alive").unwrap();
    drop(region);
    assert_eq!(subject.free(), before);
}

fn a_ring_by_double_mapping<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    let memory = subject.memory(1);
    region.map(Bytes(0), &memory).unwrap();
    region.map(subject.unit(), &memory).unwrap();
    region.set_access(Bytes(0), subject.units(2), subject.device, RW).unwrap();
    region.write(subject.unit() - Bytes(3), b"around").unwrap();
    let mut start = [0; 3];
    region.read(Bytes(0), &mut start).unwrap();
    assert_eq!(&start, b"und");
}

fn across_regions<B: Workbench>(subject: &Subject<B>) {
    let mut first = subject.region(2).build().unwrap();
    first.grow_to(subject.units(2)).unwrap();
    let memory = first.mapping_at(Bytes(0)).unwrap().memory.clone();
    let mut second = subject.region(4).build().unwrap();
    second.map(subject.unit(), &memory).unwrap();
    second.set_access(subject.unit(), subject.units(2), subject.device, Access::Read).unwrap();
    first.write_pattern(subject.device, Bytes(0), subject.units(2), 4).unwrap();
    assert_eq!(second.count_wrong(subject.device, subject.unit(), subject.units(2), 4).unwrap(), 0);
    drop(first);
    assert_eq!(second.count_wrong(subject.device, subject.unit(), subject.units(2), 4).unwrap(), 0);
}
