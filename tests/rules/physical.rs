//! Physical memory: counted from creation until the last hold on it is gone.

use crate::subject::{RW, Subject, cases};
use gpu_vmm::{Backend, Bytes, DeviceId, Done, Error, Physical, Properties, Region};

cases!("physical": is_counted, is_rounded, out_of_memory_has_the_numbers, nothing_is_lost_when_memory_ends,
    on_the_device_that_was_named, exported_and_imported, export_must_be_asked_for, fresh_memory_is_zero);

const D0: DeviceId = DeviceId(0);

fn is_counted(subject: &Subject) {
    let before = subject.free()[0];
    let memory = subject.memory(16);
    assert_eq!(subject.free()[0], before - subject.units(16));
    let mut region = subject.region(16).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    assert_eq!(subject.free()[0], before - subject.units(16));
    drop(memory);
    assert_eq!(subject.free()[0], before - subject.units(16));
    drop(region);
    assert_eq!(subject.free()[0], before);
}

fn is_rounded(subject: &Subject) {
    let memory = Physical::create(&subject.backend, Bytes(1), Properties::on(D0)).unwrap();
    assert_eq!(memory.size(), subject.granularity());
    assert_eq!(memory.device(), D0);
}

/// More than is free and no more than there is.
fn too_much(subject: &Subject) -> (Physical<gpu_vmm::AnyBackend>, Bytes) {
    let total = subject.backend.devices()[0].total_memory;
    let most = Bytes(total.0 - total.0 % subject.unit().0);
    (subject.memory(4), most)
}

fn out_of_memory_has_the_numbers(subject: &Subject) {
    let (_held, most) = too_much(subject);
    let error = Physical::create(&subject.backend, most, Properties::on(D0)).unwrap_err();
    let Error::OutOfMemory { requested, free, total, ref source, .. } = error else { panic!("{error:?}") };
    assert_eq!((requested, total), (most, subject.backend.memory_info(D0).unwrap().total));
    assert!(free < requested && !source.name.is_empty(), "{error}");
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains(&requested.to_string()), "{error}");
}

fn nothing_is_lost_when_memory_ends(subject: &Subject) {
    let (held, most) = too_much(subject);
    let mut region = Region::builder(&subject.backend).reserve(most).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.write_pattern(D0, Bytes(0), subject.units(2), 1).unwrap();
    let before = (subject.free(), region.range(), region.end());
    let error = region.grow_to(most).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!((subject.free(), region.range(), region.end()), before);
    assert_eq!(region.count_wrong(D0, Bytes(0), subject.units(2), 1).unwrap(), 0);
    drop(held);
    region.grow_to(subject.units(3)).unwrap();
}

fn on_the_device_that_was_named(subject: &Subject) {
    let (_, b) = subject.two_devices();
    let before = subject.free();
    let memory = Physical::create(&subject.backend, subject.units(8), Properties::on(b)).unwrap();
    let after = subject.free();
    assert_eq!((after[0], after[1]), (before[0], before[1] - subject.units(8)));
    assert_eq!(memory.device(), b);
}

/// What not every version can do ends the case as ignored, with the reason.
#[cfg(unix)]
fn or_skip<T>(result: gpu_vmm::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(Error::Unsupported { reason, .. }) => crate::subject::skip(reason),
        Err(error) => panic!("{error}"),
    }
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn exported_and_imported(subject: &Subject) {
    use std::os::fd::AsFd;
    let properties = Properties::on(D0).shareable();
    let memory = or_skip(Physical::create(&subject.backend, subject.units(2), properties));
    let fd = or_skip(memory.export());
    // SAFETY: the descriptor was exported from this memory just now.
    let imported = unsafe { Physical::import(&subject.backend, fd.as_fd(), memory.size(), properties) };
    let imported = or_skip(imported);
    crate::leaks::counts_import();
    drop(fd);
    let mut region = subject.region(4).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    region.map(subject.units(2), &imported).unwrap();
    region.set_access(Bytes(0), subject.units(4), D0, RW).unwrap();
    region.write_pattern(D0, Bytes(0), subject.units(2), 8).unwrap();
    assert_eq!(region.count_wrong(D0, subject.units(2), subject.units(2), 8).unwrap(), 0);
    drop(memory);
    region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle()).unwrap();
    assert_eq!(region.count_wrong(D0, subject.units(2), subject.units(2), 8).unwrap(), 0);
}

#[cfg(unix)]
fn export_must_be_asked_for(subject: &Subject) {
    let error = subject.memory(1).export().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

/// No driver promises it, all that were tried do it; a pool that hands kept memory on must see to it itself.
fn fresh_memory_is_zero(subject: &Subject) {
    for _ in 0..2 {
        let mut region = subject.region(4).build().unwrap();
        region.grow_to(subject.units(4)).unwrap();
        let mut bytes = vec![1; subject.units(4).0 as usize];
        region.read(Bytes(0), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0) || subject.backend.vendor() == gpu_vmm::Vendor::Hip);
        region.fill(Bytes(0), subject.units(4), 0xff).unwrap();
    }
}
