//! gpu-vmm-cuda over the fake driver: what its errors say about the call that failed, and the state after it.

use crate::rig::{Cuda, DEVICE, G, OTHER, open};
use gpu_vmm_core::{
    Access, Address, AddressRange, Backend, Bytes, CopyCalls, Detail, DeviceId, ErrorKind, Event, Feature,
    Grant, Handle, HandleTypes, Location, MemoryCalls, Operation, PhysicalMemory, Properties, Region,
    Reservation, Result, Stream, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::TestKit;
use std::os::fd::AsFd;

const UNIT: Bytes = Bytes::mib(32);

cases! {
    failed_copy_names_its_addresses
        [FAIL = "cuMemcpyHtoD_v2:1:1,cuMemcpyDtoH_v2:1:1,cuMemcpyDtoD_v2:1:1,cuMemsetD8_v2:1:1"];
    failed_plain_allocation_names_its_size [FAIL = "cuMemAlloc_v2:1:2,cuMemAlloc_v2:2:999,cuMemFree_v2:1:1"];
    short_memory_without_free_has_total [FAIL = "cuMemCreate:1:2,cuMemGetInfo_v2:1:999,cuMemGetInfo_v2:2:999"];
    failed_peer_query_is_an_error [FAIL = "cuDeviceCanAccessPeer:1:1"];
    device_without_uuid_has_none [FAIL = "cuDeviceGetUuid_v2:1:999"];
    context_left_current_is_logged [FAIL = "cuCtxPopCurrent_v2:1:1"];
    unrestored_capture_mode_is_logged
        [FAIL = "cuThreadExchangeStreamCaptureMode:1:1,cuThreadExchangeStreamCaptureMode:3:1"];
    stream_is_destroyed_after_failed_wait [FAIL = "cuStreamSynchronize:1:1"];
    failed_join_leaves_no_marker [FAIL = "cuEventRecord:1:1,cuStreamWaitEvent:1:1"];
    undestroyed_event_returns_its_stream [FAIL = "cuEventDestroy_v2:3:1"];
    failed_unmap_keeps_host_access [FAIL = "cuMemUnmap:1:1"];
    failed_reservation_names_its_request [FAIL = "cuMemAddressReserve:1:1"];
    failed_export_names_the_memory [FAIL = "cuMemExportToShareableHandle:1:999"];
    failed_events_and_streams_name_themselves
        [FAIL = "cuEventRecord:1:999,cuCtxSynchronize:1:999,cuStreamCreate:1:999"];
    failed_queued_copy_names_its_addresses [FAIL = "cuMemcpyDtoHAsync_v2:1:999,cuMemcpyHtoDAsync_v2:1:999"];
    failed_access_names_the_device [FAIL = "cuMemGetAccess:1:999,cuMemSetAccess:1:2"];
    memory_without_properties_is_released [FAIL = "cuMemGetAllocationPropertiesFromHandle:1:999"];
    failed_adoption_leaves_no_reference
        [FAIL = "cuMemRetainAllocationHandle:1:999,cuMemGetAllocationPropertiesFromHandle:1:999,cuMemGetAddressRange_v2:1:999"];
    flags_are_those_granted [COMPRESSION = "reported"];
    single_device_has_no_peers [GPUS = "1"];
    unknown_properties_are_refused;
    refused_export_says_why;
    missing_node_is_named;
    access_is_set_in_any_order;
    refused_fabric_handle_names_channels;
}

fn region(backend: &CudaBackend) -> Region<CudaBackend> {
    let mut region = Region::builder(backend).on(DEVICE).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
    region
}

/// Returns the operation, the driver's call and the context of an error.
#[track_caller]
pub(crate) fn told<T>(answer: Result<T>) -> (Operation, &'static str, String) {
    let error = answer.map(drop).unwrap_err();
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    (error.operation(), source.call, context.clone())
}

#[track_caller]
pub(crate) fn unsupported<T>(answer: Result<T>) -> String {
    let error = answer.map(drop).unwrap_err();
    let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
    reason.clone()
}

/// Returns the operation and the call of the only entry of the log.
#[track_caller]
pub(crate) fn logged(backend: &CudaBackend) -> (Operation, &'static str) {
    assert_eq!(backend.drop_log().count(), 1);
    let error = backend.drop_log().take_last().expect("an entry");
    (error.operation(), error.driver_error().expect("the driver's error").call)
}

fn failed_copy_names_its_addresses(_: &Cuda) {
    let backend = open();
    let region = region(&backend);
    let (at, to) = (region.address() + Bytes(64), region.address() + Bytes(512));
    let part = |size| AddressRange { base: at, size: Bytes(size) }.to_string();
    // SAFETY: all of it is mapped, and the parts do not overlap.
    let answers = unsafe {
        [
            told(backend.copy_from_host(DEVICE, at, &[1; 7])),
            told(backend.copy_to_host(DEVICE, &mut [0; 9], at)),
            told(backend.copy(DEVICE, to, at, Bytes(24))),
            told(backend.fill(DEVICE, at, Bytes(40), 1)),
        ]
    };
    assert_eq!(
        answers,
        [
            (Operation::CopyFromHost, "cuMemcpyHtoD_v2", part(7)),
            (Operation::CopyToHost, "cuMemcpyDtoH_v2", part(9)),
            (Operation::Copy, "cuMemcpyDtoD_v2", format!("24 B from {at} to {to}")),
            (Operation::Fill, "cuMemsetD8_v2", part(40)),
        ]
    );
}

fn failed_plain_allocation_names_its_size(cuda: &Cuda) {
    let (backend, size) = (open(), Bytes::mib(2));
    let none = backend.allocate_plain(OTHER, Bytes::ZERO).unwrap_err();
    assert!(matches!(none.detail(), Detail::ZeroSize) && none.operation() == Operation::Allocate, "{none}");
    let error = backend.allocate_plain(OTHER, size).unwrap_err();
    let Detail::OutOfMemory { device, requested, source, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*device, *requested, source.call), (OTHER, size, "cuMemAlloc_v2"));
    let context = "2 MiB of device 1".to_owned();
    assert_eq!(told(backend.allocate_plain(OTHER, size)), (Operation::Allocate, "cuMemAlloc_v2", context));
    let at = backend.allocate_plain(OTHER, size).unwrap();
    let range = AddressRange { base: at, size }.to_string();
    // SAFETY: allocated above, and freed by the call that succeeds.
    let free = || unsafe { backend.free_plain(OTHER, at, size) };
    assert_eq!(told(free()), (Operation::Free, "cuMemFree_v2", range));
    free().unwrap();
    assert_eq!(cuda.violations(), 0);
}

