//! The handle types by which memory leaves the process.
#![allow(unsafe_code)] // imports, and asks for descriptors of mappings

use super::{SEED, mapped, refused, some};
use crate::case::cases;
use crate::leaks;
use crate::library::tools::{capability, has, write};
use crate::subject::{Subject, skip};
use gpu_vmm_core::{
    Alignment, Bytes, Detail, FabricHandle, Feature, Grant, HandleTypes, Location, PhysicalMemory,
    Properties, Reservation,
};
use gpu_vmm_testkit::TestKit;
use rustix::io::{FdFlags, fcntl_getfd};
use std::os::fd::{AsRawFd, OwnedFd};

cases! { "kinds":
    /// Memory can be created for each handle type that the device reports; other types are refused with the reason, alone and
    /// combined.
    handle_types,
    /// Memory is exported only as the handle types that were requested when it was created; a refused export does not count as
    /// an export.
    only_what_was_asked_for,
    /// A fabric handle imports the same memory; without fabric handles, 64 zero bytes are refused.
    fabric_handle,
    /// If the device reports dma-bufs, a mapping's dma-buf has its size, is close-on-exec, is above the standard streams, and
    /// leaks nothing.
    dma_buf,
    /// A device's memory has a dma-buf also when host memory is mapped directly before it.
    dma_buf_behind_host_memory,
}

fn handle_types<B: TestKit>(subject: &Subject<B>) {
    let types = [
        (HandleTypes::FILE_DESCRIPTOR, Feature::FileDescriptor),
        (HandleTypes::WIN32, Feature::Win32Handle),
        (HandleTypes::FABRIC, Feature::FabricHandle),
    ];
    for (types, feature) in types {
        let properties = subject.properties().exported_as(types);
        if capability(subject, feature).available {
            assert_eq!(super::works(subject, properties).properties(), properties);
        } else {
            refused(subject, properties);
            refused(subject, properties.shareable());
        }
    }
}

fn is_unsupported<T>(answer: gpu_vmm_core::Result<T>) {
    let Err(error) = answer else { panic!("the export was not refused") };
    assert!(matches!(error.detail(), Detail::Unsupported { reason, .. } if !reason.is_empty()), "{error}");
}

fn only_what_was_asked_for<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(1);
    is_unsupported(memory.export());
    is_unsupported(memory.export_fabric());
    assert!(!memory.is_exported());
    if capability(subject, Feature::FileDescriptor).available {
        let properties = subject.properties().exported_as(HandleTypes::FILE_DESCRIPTOR);
        let shareable = PhysicalMemory::create(&subject.backend, subject.granules(1), properties).unwrap();
        is_unsupported(shareable.export_fabric());
        assert!(!shareable.is_exported());
        shareable.export().unwrap();
        assert!(shareable.clone().is_exported());
    }
    if capability(subject, Feature::FabricHandle).available {
        let properties = subject.properties().exported_as(HandleTypes::FABRIC);
        is_unsupported(
            PhysicalMemory::create(&subject.backend, subject.granules(1), properties).unwrap().export(),
        );
    }
}

/// Imports the memory that a fabric handle names.
fn imported<B: TestKit>(
    subject: &Subject<B>,
    handle: &FabricHandle,
    properties: Properties,
    size: Bytes,
) -> gpu_vmm_core::Result<PhysicalMemory<B>> {
    // SAFETY: the handle is of memory of this size, or all zeros, which the driver must refuse.
    unsafe { PhysicalMemory::import_fabric(&subject.backend, handle, size, properties) }
}

fn fabric_handle<B: TestKit>(subject: &Subject<B>) {
    let properties = subject.properties().exported_as(HandleTypes::FABRIC);
    if !capability(subject, Feature::FabricHandle).available {
        is_unsupported(imported(subject, &FabricHandle([0; 64]), properties, subject.granules(1)));
        return;
    }
    let (memory, mut region) = mapped(subject, properties);
    write(subject, &mut region, SEED);
    let handle = memory.export_fabric().unwrap();
    let again = imported(subject, &handle, properties, memory.size()).unwrap();
    leaks::counts_import();
    assert!(has(subject, &crate::library::tools::mapped(subject, &[&again]), SEED));
}

/// Maps two pieces of equal size next to each other. Returns the size, and the dma-bufs of the first, of the second, and of
/// both together.
fn ranges<B: TestKit>(subject: &Subject<B>) -> (Bytes, [gpu_vmm_core::Result<OwnedFd>; 3]) {
    let (backend, properties) = (&subject.backend, subject.properties());
    let size = some(subject, &properties);
    let unit = backend.reservation_unit();
    let room = unit.round_up(Bytes(2 * size.0)).unwrap();
    let grant = Grant { device: subject.device, access: crate::subject::RW };
    // SAFETY: the sizes are multiples of the granularity, the fresh reservation has room for both pieces, and no work uses
    // them.
    unsafe {
        let mut reservation = backend.reserve(room, Alignment::from(unit), None).unwrap();
        for offset in [Bytes(0), size] {
            reservation.map(offset, &backend.create(size, &properties).unwrap()).unwrap();
            reservation.set_access(offset, size, &[grant]).unwrap();
        }
        let parts = [(Bytes(0), size), (size, size), (Bytes(0), Bytes(2 * size.0))];
        let answers = parts.map(|(offset, length)| reservation.dma_buf(subject.device, offset, length));
        reservation.unmap(Bytes(0), size).unwrap();
        reservation.unmap(size, size).unwrap();
        (size, answers)
    }
}

fn dma_buf<B: TestKit>(subject: &Subject<B>) {
    let (size, [first, second, both]) = ranges(subject);
    if !capability(subject, Feature::DmaBuf).available {
        [first, second, both].into_iter().for_each(is_unsupported);
        return;
    }
    let is_right = |fd: &OwnedFd, size: Bytes| {
        assert!(fd.as_raw_fd() > 2);
        assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).unwrap(), size.0);
    };
    is_right(&first.unwrap(), size);
    is_right(&second.unwrap(), size);
    match both {
        Ok(fd) => is_right(&fd, Bytes(2 * size.0)),
        refused => is_unsupported(refused),
    }
}

fn dma_buf_behind_host_memory<B: TestKit>(subject: &Subject<B>) {
    for capability in [Feature::HostMemory, Feature::DmaBuf].map(|feature| capability(subject, feature)) {
        if !capability.available {
            skip(capability.note);
        }
    }
    let (before, mut region) = mapped(subject, subject.properties().located(Location::Host));
    let size = before.size();
    let memory = PhysicalMemory::create(&subject.backend, size, subject.properties()).unwrap();
    subject.open(&mut region, size, &memory);
    let bufs = region.dma_bufs(size, size).unwrap();
    assert_eq!((bufs.len(), bufs[0].offset, bufs[0].length), (1, size, size));
}
