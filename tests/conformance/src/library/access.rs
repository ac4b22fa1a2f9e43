//! Rules 2 and 8: access is set for whole mappings, to whom it was asked for and to no one else.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Done, Error, Workbench};

cases! { "access":
    /// none after map.
    none_after_map,
    /// set and changed.
    set_and_changed,
    /// read only is checked.
    read_only_is_checked,
    /// none is checked.
    none_is_checked,
    /// over several mappings.
    over_several_mappings,
    /// only who was asked for.
    only_who_was_asked_for,
    /// peers are granted and withdrawn.
    peers_are_granted_and_withdrawn,
    /// gone after unmap.
    gone_after_unmap,
    /// each step may differ.
    each_step_may_differ,
}

fn none_after_map<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.map(Bytes(0), &subject.memory(2)).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    let error = region.write(Bytes(0), &[1]).unwrap_err();
    assert!(matches!(error, Error::NoAccess { have: Access::None, need: RW, .. }), "{error}");
    assert!(matches!(region.read(Bytes(0), &mut [1]), Err(Error::NoAccess { .. })));
}

fn set_and_changed<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.map(Bytes(0), &subject.memory(2)).unwrap();
    for access in [RW, Access::Read, RW, Access::None, Access::Read, Access::Read, RW] {
        region.set_access(Bytes(0), subject.units(2), subject.device, access).unwrap();
        assert_eq!(region.access(subject.units(2) - Bytes(1), subject.device), access);
    }
    region.write(Bytes(0), b"open").unwrap();
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap();
    let mut bytes = [0; 4];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"open");
}

fn read_only_is_checked<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.fill(Bytes(0), subject.units(2), 9).unwrap();
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap();
    for result in [
        region.write(Bytes(0), &[1]),
        region.fill(Bytes(0), Bytes(1), 1),
        region.write_pattern(subject.device, Bytes(0), Bytes(8), 1),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::NoAccess { have: Access::Read, need: RW, .. }), "{error}");
    }
    let mut bytes = [0];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(bytes, [9]);
}

fn none_is_checked<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(1)).unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.set_access(subject.unit(), subject.unit(), subject.device, Access::None).unwrap();
    let error = region.read(subject.unit() - Bytes(1), &mut [0; 2]).unwrap_err();
    assert!(error.to_string().contains(&subject.unit().to_string()), "{error}");
    region.read(Bytes(0), &mut [0; 2]).unwrap();
}

fn over_several_mappings<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(8).build().unwrap();
    for (offset, units) in [(0, 1), (1, 3), (4, 2)] {
        region.map(subject.units(offset), &subject.memory(units)).unwrap();
    }
    region.set_access(Bytes(0), subject.units(6), subject.device, RW).unwrap();
    region.write_pattern(subject.device, Bytes(0), subject.units(6), 5).unwrap();
    region.set_access(subject.units(1), subject.units(3), subject.device, Access::Read).unwrap();
    let rights: Vec<Access> = (0..6).map(|unit| region.access(subject.units(unit), subject.device)).collect();
    assert_eq!(rights, [RW, Access::Read, Access::Read, Access::Read, RW, RW]);
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(6), 5).unwrap(), 0);
}

fn only_who_was_asked_for<B: Workbench>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(2).on(a).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (RW, Access::None));
    let error = region.count_wrong(b, Bytes(0), Bytes(8), 0).unwrap_err();
    assert!(matches!(error, Error::NoAccess { .. }), "{error}");
}

fn peers_are_granted_and_withdrawn<B: Workbench>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(4).on(a).access(b, Access::Read).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    region.write_pattern(a, Bytes(0), subject.units(3), 1).unwrap();
    assert_eq!(region.count_wrong(b, Bytes(0), subject.units(3), 1).unwrap(), 0);
    assert!(matches!(region.write_pattern(b, Bytes(0), Bytes(8), 2), Err(Error::NoAccess { .. })));
    region.set_access(Bytes(0), subject.units(3), b, Access::None).unwrap();
    assert!(matches!(region.count_wrong(b, Bytes(0), Bytes(8), 1), Err(Error::NoAccess { .. })));
    assert_eq!(region.count_wrong(a, Bytes(0), subject.units(3), 1).unwrap(), 0);
}

fn gone_after_unmap<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    let memory = subject.memory(1);
    region.map(Bytes(0), &memory).unwrap();
    region.set_access(Bytes(0), subject.unit(), subject.device, RW).unwrap();
    region.write(Bytes(0), b"kept with the memory").unwrap();
    region.unmap(Bytes(0), subject.unit(), Done::when_devices_idle()).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    region.map(subject.unit(), &memory).unwrap();
    assert!(matches!(region.read(subject.unit(), &mut [0]), Err(Error::NoAccess { .. })));
    region.set_access(subject.unit(), subject.unit(), subject.device, Access::Read).unwrap();
    let mut bytes = [0; 20];
    region.read(subject.unit(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept with the memory");
}

/// On HIP 7.0 to 7.2 a call for a later mapping needs the ones before it; what those have must stay.
fn each_step_may_differ<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(32).build().unwrap();
    let rights = [RW, Access::Read, RW, Access::Read, Access::None, RW, Access::Read];
    for (step, access) in rights.into_iter().enumerate() {
        let from = region.end();
        region.grow_to(from + subject.units(1 + step as u64 % 3)).unwrap();
        region.write_pattern(subject.device, from, region.end() - from, step as u64).unwrap();
        region.set_access(from, region.end() - from, subject.device, access).unwrap();
    }
    let mappings: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    for ((step, access), (offset, length)) in rights.into_iter().enumerate().zip(mappings) {
        assert_eq!(region.access(offset, subject.device), access);
        if access != Access::None {
            assert_eq!(
                region.count_wrong(subject.device, offset, length, step as u64).unwrap(),
                0,
                "step {step}"
            );
        }
    }
}