fn short_memory_without_free_has_total(_: &Cuda) {
    let backend = open();
    let error = PhysicalMemory::create(&backend, UNIT, Properties::on(OTHER)).unwrap_err();
    let Detail::OutOfMemory { device, free, total, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*device, *free, *total), (OTHER, Bytes::ZERO, Bytes::gib(4)));
    let context = OTHER.to_string();
    assert_eq!(told(backend.memory_info(OTHER)), (Operation::QueryMemory, "cuMemGetInfo_v2", context));
    assert!(!backend.memory_info(OTHER).unwrap().free.is_zero());
}

fn failed_peer_query_is_an_error(_: &Cuda) {
    let backend = open();
    let context = "device 1 to device 0".to_owned();
    assert_eq!(
        told(backend.can_access(OTHER, DEVICE)),
        (Operation::QueryPeerAccess, "cuDeviceCanAccessPeer", context)
    );
    assert!(backend.can_access(OTHER, DEVICE).unwrap());
}

fn device_without_uuid_has_none(_: &Cuda) {
    let backend = open();
    let [first, second] = backend.devices() else { panic!("{:?}", backend.devices()) };
    assert_eq!((first.uuid, first.unusable.as_ref()), (None, None));
    assert!(second.uuid.is_some());
}

fn context_left_current_is_logged(cuda: &Cuda) {
    let backend = open();
    backend.memory_info(DEVICE).unwrap();
    assert_eq!(logged(&backend), (Operation::LeaveContext, "cuCtxPopCurrent_v2"));
    assert_ne!(cuda.get("cuCtxPopCurrent_v2", &[]), 0);
    backend.memory_info(DEVICE).unwrap();
    assert_eq!((cuda.get("cuCtxGetCurrent", &[]), backend.drop_log().count()), (0, 1));
}

