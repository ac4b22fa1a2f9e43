//! Exports other than a descriptor of one handle: fabric handles and DMA-BUFs; and imports that differ from their description.
#![allow(unsafe_code)]

use crate::memory_types::capability;
use crate::support::*;
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, Feature, Handle, Location, MemoryCalls, Operation, Properties,
};
use gpu_vmm_cuda::CudaBackend;
use std::os::fd::AsFd;

/// The driver reports the memory's location to the importer. An import with another location is refused, and nothing stays
/// allocated.
pub(crate) fn import_has_the_stated_location(backend: &CudaBackend) {
    let size = granules(backend, 16);
    let mut lies = vec![Properties::on(DEVICE).located(Location::HostNode(0)).shareable()];
    if backend.devices().len() > 1 {
        lies.push(Properties::on(DeviceId(1)).shareable());
    }
    let shareable = Properties::on(DEVICE).shareable();
    let before = free(backend);
    for lie in lies {
        let fd = create_with(backend, size, shareable).export().unwrap();
        // SAFETY: the memory is of this size; the backend checks its location.
        let error = unsafe { backend.import(fd.as_fd(), size, &lie) }.unwrap_err();
        println!("{error}");
        let Detail::Mismatch { what, theirs, ours, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((*what, theirs.as_str()), ("location", "memory of device 0"));
        assert!(ours.starts_with("the importer expects memory of "), "{ours}");
    }
    assert_eq!(free(backend), before);
}

pub(crate) fn memory_of_a_node_is_shared(backend: &CudaBackend) {
    let properties = Properties::on(DEVICE).located(Location::HostNode(0)).shareable();
    let told = capability(backend, Feature::HostNodeMemory);
    if !told.available {
        println!("{}", told.note);
        return;
    }
    let size = backend.granularity_of(Operation::QueryGranularity, &properties).unwrap().bytes();
    let handle = create_with(backend, size, properties);
    let fd = handle.export().unwrap();
    // SAFETY: the memory is of this size and these properties.
    let import = unsafe { backend.import(fd.as_fd(), size, &properties) }.unwrap();
    let mut reservation = reserve(backend, Bytes(size.0 * 2), None);
    map(&mut reservation, Bytes::ZERO, &handle);
    map(&mut reservation, size, &import);
    write_pattern(backend, DEVICE, at(&reservation, Bytes::ZERO), size, 71);
    assert_eq!(count_wrong(backend, DEVICE, at(&reservation, size), size, 71), 0);
    unmap(&mut reservation, Bytes::ZERO, Bytes(size.0 * 2));
}
