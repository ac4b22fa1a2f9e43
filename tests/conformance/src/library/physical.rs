//! Physical memory: counted from creation until the last hold on it is gone.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Bytes, Done, Error, Physical, Properties, Region, Workbench};

cases! { "physical":
    /// is counted.
    is_counted,
    /// is rounded.
    is_rounded,
    /// out of memory has the numbers.
    out_of_memory_has_the_numbers,
    /// nothing is lost when memory ends.
    nothing_is_lost_when_memory_ends,
    /// on the device that was named.
    on_the_device_that_was_named,
    /// exported and imported.
    exported_and_imported,
    /// export must be asked for.
    export_must_be_asked_for,
    /// fresh memory is zero.
    fresh_memory_is_zero,
}

fn is_counted<B: Workbench>(subject: &Subject<B>) {
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

fn is_rounded<B: Workbench>(subject: &Subject<B>) {
    let memory = Physical::create(&subject.backend, Bytes(1), Properties::on(subject.device)).unwrap();
    assert_eq!(memory.size(), subject.granularity());
    assert_eq!(memory.device(), subject.device);
}

/// More than is free and no more than there is.
fn too_much<B: Workbench>(subject: &Subject<B>) -> (Physical<B>, Bytes) {
    let total = subject.backend.devices()[0].total_memory;
    let most = Bytes(total.0 - total.0 % subject.unit().0);
    (subject.memory(4), most)
}

fn out_of_memory_has_the_numbers<B: Workbench>(subject: &Subject<B>) {
    let (_held, most) = too_much(subject);
    let error = Physical::create(&subject.backend, most, Properties::on(subject.device)).unwrap_err();
    let Error::OutOfMemory { requested, free, total, ref source, .. } = error else { panic!("{error:?}") };
    assert_eq!((requested, total), (most, subject.backend.memory_info(subject.device).unwrap().total));
    assert!(free < requested && !source.name.is_empty(), "{error}");
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains(&requested.to_string()), "{error}");
}

fn nothing_is_lost_when_memory_ends<B: Workbench>(subject: &Subject<B>) {
    let (held, most) = too_much(subject);
    let mut region = Region::builder(&subject.backend).reserve(most).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.write_pattern(subject.device, Bytes(0), subject.units(2), 1).unwrap();
    let before = (subject.free(), region.range(), region.end());
    let error = region.grow_to(most).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!((subject.free(), region.range(), region.end()), before);
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(2), 1).unwrap(), 0);
    drop(held);
    region.grow_to(subject.units(3)).unwrap();
}

fn on_the_device_that_was_named<B: Workbench>(subject: &Subject<B>) {
    let (_, b) = subject.two_devices();
    let before = subject.free();
    let memory = Physical::create(&subject.backend, subject.units(8), Properties::on(b)).unwrap();
    let after = subject.free();
    assert_eq!((after[0], after[1]), (before[0], before[1] - subject.units(8)));
    assert_eq!(memory.device(), b);
}

/// What not every version can do ends the case as ignored, with the reason.
#[cfg(unix)]
fn or_skip<T>(result: gpu_vmm_core::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(Error::Unsupported { reason, .. }) => crate::subject::skip(reason),
        Err(error) => panic!("{error}"),
    }
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn exported_and_imported<B: Workbench>(subject: &Subject<B>) {
    use std::os::fd::AsFd;
    let properties = Properties::on(subject.device).shareable();
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
    region.set_access(Bytes(0), subject.units(4), subject.device, RW).unwrap();
    region.write_pattern(subject.device, Bytes(0), subject.units(2), 8).unwrap();
    assert_eq!(region.count_wrong(subject.device, subject.units(2), subject.units(2), 8).unwrap(), 0);
    drop(memory);
    region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle()).unwrap();
    assert_eq!(region.count_wrong(subject.device, subject.units(2), subject.units(2), 8).unwrap(), 0);
}

#[cfg(unix)]
fn export_must_be_asked_for<B: Workbench>(subject: &Subject<B>) {
    let error = subject.memory(1).export().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

/// No driver promises it, all that were tried do it; a pool that hands kept memory on must see to it itself.
fn fresh_memory_is_zero<B: Workbench>(subject: &Subject<B>) {
    for _ in 0..2 {
        let mut region = subject.region(4).build().unwrap();
        region.grow_to(subject.units(4)).unwrap();
        let mut bytes = vec![1; subject.units(4).0 as usize];
        region.read(Bytes(0), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0) || subject.backend.vendor() == gpu_vmm_core::Vendor::Hip);
        region.fill(Bytes(0), subject.units(4), 0xff).unwrap();
    }
}
