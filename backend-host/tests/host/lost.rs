//! Addresses that are lost while a region is suspended, resumes that fail, and devices that are lost or cannot be waited for.

use crate::{GRANULE, ONE};
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Access, Address, Backend, BackingKind, BackingStore, Bytes, CopyCalls, Detail, DeviceId, DriverError,
    Error, MemoryCalls, Operation, Placement, Region, RegionState, Result, Stream, SyncCalls, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig, HostHandle, HostReservation};
use gpu_vmm_testkit::FaultInject;

/// The first of several reservations loses its addresses, and the release of the next one's memory fails. Nothing can be rolled
/// back by then, so the region is suspended, and can be resumed.
#[test]
fn failure_after_lost_addresses_reports_them() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let at = Placement::Exact(Address(0x2000_0000_0000));
    let mut region = Region::builder(&backend).on(ONE).reserve(GRANULE).at(at).build().unwrap();
    for granules in [1, 2, 4] {
        region.grow_to(Bytes(GRANULE.0 * granules)).unwrap();
    }
    assert_eq!(region.reservations().len(), 3);
    let contents: Vec<u8> = (0..region.end().0).map(|at| (at % 251) as u8).collect();
    region.write(Bytes::ZERO, &contents).unwrap();
    let store = BackingStore::pinned(&backend, region.end()).unwrap();
    let state = RegionState::Suspended { memory: region.end(), store: BackingKind::Pinned };
    backend.lose_addresses(true);
    // The first reservation releases its memory and cannot regain its addresses. From then on each release fails.
    let later = backend.clone();
    backend.during(Operation::RegainAddresses, move || later.fail_calls(&[Operation::ReturnMemory]));
    let error = region.suspend(&store, WaitFor::all_devices()).unwrap_err();
    assert_addresses_lost(&error, &region);
    assert_eq!(region.state(), state);
    backend.stop();
    let error = region.resume().unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    assert_eq!(region.state(), state);
    backend.lose_addresses(false);
    region.resume().unwrap();
    let mut read = vec![0; contents.len()];
    region.read(Bytes::ZERO, &mut read).unwrap();
    assert!(read == contents, "other bytes came back");
    // All three lose their addresses.
    backend.lose_addresses(true);
    assert_addresses_lost(&region.suspend(&store, WaitFor::all_devices()).unwrap_err(), &region);
    backend.lose_addresses(false);
    region.resume().unwrap();
}

/// Checks that the error has the region's range, and the addresses of the first reservation that another one took.
fn assert_addresses_lost<B: Backend>(error: &Error, region: &Region<B>) {
    let Detail::AddressesLost { address, reserved, source } = error.detail() else { panic!("{error}") };
    assert_eq!((*address, *reserved), (region.address(), region.reserved()));
    let Detail::AddressTaken { wanted, .. } = source.detail() else { panic!("{source}") };
    assert_eq!(*wanted, region.address());
}

/// Nothing is mapped afterwards, so the region is suspended as before.
#[test]
fn failed_resume_rollback_reports_both_errors() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let mut region = Region::builder(&backend).on(ONE).reserve(GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    backend.fail_calls(&[Operation::Map, Operation::ReturnMemory]);
    let error = region.resume().unwrap_err();
    backend.stop();
    let Detail::RollbackFailed { error, undo } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), undo.operation()), (Operation::Map, Operation::ReturnMemory));
    assert_eq!(region.resume().unwrap().memory, GRANULE);
}

/// The memory has the region's bytes when the owner's access is reduced to reading, which fails.
#[test]
fn failed_guarded_resume_overwrites_memory() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let builder = Region::builder(&backend).on(ONE).access(ONE, Access::Read).reserve(GRANULE).guarded();
    let mut region = builder.build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let store = BackingStore::pinned(&backend, GRANULE).unwrap();
    region.suspend(&store, WaitFor::all_devices()).unwrap();
    let filled = backend.made(Operation::Fill);
    let (plan, end) = (backend.clone(), backend.clone());
    backend.during(Operation::QueueCopyFromHost, move || {
        plan.fail_calls(&[Operation::SetAccess]);
        // The call in which the plan ends fails too.
        plan.during(Operation::SetAccess, move || _ = end.stop());
    });
    let error = region.resume().unwrap_err();
    backend.stop();
    assert_eq!(error.operation(), Operation::SetAccess, "{error}");
    assert_eq!(backend.made(Operation::Fill), filled + 1);
    region.resume().unwrap();
}