fn unrestored_capture_mode_is_logged(cuda: &Cuda) {
    let backend = open();
    let call = "cuThreadExchangeStreamCaptureMode";
    assert_eq!(told(backend.pin(UNIT)), (Operation::PinMemory, call, "this thread".to_owned()));
    assert_eq!((cuda.counts().pinned, backend.drop_log().count()), (0, 0));
    let pinned = backend.pin(UNIT).unwrap();
    assert_eq!(logged(&backend), (Operation::RestoreCaptureMode, call));
    // The mode is still the relaxed one.
    let mut mode = 0u32;
    cuda.ok(call, &[(&raw mut mode).addr()]);
    assert_eq!(mode, 2);
    drop(pinned);
    assert_eq!((cuda.counts().pinned, backend.drop_log().count()), (0, 1));
    // Another mode of the thread comes back.
    mode = 1;
    cuda.ok(call, &[(&raw mut mode).addr()]);
    drop(backend.pin(UNIT).unwrap());
    cuda.ok(call, &[(&raw mut mode).addr()]);
    assert_eq!(mode, 1);
}

fn stream_is_destroyed_after_failed_wait(cuda: &Cuda) {
    let backend = open();
    drop(backend.copy_stream(DEVICE).unwrap());
    assert_eq!(logged(&backend), (Operation::DestroyStream, "cuStreamSynchronize"));
    assert_eq!((cuda.counts().streams, cuda.violations()), (0, 0));
}

/// Calls `act` on an event of a device of which two contexts have default streams.
fn with_two_contexts(act: impl FnOnce(&CudaBackend, Box<dyn Event>)) {
    let backend = open();
    let other = backend.stream_elsewhere(DEVICE).unwrap();
    // SAFETY: the backend is dropped before the stream.
    let attached = unsafe { backend.open_in_context_of(DEVICE, &*other) }.unwrap();
    act(&backend, backend.event(DEVICE).unwrap());
    drop(attached);
}

fn failed_join_leaves_no_marker(cuda: &Cuda) {
    with_two_contexts(|backend, mut event| {
        for call in ["cuEventRecord", "cuStreamWaitEvent"] {
            let answer = event.record(Stream::DEFAULT);
            let failed = told(answer);
            assert_eq!((failed.0, failed.1), (Operation::RecordEvent, call));
            assert_eq!(cuda.counts().events, 1, "a marker is left after {call}");
        }
        event.record(Stream::DEFAULT).unwrap();
        event.wait().unwrap();
        drop(event);
        assert_eq!((cuda.counts().events, backend.drop_log().count()), (0, 0));
    });
    assert_eq!(cuda.violations(), 0);
}

/// The first two calls destroy the markers of the two contexts.
fn undestroyed_event_returns_its_stream(cuda: &Cuda) {
    with_two_contexts(|backend, mut event| {
        let before = cuda.counts().streams;
        event.record(Stream::DEFAULT).unwrap();
        assert_eq!((cuda.counts().events, cuda.counts().streams), (1, before + 1));
        drop(event);
        assert_eq!(logged(backend), (Operation::DestroyEvent, "cuEventDestroy_v2"));
        assert_eq!((cuda.counts().events, cuda.counts().streams), (1, before));
    });
    // The event ends with its context.
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
}

