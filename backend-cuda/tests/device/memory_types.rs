//! Memory types: requested locations and properties, and the memory that results.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Capability, Detail, DeviceId, Feature, Handle, HandleTypes, Location,
    MemoryCalls, Operation, Properties, Reservation, Result,
};
use gpu_vmm_cuda::{CudaBackend, CudaHandle, CudaReservation};
use gpu_vmm_testkit::{count_wrong_words, write_pattern_words};
use std::os::fd::AsFd;

/// Returns the backend's capability for a feature.
pub(crate) fn capability(backend: &CudaBackend, feature: Feature) -> Capability {
    let all = backend.capabilities(DEVICE).unwrap();
    all.into_iter().find(|one| one.feature == feature).unwrap()
}

/// Creates `count` granules of such memory, or returns `None` after printing the error. The capability must agree.
fn create_if_there(
    backend: &CudaBackend,
    count: u64,
    properties: Properties,
    feature: Feature,
) -> Option<CudaHandle> {
    let told = capability(backend, feature);
    let created = backend.granularity_of(Operation::QueryGranularity, &properties).and_then(|granularity| {
        // SAFETY: whole granules, on a device that exists.
        unsafe { backend.create(Bytes(granularity.bytes().0 * count), &properties) }
    });
    assert_eq!(created.is_ok(), told.available, "{properties}: {created:?}, and {told:?}");
    created.map_err(|error| println!("{error}")).ok()
}

fn words(bytes: Bytes) -> usize {
    bytes.0 as usize / size_of::<u64>()
}

/// Returns the words at an address, for the CPU.
///
/// # Safety
///
/// The CPU has read and write access there, and no device uses the memory meanwhile.
unsafe fn seen<'a>(at: Address, length: Bytes) -> &'a mut [u64] {
    // SAFETY: the caller upholds the contract; a mapping begins at a granule.
    unsafe { std::slice::from_raw_parts_mut(at.0 as *mut u64, words(length)) }
}