/// A machine whose devices are lost: waits, fills, and frees of plain memory return that error. All other calls reach the host
/// backend.
#[derive(Clone, Debug)]
struct LostDevices {
    host: HostBackend,
}

fn lost<T>(operation: Operation) -> Result<T> {
    let source = DriverError { call: "call", code: 1, name: "LOST".into(), description: "".into() };
    Err(Error::new(operation, Detail::DeviceLost { source }))
}

// SAFETY: every call is passed to the host backend.
unsafe impl Backend for LostDevices {
    forward!(host: Backend);
}

// SAFETY: as above. Memory is freed before the error is returned.
unsafe impl MemoryCalls for LostDevices {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    forward!(host: create, import, import_fabric, reserve, allocate_plain);

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller meets the same requirements.
        unsafe { self.host.free_plain(device, at, size) }?;
        lost(Operation::Free)
    }
}

// SAFETY: as above; `fill` returns an error and writes nothing.
unsafe impl CopyCalls for LostDevices {
    forward!(host: copy_from_host, copy_to_host, copy, pin, copy_stream);

    unsafe fn fill(&self, _: DeviceId, _: Address, _: Bytes, _: u8) -> Result<()> {
        lost(Operation::Fill)
    }
}

// SAFETY: the tests queue no work.
unsafe impl SyncCalls for LostDevices {
    forward!(host: event, is_capturing, queries_spoil_captures);

    fn synchronize(&self, _: DeviceId) -> Result<()> {
        lost(Operation::WaitForDevice)
    }

    fn synchronize_stream(&self, _: DeviceId, _: Stream<'_>) -> Result<()> {
        lost(Operation::WaitForStream)
    }
}

/// The work of a lost device has ended, and its contents are gone.
#[test]
fn lost_device_memory_is_freed_silently() {
    let host = LostDevices { host: HostConfig::new().memory(Bytes::mib(64)).open().unwrap() };
    let mut region = Region::builder(&host).reserve(Bytes(3 * GRANULE.0)).guarded().build().unwrap();
    for granules in [1, 2, 3] {
        region.grow_to(Bytes(granules * GRANULE.0)).unwrap();
    }
    // SAFETY: no work uses the region.
    let stream = unsafe { WaitFor::streams(&[Stream::DEFAULT]) };
    for (end, done) in [(2, stream), (1, WaitFor::all_devices())] {
        assert_eq!(region.shrink_to(Bytes(end * GRANULE.0), done).unwrap().removed, GRANULE);
        assert_eq!(host.memory_info(ONE).unwrap().free, Bytes::mib(64 - 2 * end));
    }
    drop(region);
    let plain = LostDevices { host: HostConfig::new().without_virtual_memory().open().unwrap() };
    Region::builder(&plain).build().unwrap().grow_to(GRANULE).unwrap();
    for log in [host.drop_log(), plain.drop_log()] {
        assert_eq!(log.count(), 0, "{:?}", log.take_last());
    }
}

/// The holes of a region take no memory.
#[test]
fn deferred_memory_is_counted_without_holes() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let mut region = Region::builder(&backend).on(ONE).reserve(Bytes(3 * GRANULE.0)).build().unwrap();
    for granules in [1, 2, 3] {
        region.grow_to(Bytes(granules * GRANULE.0)).unwrap();
    }
    region.unmap(GRANULE, GRANULE, WaitFor::all_devices()).unwrap();
    backend.capture_on(ONE, true);
    drop(region);
    assert_eq!(backend.deferred().kept(), GRANULE + GRANULE);
    backend.capture_on(ONE, false);
    assert_eq!(backend.deferred().collect(&backend).unwrap(), GRANULE + GRANULE);
}