/// Maps a unit of memory in a new reservation of that size.
fn mapped(backend: &CudaBackend, properties: Properties) -> gpu_vmm_cuda::CudaReservation {
    // SAFETY: a whole unit in an empty reservation of its size.
    unsafe {
        let handle = backend.create(UNIT, &properties).unwrap();
        let mut reservation = backend.reserve(UNIT, backend.granularity().into(), None).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation
    }
}

fn on_node(node: u32) -> Properties {
    Properties::on(DEVICE).located(Location::HostNode(node))
}

fn failed_unmap_keeps_host_access(cuda: &Cuda) {
    let backend = open();
    let mut reservation = mapped(&backend, on_node(0));
    let range = reservation.range().to_string();
    let both = [Grant { device: DeviceId::HOST, access: Access::ReadWrite }];
    // SAFETY: one whole mapping, which no work uses.
    unsafe {
        let answer = reservation.unmap(Bytes::ZERO, UNIT);
        assert_eq!(told(answer), (Operation::Unmap, "cuMemUnmap", range));
        reservation.set_access(Bytes::ZERO, UNIT, &both).unwrap();
        assert_eq!(reservation.access(Bytes::ZERO, DeviceId::HOST).unwrap(), Access::ReadWrite);
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
    }
    assert_eq!(cuda.violations(), 0);
}

fn failed_reservation_names_its_request(_: &Cuda) {
    let backend = open();
    // SAFETY: whole units.
    let answer = unsafe { backend.reserve(UNIT, backend.granularity().into(), Some(Address(1 << 40))) };
    let context = "32 MiB of addresses, aligned to 2 MiB, hint 0x10000000000".to_owned();
    assert_eq!(told(answer), (Operation::Reserve, "cuMemAddressReserve", context));
}

fn failed_export_names_the_memory(_: &Cuda) {
    let backend = open();
    let memory = PhysicalMemory::create(&backend, UNIT, Properties::on(OTHER).shareable()).unwrap();
    let context = format!("32 MiB of {}", memory.properties());
    assert_eq!(told(memory.export()), (Operation::ExportMemory, "cuMemExportToShareableHandle", context));
    memory.export().unwrap();
}

/// Memory of the program's own, of another handle type, and of another process.
fn refused_export_says_why(cuda: &Cuda) {
    let backend = open();
    // SAFETY: a whole unit on a device that exists.
    let create = |properties| unsafe { backend.create(UNIT, &properties) }.unwrap();
    let shareable = Properties::on(DEVICE).shareable();
    let (plain, descriptor) = (create(Properties::on(DEVICE)), create(shareable));
    let not_created = |kind| {
        format!("the memory was not created as shareable by a {kind}; request the handle type at creation")
    };
    assert_eq!(unsupported(plain.export()), not_created(HandleTypes::FILE_DESCRIPTOR));
    assert_eq!(unsupported(descriptor.export_fabric()), not_created(HandleTypes::FABRIC));
    let fd = descriptor.export().unwrap();
    // SAFETY: memory of this size and these properties.
    let imported = unsafe { backend.import(fd.as_fd(), UNIT, &shareable) }.unwrap();
    assert_eq!(
        unsupported(imported.export()),
        "CUDA does not export imported memory; pass on the original file descriptor"
    );
    assert_eq!(cuda.violations(), 0);
}

/// The driver is not asked: it would answer that a value is invalid, and not which.
fn missing_node_is_named(cuda: &Cuda) {
    let backend = open();
    // SAFETY: a whole unit on a device that exists.
    let create = |node| unsafe { backend.create(UNIT, &on_node(node)) };
    let error = create(12_345).unwrap_err();
    assert_eq!(
        (error.operation(), error.kind()),
        (Operation::CreateMemory, ErrorKind::Unsupported),
        "{error}"
    );
    assert!(error.to_string().contains("this machine has no NUMA node 12345; it has 0"), "{error}");
    create(0).unwrap();
    assert_eq!(cuda.violations(), 0);
}

