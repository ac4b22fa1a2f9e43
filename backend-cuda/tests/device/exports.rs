//! Exports other than a descriptor of one handle: fabric handles and DMA-BUFs; and imports that differ from their description.
#![allow(unsafe_code)]

use crate::children::{ANSWER, QUESTION, SHARED, spawn};
use crate::memory_types::capability;
use crate::support::*;
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, FabricHandle, Feature, Handle, HandleTypes, Location, MemoryCalls,
    Operation, Properties, Reservation,
};
use gpu_vmm_cuda::CudaBackend;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Returns the properties of memory for processes of a fabric.
pub(crate) fn for_fabric() -> Properties {
    Properties::on(DEVICE).exported_as(HandleTypes::FABRIC)
}

pub(crate) fn a_fabric_handle_is_the_same_memory(backend: &CudaBackend) {
    let size = granules(backend, SHARED);
    let told = capability(backend, Feature::FabricHandle);
    if !told.available {
        // SAFETY: whole granules, on a device that exists.
        let error = unsafe { backend.create(size, &for_fabric()) }.unwrap_err();
        println!("{error}");
        let Detail::Unsupported { reason, .. } = error.detail() else { panic!("another error") };
        assert!(told.note.ends_with(reason), "{} and {reason}", told.note);
        return;
    }
    let handle = create_with(backend, size, for_fabric());
    let bytes = handle.export_fabric().unwrap();
    let descriptor = handle.export().unwrap_err();
    assert!(matches!(descriptor.detail(), Detail::Unsupported { .. }), "{descriptor}");
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, &handle);
    let base = at(&reservation, Bytes::ZERO);
    write_pattern(backend, DEVICE, base, size, QUESTION);

    // SAFETY: the bytes are of memory of this size and these properties.
    let import = unsafe { backend.import_fabric(&bytes, size, &for_fabric()) }.unwrap();
    let mut other = reserve(backend, size, None);
    map(&mut other, Bytes::ZERO, &import);
    assert_eq!(count_wrong(backend, DEVICE, at(&other, Bytes::ZERO), size, QUESTION), 0);
    let again = import.export_fabric().unwrap_err();
    assert!(matches!(again.detail(), Detail::Unsupported { .. }), "{again}");
    unmap(&mut other, Bytes::ZERO, size);

    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&bytes.0).unwrap();
    drop(writer);
    spawn("import-fabric", Some(OwnedFd::from(reader)));
    assert_eq!(count_wrong(backend, DEVICE, base, size, ANSWER), 0);
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn bytes_that_name_nothing_are_an_error(backend: &CudaBackend) {
    let size = granules(backend, 1);
    for bytes in [[0; FabricHandle::LENGTH], [0xA5; FabricHandle::LENGTH]] {
        // SAFETY: the driver must check handles from other machines itself.
        let error = unsafe { backend.import_fabric(&FabricHandle(bytes), size, &for_fabric()) }.unwrap_err();
        println!("{error}");
        assert!(matches!(error.detail(), Detail::Unsupported { .. } | Detail::Driver { .. }), "{error}");
    }
    let error = create(backend, size).export_fabric().unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
}

/// The driver reports the memory's location to the importer. An import with another location is refused, and nothing stays
/// allocated.
pub(crate) fn an_import_is_where_it_was_said_to_be(backend: &CudaBackend) {
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

pub(crate) fn a_dma_buf_is_as_long_as_its_part(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let mut reservation = reserve(backend, granules(backend, 4), None);
    let (first, second) = (create(backend, granule), create(backend, granules(backend, 3)));
    map(&mut reservation, Bytes::ZERO, &first);
    map(&mut reservation, granule, &second);
    let told = capability(backend, Feature::DmaBuf);
    for (offset, length) in
        [(Bytes::ZERO, granule), (granule, second.size()), (Bytes::ZERO, granules(backend, 4))]
    {
        // SAFETY: whole mappings of one device's memory without a hole.
        match unsafe { reservation.dma_buf(DEVICE, offset, length) } {
            Ok(fd) => {
                assert!(told.available && fd.as_raw_fd() > 2, "{told:?}, {fd:?}");
                // SAFETY: the calls take an open descriptor.
                let (flags, end) = unsafe {
                    (
                        libc::fcntl(fd.as_raw_fd(), libc::F_GETFD),
                        libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END),
                    )
                };
                assert_ne!(flags & libc::FD_CLOEXEC, 0);
                assert_eq!(end, length.0 as i64);
            }
            Err(error) => {
                println!("{error}");
                assert!(!told.available, "{told:?}");
            }
        }
    }
    unmap(&mut reservation, Bytes::ZERO, granules(backend, 4));
}