fn node(backend: &CudaBackend) -> Location {
    let note = capability(backend, Feature::HostNodeMemory).note;
    // "host memory of node 0, ..."
    let number = note.split("node ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    Location::HostNode(number.unwrap_or(0))
}

pub(crate) fn an_import_says_whether_it_is_compressible(backend: &CudaBackend) {
    let asked = Properties::on(DEVICE).shareable();
    let compressible = Properties { compressible: true, ..asked };
    let size = backend.granularity_of(Operation::QueryGranularity, &compressible).unwrap().bytes();
    for created in [asked, compressible] {
        let handle = create_with(backend, size, created);
        let fd = handle.export().unwrap();
        for expected in [asked, compressible] {
            // SAFETY: memory of this size, on this device.
            let import = unsafe { backend.import(fd.as_fd(), size, &expected) }.unwrap();
            assert_eq!(import.properties().compressible, handle.properties().compressible);
        }
    }
}

pub(crate) fn cpu_reads_and_writes_host_memory(backend: &CudaBackend) {
    for (location, feature) in
        [(Location::Host, Feature::HostMemory), (node(backend), Feature::HostNodeMemory)]
    {
        let properties = Properties::on(DEVICE).located(location);
        backend.check_host_access(Operation::QueryAccess, &properties).unwrap();
        let before = free(backend);
        let Some(handle) = create_if_there(backend, 16, properties, feature) else { continue };
        let size = handle.size();
        assert!(before - free(backend) < size, "{size} of the host are counted as the device's");
        let mut reservation = reserve(backend, size, None);
        // SAFETY: nothing is mapped there.
        unsafe { reservation.map(Bytes::ZERO, &handle) }.unwrap();
        assert_eq!(host_access(&reservation), Access::None);

        let both = |host, device| [grant(DeviceId::HOST, host), grant(DEVICE, device)];
        set_access(&mut reservation, Bytes::ZERO, size, &both(Access::ReadWrite, Access::ReadWrite));
        assert_eq!(
            (host_access(&reservation), access(&reservation, Bytes::ZERO)),
            (Access::ReadWrite, Access::ReadWrite)
        );
        let base = at(&reservation, Bytes::ZERO);
        // SAFETY: the CPU has access, and the device is idle.
        write_pattern_words(unsafe { seen(base, size) }, 61, 0);
        assert_eq!(count_wrong(backend, DEVICE, base, size, 61), 0);
        write_pattern(backend, DEVICE, base, size, 62);
        // SAFETY: as above.
        assert_eq!(count_wrong_words(unsafe { seen(base, size) }, 62, 0), 0);

        // Each keeps its access when a call names only the other.
        set_access(&mut reservation, Bytes::ZERO, size, &[grant(DeviceId::HOST, Access::Read)]);
        assert_eq!(
            (host_access(&reservation), access(&reservation, Bytes::ZERO)),
            (Access::Read, Access::ReadWrite)
        );
        set_access(&mut reservation, Bytes::ZERO, size, &[grant(DEVICE, Access::Read)]);
        assert_eq!(
            (host_access(&reservation), access(&reservation, Bytes::ZERO)),
            (Access::Read, Access::Read)
        );
        set_access(&mut reservation, Bytes::ZERO, size, &[grant(DeviceId::HOST, Access::None)]);
        assert_eq!(
            (host_access(&reservation), access(&reservation, Bytes::ZERO)),
            (Access::None, Access::Read)
        );
        unmap(&mut reservation, Bytes::ZERO, size);
        println!("{location}: read and written by both");
    }
}

fn host_access(reservation: &CudaReservation) -> Access {
    // SAFETY: tests query only mapped offsets.
    unsafe { reservation.access(Bytes::ZERO, DeviceId::HOST) }.unwrap()
}

/// Memory of both host locations side by side: the driver has a CPU location of its own for each.
pub(crate) fn one_cpu_grant_spans_host_places(backend: &CudaBackend) {
    let of_node = Properties::on(DEVICE).located(node(backend));
    let anywhere = Properties::on(DEVICE).located(Location::Host);
    let both = create_if_there(backend, 1, of_node, Feature::HostNodeMemory).zip(create_if_there(
        backend,
        1,
        anywhere,
        Feature::HostMemory,
    ));
    let Some((first, second)) = both else { return };
    let size = first.size() + second.size();
    let mut reservation = reserve(backend, size, None);
    // SAFETY: nothing is mapped there.
    unsafe {
        reservation.map(Bytes::ZERO, &first).unwrap();
        reservation.map(first.size(), &second).unwrap();
    }
    set_access(&mut reservation, Bytes::ZERO, size, &[grant(DeviceId::HOST, Access::ReadWrite)]);
    // SAFETY: the CPU has access, and no device is at work.
    let seen = unsafe { seen(at(&reservation, Bytes::ZERO), size) };
    write_pattern_words(seen, 63, 0);
    assert_eq!(count_wrong_words(seen, 63, 0), 0);
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn impossible_memory_makes_no_driver_call(backend: &CudaBackend) {
    let plain = Properties::on(DEVICE);
    let fd = create_with(backend, granules(backend, 1), plain.shareable()).export().unwrap();
    for (properties, reason) in [
        (plain.located(Location::Host).shareable(), "choose a node"),
        (plain.exported_as(HandleTypes::WIN32), &*capability(backend, Feature::Win32Handle).note),
        (plain.exported_as(HandleTypes::from_bits_retain(4)), "0x4"),
        (plain.located(Location::HostNode(u32::MAX)), "4294967295"),
        (plain.located(Location::Host).remote_dma(), "no remote DMA flag"),
    ] {
        let refused = |answer: Result<()>| {
            let error = answer.unwrap_err();
            assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        };
        refused(backend.granularity_of(Operation::QueryGranularity, &properties).map(drop));
        // SAFETY: one granule of a device that exists.
        refused(unsafe { backend.create(granules(backend, 1), &properties) }.map(drop));
        // SAFETY: the same, and the descriptor's memory has this size.
        refused(unsafe { backend.import(fd.as_fd(), granules(backend, 1), &properties) }.map(drop));
    }
}