/// The host's access is another call of the driver's than the devices' before and behind it.
fn access_is_set_in_any_order(cuda: &Cuda) {
    let backend = open();
    let mut reservation = mapped(&backend, on_node(0));
    let grant = |device, access| Grant { device, access };
    let all =
        [grant(DEVICE, Access::ReadWrite), grant(DeviceId::HOST, Access::Read), grant(OTHER, Access::Read)];
    // SAFETY: one whole mapping, which no work uses.
    unsafe {
        for start in 0..all.len() {
            let mut grants = all;
            grants.rotate_left(start);
            reservation.set_access(Bytes::ZERO, UNIT, &grants).unwrap();
            for Grant { device, access } in all {
                assert_eq!(reservation.access(Bytes::ZERO, device).unwrap(), access, "{device}, {grants:?}");
            }
            let none = all.map(|one| grant(one.device, Access::None));
            reservation.set_access(Bytes::ZERO, UNIT, &none).unwrap();
            for Grant { device, .. } in all {
                assert_eq!(reservation.access(Bytes::ZERO, device).unwrap(), Access::None, "{device}");
            }
        }
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
    }
    assert_eq!(cuda.violations(), 0);
}

fn refused_fabric_handle_names_channels(cuda: &Cuda) {
    let backend = open();
    let fabric = Properties::on(DEVICE).exported_as(HandleTypes::FABRIC);
    let reason = unsupported(PhysicalMemory::create(&backend, UNIT, fabric));
    for part in [&*fabric.to_string(), "cuMemCreate", "CUDA_ERROR_NOT_PERMITTED (800)", "; ", "IMEX channels"]
    {
        assert!(reason.contains(part), "{part:?} is missing in: {reason}");
    }
    assert_eq!(cuda.violations(), 0);
}

fn failed_events_and_streams_name_themselves(_: &Cuda) {
    let backend = open();
    let mut event = backend.event(OTHER).unwrap();
    let (operation, call, context) = told(event.record(Stream::DEFAULT));
    assert_eq!((operation, call), (Operation::RecordEvent, "cuEventRecord"));
    assert!(context.starts_with("event ") && context.ends_with(" of device 1"), "{context}");
    let (operation, call, context) = told(backend.synchronize(OTHER));
    assert_eq!((operation, call), (Operation::WaitForDevice, "cuCtxSynchronize"));
    assert!(context.starts_with("device 1, context "), "{context}");
    let expected = (Operation::CreateStream, "cuStreamCreate", "flags 1".to_owned());
    assert_eq!(told(backend.copy_stream(OTHER)), expected);
}

fn failed_queued_copy_names_its_addresses(_: &Cuda) {
    let backend = open();
    let (region, pinned) = (region(&backend), backend.pin(Bytes(64)).unwrap());
    let (at, host) = (region.address() + Bytes(8), pinned.start().as_ptr());
    let mut stream = backend.copy_stream(DEVICE).unwrap();
    let range = AddressRange { base: at, size: Bytes(24) }.to_string();
    // SAFETY: 24 bytes are mapped there, and the host's memory has as many.
    let answers =
        unsafe { [stream.copy_to_host(host, at, Bytes(24)), stream.copy_from_host(at, host, Bytes(24))] };
    let expected = [
        (Operation::QueueCopyToHost, "cuMemcpyDtoHAsync_v2", range.clone()),
        (Operation::QueueCopyFromHost, "cuMemcpyHtoDAsync_v2", range),
    ];
    assert_eq!(answers.map(told), expected);
}

fn failed_access_names_the_device(_: &Cuda) {
    let backend = open();
    let host = Properties::on(DEVICE).located(Location::HostNode(0));
    // SAFETY: whole units; the mapping is removed, and nothing has used it.
    unsafe {
        let handle = backend.create(UNIT, &host).unwrap();
        let mut reservation = backend.reserve(UNIT, backend.granularity().into(), None).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        let context = format!("device 1 at {}", reservation.range().base);
        let expected = (Operation::QueryAccess, "cuMemGetAccess", context);
        assert_eq!(told(reservation.access(Bytes::ZERO, OTHER)), expected);
        let grant = Grant { device: DeviceId::HOST, access: Access::Read };
        let error = reservation.set_access(Bytes::ZERO, UNIT, &[grant]).unwrap_err();
        let Detail::OutOfMemory { device, requested, free, total, source } = error.detail() else {
            panic!("{error}")
        };
        assert_eq!((*device, *requested, source.call), (DeviceId::HOST, UNIT, "cuMemSetAccess"));
        assert!(free <= total && !total.is_zero(), "{error}");
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
    }
}

fn memory_without_properties_is_released(cuda: &Cuda) {
    let backend = open();
    let properties = Properties::on(DEVICE).compressible();
    // SAFETY: whole units.
    let answer = unsafe { backend.create(UNIT, &properties) };
    let call = "cuMemGetAllocationPropertiesFromHandle";
    assert_eq!(told(answer), (Operation::CreateMemory, call, format!("{UNIT} of {properties}")));
    assert_eq!(cuda.counts().handles, 0);
}

fn failed_adoption_leaves_no_reference(cuda: &Cuda) {
    let backend = open();
    let base = cuda.mapped(G);
    let before = cuda.counts();
    // SAFETY: nothing else unmaps it.
    let adopt = || unsafe { PhysicalMemory::adopt(&backend, Address(base as u64 + 100)) };
    for call in
        ["cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemGetAddressRange"]
    {
        let (operation, failed, _) = told(adopt());
        assert_eq!((operation, failed), (Operation::AdoptMemory, call));
        assert_eq!(cuda.counts().handles, before.handles, "after {call}");
    }
    let memory = adopt().unwrap();
    cuda.take_away(base, G);
    assert_eq!((memory.size(), memory.properties()), (Bytes(G as u64), Properties::on(DEVICE)));
    drop(memory);
    assert_eq!(cuda.counts().handles, 0);
}

fn flags_are_those_granted(cuda: &Cuda) {
    let backend = open();
    let wanted = Properties { remote_dma: true, ..Properties::on(DEVICE).compressible() };
    let memory = PhysicalMemory::create(&backend, UNIT, wanted).unwrap();
    assert_eq!(memory.properties(), Properties { compressible: false, ..wanted });
    // What other code has requested is what the driver reports, too.
    let base = cuda.mapped_as([1, 1, 1, 0, 0, 0, 1 << 8, 0]);
    // SAFETY: nothing else unmaps it.
    let adopted = unsafe { PhysicalMemory::adopt(&backend, Address(base as u64)) }.unwrap();
    let own = Properties { remote_dma: true, ..Properties::on(DEVICE) };
    assert_eq!(adopted.properties(), own.exported_as(HandleTypes::FILE_DESCRIPTOR));
    cuda.take_away(base, G);
}

fn single_device_has_no_peers(_: &Cuda) {
    let found = open().capabilities(DEVICE).unwrap();
    let note = |feature| &*found.iter().find(|one| one.feature == feature).expect("listed").note;
    assert_eq!(note(Feature::PeerAccess), "there is no other device");
    assert_eq!(note(Feature::VirtualMemory), "granularity 2 MiB");
}

fn unknown_properties_are_refused(_: &Cuda) {
    let backend = open();
    let refused = |properties| unsupported(backend.granularity_of(Operation::QueryGranularity, &properties));
    let unknown = Properties::on(DEVICE).exported_as(HandleTypes::from_bits_retain(0x80));
    assert_eq!(refused(unknown), "kinds of handle 0x80 are not known here");
    let node = Properties::on(DEVICE).located(Location::HostNode(u32::MAX));
    assert_eq!(refused(node), "4294967295 is more than the number of a NUMA node can be");
}
