//! Calls that HIP refuses: what the error says about the call, and the state after it.

use crate::child::Case;
use crate::rig::{FAR, Must, ONE, Rig, UNEQUAL, ZERO, alignment, found, units};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, ErrorKind,
    Evidence, Feature, Grant, Handle, HandleTypes, Location, MemoryCalls, Operation, Properties, Reservation,
    Result, Stream, SyncCalls,
};
use gpu_vmm_hip::{HipHandle, HipReservation};
use gpu_vmm_test_settings::cases;
use std::os::fd::{AsFd, AsRawFd};

/// The versions of the cases. 7.0 and 7.2 refuse access that is no sum of sizes; how 7.0 imports is not known.
pub(crate) const VERSIONS: [&str; 4] = ["6.3", "7.0", "7.2", "7.15"];

cases! {
    failed_attribute_denies_its_feature
        [REFUSES = "hipDeviceGetAttribute:5:999,hipDeviceGetAttribute:6:999,hipDeviceGetAttribute:7:999"];
    tried_features_are_not_retried [REFUSES = "hipMemCreate:6:999"];
    short_host_memory_is_the_hosts [REFUSES = "hipMemCreate:2:2"];
    mapping_is_looked_for_twice [REFUSES = "hipMemGetAccess:1:1"];
    device_asks_for_its_peers [REFUSES = "hipDeviceCanAccessPeer:1:999"];
    failed_export_has_no_descriptor [REFUSES = "hipMemExportToShareableHandle:1:999"];
    too_many_addresses_have_their_size;
    failed_copy_names_its_addresses [REFUSES = "hipMemcpy:1:1,hipMemcpy:2:1,hipMemcpy:3:1,hipMemset:1:1"];
    failed_queued_copy_names_its_addresses [REFUSES = "hipMemcpyAsync:1:1,hipMemcpyAsync:2:1"];
    failed_wait_names_stream_or_device
        [REFUSES = "hipStreamSynchronize:1:999,hipDeviceSynchronize:1:999,hipDeviceSynchronize:3:999"];
    failed_plain_allocation_names_its_size [REFUSES = "hipMalloc:1:999,hipFree:1:1"];
    failed_memory_names_its_size
        [REFUSES = "hipMemCreate:1:999,hipMemCreate:2:700,hipMemCreate:3:801,hipMemCreate:4:801,hipMemRelease:1:1"];
    failed_reservation_names_its_hint
        [REFUSES = "hipMemAddressReserve:1:2,hipMemAddressReserve:2:999,hipMemAddressFree:1:1"];
    failed_mapping_names_its_range
        [REFUSES = "hipMemMap:1:999,hipMemUnmap:1:999,hipMemSetAccess:1:999,hipMemGetAccess:4:999"];
    failed_export_names_the_memory
        [REFUSES = "hipMemExportToShareableHandle:1:999,hipMemImportFromShareableHandle:1:999"];
    failed_range_export_names_the_range
        [REFUSES = "hsa_amd_vmem_retain_alloc_handle:1:1,hsa_amd_vmem_export_shareable_handle:1:1,\
                    hsa_amd_vmem_handle_release:2:1"];
    failed_rocr_access_names_its_range [REFUSES = "hsa_amd_vmem_set_access:1:1,hsa_agent_get_info:1:1"];
    failed_stream_names_its_device
        [REFUSES = "hipStreamCreateWithFlags:1:999,hipStreamSynchronize:1:999,hipStreamDestroy:2:999,\
                    hipStreamDestroy:3:700"];
    failed_pinning_names_its_size [REFUSES = "hipHostMalloc:1:2,hipHostFree:1:1"];
    failed_query_names_its_device
        [REFUSES = "hipMemGetInfo:1:999,hipSetDevice:3:999,hipGetDevice:5:999,hipPointerGetAttributes:1:999"];
}

/// Returns whether a case is for this version. How many trials create memory is known of 7.2 alone.
pub(crate) fn is_for(case: &Case, version: &str) -> bool {
    case.name != "tried_features_are_not_retried" || version == "7.2"
}

const RW: Access = Access::ReadWrite;

/// The operation, HIP's function and the context of an error of the driver.
pub(crate) type Told = (Operation, &'static str, String);

#[track_caller]
pub(crate) fn told<T>(answer: Result<T>) -> Told {
    let Err(error) = answer else { panic!("success") };
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    (error.operation(), source.call, context.clone())
}

#[track_caller]
pub(crate) fn logged(rig: &Rig) -> Told {
    told(Err::<(), Error>(rig.backend.drop_log().take_last().expect("the failure is recorded")))
}

fn reserve(rig: &Rig, count: u64, hint: Option<Address>) -> Result<HipReservation> {
    // SAFETY: whole units.
    unsafe { rig.backend.reserve(units(count), alignment(), hint) }
}

fn create(rig: &Rig, count: u64, properties: &Properties) -> Result<HipHandle> {
    // SAFETY: whole units.
    unsafe { rig.backend.create(units(count), properties) }
}

fn failed_copy_names_its_addresses(rig: &mut Rig) {
    let mut region = rig.region(2).build().must("addresses");
    region.grow_to(units(2)).must("growth");
    let (at, to) = (region.address() + Bytes(64), region.address() + units(1));
    let mut bytes = [7; 16];
    let host = format!("{:p}", bytes.as_ptr());
    // SAFETY: both units are mapped for the device.
    unsafe {
        let from_host = told(rig.backend.copy_from_host(ZERO, at, &bytes));
        let context = format!("16 B from {host} to {at} by device 0");
        assert_eq!(from_host, (Operation::CopyFromHost, "hipMemcpy", context));
        let to_host = told(rig.backend.copy_to_host(ZERO, &mut bytes, at));
        let context = format!("16 B from {at} to {host} by device 0");
        assert_eq!(to_host, (Operation::CopyToHost, "hipMemcpy", context));
        let copied = told(rig.backend.copy(ZERO, to, at, Bytes(32)));
        let context = format!("32 B from {at} to {to} by device 0");
        assert_eq!(copied, (Operation::Copy, "hipMemcpy", context));
        let filled = told(rig.backend.fill(ZERO, to, Bytes(48), 1));
        let context = format!("{} by device 0", AddressRange { base: to, size: Bytes(48) });
        assert_eq!(filled, (Operation::Fill, "hipMemset", context));
        rig.backend.copy(ZERO, to, at, Bytes(32)).must("the next one");
    }
}

fn failed_queued_copy_names_its_addresses(rig: &mut Rig) {
    let mut region = rig.region(1).build().must("addresses");
    region.grow_to(units(1)).must("growth");
    let pinned = rig.backend.pin(units(1)).must("pinned");
    let (at, host) = (region.address() + Bytes(64), pinned.start().as_ptr());
    let mut copy_stream = rig.backend.copy_stream(ZERO).must("a copy stream");
    // SAFETY: the unit is mapped, and no other code uses the pinned memory.
    unsafe {
        let queued = told(copy_stream.copy_to_host(host, at, Bytes(16)));
        let context = format!("16 B from {at} to {host:p} by device 0");
        assert_eq!(queued, (Operation::QueueCopyToHost, "hipMemcpyAsync", context));
        let queued = told(copy_stream.copy_from_host(at, host, Bytes(32)));
        let context = format!("32 B from {host:p} to {at} by device 0");
        assert_eq!(queued, (Operation::QueueCopyFromHost, "hipMemcpyAsync", context));
    }
    copy_stream.finish().must("nothing is queued");
}

fn failed_wait_names_stream_or_device(rig: &mut Rig) {
    let waited = told(rig.backend.synchronize_stream(ONE, Stream::DEFAULT));
    assert_eq!(waited, (Operation::WaitForStream, "hipStreamSynchronize", "stream 0x0".to_owned()));
    let waited = told(rig.backend.synchronize(ONE));
    assert_eq!(waited, (Operation::WaitForDevice, "hipDeviceSynchronize", "device 1".to_owned()));
    // Waits for each device.
    let released = told(rig.backend.release_kept_addresses());
    assert_eq!(released, (Operation::FreeReservation, "hipDeviceSynchronize", "device 1".to_owned()));
}

fn failed_attribute_denies_its_feature(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let mut expected = vec![(Feature::FabricHandle, 95), (Feature::RemoteDma, 94)];
    if !rig.has("host-access-appears") {
        expected.push((Feature::HostAccess, 10011));
    }
    for (feature, attribute) in expected {
        let found = found(&all, feature);
        assert_eq!((found.available, found.found_by), (false, Evidence::Attribute), "{}", found.note);
        for part in ["hipDeviceGetAttribute", "(999)", &format!("attribute {attribute} of device 0")] {
            assert!(found.note.contains(part), "{part:?} is not in {}", found.note);
        }
    }
}

/// Of 7.2, the capabilities of a device take five trials that create memory. Two of them are not repeated.
fn tried_features_are_not_retried(rig: &mut Rig) {
    let properties = Properties::on(ZERO);
    let first = rig.backend.capabilities(ZERO).must("capabilities");
    assert!(found(&first, Feature::HostAccess).available && found(&first, Feature::ReadOnlyAccess).available);
    rig.backend.check_host_access(Operation::SetAccess, &properties).must("known");
    let second = rig.backend.capabilities(ZERO).must("capabilities");
    let tried = found(&second, Feature::ReadOnlyAccess);
    assert!(!tried.available && tried.note.contains("hipMemCreate"), "{}", tried.note);
    for feature in [Feature::VirtualMemory, Feature::HostAccess] {
        assert!(found(&second, feature).available, "{}", found(&second, feature).note);
    }
}

/// The first creation is the trial of such memory.
fn short_host_memory_is_the_hosts(rig: &mut Rig) {
    if rig.has("host-memory-is-the-devices") {
        return;
    }
    let properties = Properties::on(ONE).located(Location::Host);
    let context = format!("4 MiB of {properties}");
    assert_eq!(told(create(rig, 2, &properties)), (Operation::CreateMemory, "hipMemCreate", context));
    create(rig, 2, &properties).must("memory of the host");
}

/// HIP reports a failure below it as if nothing was mapped.
fn mapping_is_looked_for_twice(rig: &mut Rig) {
    let mut reservation = reserve(rig, 1, None).must("addresses");
    let handle = create(rig, 1, &Properties::on(ZERO)).must("memory");
    // SAFETY: memory that fits the empty reservation, which no device uses.
    unsafe {
        reservation.map(Bytes::ZERO, &handle).must("mapped");
        assert_eq!(reservation.access(Bytes::ZERO, ZERO).must("nothing was set"), Access::None);
        reservation.unmap(Bytes::ZERO, units(1)).must("unmapped");
    }
}

fn device_asks_for_its_peers(rig: &mut Rig) {
    let asked = told(rig.backend.capabilities(ZERO));
    let context = "device 0 to device 1".to_owned();
    assert_eq!(asked, (Operation::QueryPeerAccess, "hipDeviceCanAccessPeer", context));
}

fn failed_export_has_no_descriptor(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let found = found(&all, Feature::FileDescriptor);
    assert_eq!((found.available, found.found_by), (false, Evidence::Trial), "{}", found.note);
    assert!(found.note.contains("hipMemExportToShareableHandle"), "{}", found.note);
}

/// HIP ignores the alignment, so more than the size is reserved.
fn too_many_addresses_have_their_size(rig: &mut Rig) {
    let (huge, alignment) = (Bytes(u64::MAX - (Bytes::mib(2).0 - 1)), Bytes::gib(1));
    let alignment = Alignment::new(alignment).expect("a power of two");
    // SAFETY: a multiple of the granularity; nothing is reserved.
    let error = unsafe { rig.backend.reserve(huge, alignment, None) }.expect_err("more than there are");
    let Detail::ExceedsAddressSpace { size, limit } = error.detail() else { panic!("{error}") };
    assert_eq!((*size, *limit), (huge, Alignment::MAX));
}

fn failed_plain_allocation_names_its_size(rig: &mut Rig) {
    let allocated = told(rig.backend.allocate_plain(ONE, units(3)));
    assert_eq!(allocated, (Operation::Allocate, "hipMalloc", "6 MiB on device 1".to_owned()));
    let none = rig.backend.allocate_plain(ONE, Bytes::ZERO).expect_err("no memory");
    assert!(matches!(none.detail(), Detail::ZeroSize), "{none}");
    let at = rig.backend.allocate_plain(ONE, units(2)).must("a plain allocation");
    // SAFETY: allocated above; the first call frees nothing.
    unsafe {
        let freed = told(rig.backend.free_plain(ONE, at, units(2)));
        assert_eq!(freed, (Operation::Free, "hipFree", format!("4 MiB at {at}")));
        rig.backend.free_plain(ONE, at, units(2)).must("freed");
    }
}

fn failed_memory_names_its_size(rig: &mut Rig) {
    let plain = Properties::on(ONE);
    let failed = create(rig, 2, &plain).expect_err("the call is refused");
    let source = failed.driver_error().expect("HIP's error");
    assert_eq!((&*source.name, &*source.description), ("hipErrorUnknown", "unknown error"));
    let created = told(Err::<(), _>(failed));
    assert_eq!(created, (Operation::CreateMemory, "hipMemCreate", "4 MiB on device 1".to_owned()));
    let lost = create(rig, 2, &plain).expect_err("the device is lost");
    assert_eq!((lost.kind(), lost.operation()), (ErrorKind::DeviceLost, Operation::CreateMemory));
    // The code means that memory cannot be shared, if sharing was requested. Otherwise it is HIP's error.
    let unsupported = create(rig, 1, &plain.shareable()).expect_err("it cannot be shared");
    let reason = format!("HIP {} cannot share memory; 6.2 and later can", rig.backend.driver().version);
    assert!(
        matches!(unsupported.detail(), Detail::Unsupported { reason: told } if *told == reason),
        "{unsupported}"
    );
    let created = told(create(rig, 1, &plain));
    assert_eq!(created, (Operation::CreateMemory, "hipMemCreate", "2 MiB on device 1".to_owned()));
    drop(create(rig, 3, &plain).must("memory"));
    assert_eq!(logged(rig), (Operation::ReleaseMemory, "hipMemRelease", "6 MiB".to_owned()));
    (rig.left.handles, rig.left.physical) = (1, 1);
}

fn failed_reservation_names_its_hint(rig: &mut Rig) {
    let full = reserve(rig, 2, None).expect_err("no addresses");
    assert!(
        matches!(full.detail(), Detail::OutOfAddresses { requested, .. } if *requested == units(2)),
        "{full}"
    );
    let reserved = told(reserve(rig, 3, Some(FAR)));
    let context = "6 MiB of addresses at 0x100000000000".to_owned();
    assert_eq!(reserved, (Operation::Reserve, "hipMemAddressReserve", context));
    let reservation = reserve(rig, 1, None).must("addresses");
    let range = reservation.range();
    drop(reservation);
    // Versions that keep addresses free them later.
    let freed = match rig.has("free-races") {
        true => told(rig.backend.release_kept_addresses()),
        false => logged(rig),
    };
    assert_eq!(freed, (Operation::FreeReservation, "hipMemAddressFree", range.to_string()));
    rig.left.others[0] = 1;
}

fn failed_mapping_names_its_range(rig: &mut Rig) {
    let grant = Grant { device: ZERO, access: RW };
    let mut reservation = reserve(rig, 4, None).must("addresses");
    let at = AddressRange { base: reservation.range().base + units(1), size: units(2) };
    let handle = create(rig, 2, &Properties::on(ZERO)).must("memory");
    // SAFETY: memory that fits the empty reservation, which no device uses.
    unsafe {
        let mapped = told(reservation.map(units(1), &handle));
        assert_eq!(mapped, (Operation::Map, "hipMemMap", at.to_string()));
        let none = reservation.unmap(units(1), units(2)).expect_err("nothing is mapped");
        let Detail::Unsupported { reason } = none.detail() else { panic!("{none}") };
        assert_eq!(*reason, "no mapping begins at offset 2 MiB");
        reservation.map(units(1), &handle).must("mapped");
        let set = told(reservation.set_access(units(1), units(2), &[grant]));
        assert_eq!(set, (Operation::SetAccess, "hipMemSetAccess", format!("{at}, device 0, read and write")));
        // Reads the access back at both ends.
        reservation.set_access(units(1), units(2), &[grant]).must("access");
        let asked = told(reservation.access(units(1), ZERO));
        assert_eq!(asked, (Operation::QueryAccess, "hipMemGetAccess", format!("{} for device 0", at.base)));
        let host = reservation.access(units(1), DeviceId::HOST).expect_err("it is not told");
        let Detail::Unsupported { reason } = host.detail() else { panic!("{host}") };
        assert_eq!(*reason, "HIP does not report the host's access");
        let unmapped = told(reservation.unmap(units(1), units(2)));
        assert_eq!(unmapped, (Operation::Unmap, "hipMemUnmap", at.to_string()));
        assert_eq!(reservation.access(units(1), ZERO).must("still mapped"), RW);
        reservation.unmap(units(1), units(2)).must("unmapped");
    }
}

fn failed_export_names_the_memory(rig: &mut Rig) {
    let properties = Properties::on(ONE).shareable();
    let handle = create(rig, 2, &properties).must("memory");
    let exported = told(handle.export());
    assert_eq!(
        exported,
        (Operation::ExportMemory, "hipMemExportToShareableHandle", "4 MiB on device 1".to_owned())
    );
    let fd = handle.export().must("exported");
    if rig.has("import-form-unknown") {
        // SAFETY: memory of this size and device, as just exported.
        let error = unsafe { rig.backend.import(fd.as_fd(), units(2), &properties) }.expect_err("a guess");
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        let version = rig.backend.driver().version;
        let begin =
            format!("HIP {version} may take the descriptor itself or a pointer to it, and a wrong guess");
        assert!(reason.starts_with(&begin), "{reason}");
        return;
    }
    // SAFETY: the descriptor was exported above from memory of this device. The size is compared before an import.
    unsafe {
        let (operation, call, context) =
            told(rig.backend.import(fd.as_fd(), units(2), &properties).map(drop));
        assert_eq!((operation, call), (Operation::ImportMemory, "hipMemImportFromShareableHandle"));
        let number = context.strip_prefix("4 MiB on device 1 from descriptor ").expect(&context);
        assert!(number.parse::<i32>().is_ok_and(|number| number > 2), "{context}");
        let error = rig.backend.import(fd.as_fd(), units(1), &properties).expect_err("another size");
        let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
        let expected = "the descriptor's memory has 4 MiB, expected 2 MiB";
        assert_eq!((source.call, &*source.name, &*source.description), ("lseek", "EINVAL", expected));
        assert_eq!(*context, format!("descriptor {}", fd.as_raw_fd()));
        // Memory that is imported can be exported in turn, and its handle types are those that were requested.
        let imported = rig.backend.import(fd.as_fd(), units(2), &properties).must("imported");
        assert_eq!(imported.properties().handle_types, HandleTypes::FILE_DESCRIPTOR);
    }
    rig.left.physical += usize::from(rig.has("import-leaks"));
    let private =
        create(rig, 1, &Properties::on(ONE)).must("memory").export().expect_err("it is not shareable");
    assert!(
        private.to_string().contains("was not created as shareable; HIP requires that at creation"),
        "{private}"
    );
}

/// Each failed attempt gives the reference to the memory back.
fn failed_range_export_names_the_range(rig: &mut Rig) {
    let mut reservation = reserve(rig, 3, None).must("addresses");
    let handle = create(rig, 2, &Properties::on(ZERO)).must("memory");
    let at = AddressRange { base: reservation.range().base, size: units(2) };
    // SAFETY: memory that fits the empty reservation, which no device uses.
    unsafe {
        reservation.map(Bytes::ZERO, &handle).must("mapped");
        drop(handle);
        for call in [
            "hsa_amd_vmem_retain_alloc_handle",
            "hsa_amd_vmem_export_shareable_handle",
            "hsa_amd_vmem_handle_release",
        ] {
            let error = reservation.dma_buf(ZERO, Bytes::ZERO, units(2)).expect_err(call);
            let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
            assert_eq!((source.call, &*source.name, source.code), (call, "HSA status 0x1001", 0x1001));
            assert_eq!((error.operation(), context), (Operation::ExportDmaBuf, &at.to_string()));
        }
        reservation.dma_buf(ZERO, Bytes::ZERO, units(2)).must("the next one");
        let larger = reservation.dma_buf(ZERO, Bytes::ZERO, units(3)).expect_err("not one mapping");
        let all = AddressRange { size: units(3), ..at };
        let reason = format!("{all} is not exactly one mapping; HIP exports one whole mapping per dma-buf");
        assert!(
            matches!(larger.detail(), Detail::Unsupported { reason: told } if *told == reason),
            "{larger}"
        );
        reservation.unmap(Bytes::ZERO, units(2)).must("unmapped");
    }
    // The reference that was not given back.
    rig.left.physical = 1;
}

/// HIP 7.0 to 7.2 refuse the call itself, so ROCr is called.
fn failed_rocr_access_names_its_range(rig: &mut Rig) {
    let mut region = rig.unequal_region();
    let base = region.address();
    let mut refused = UNEQUAL.iter().filter_map(|(offset, size)| {
        let at = AddressRange { base: base + units(*offset), size: units(*size) };
        region.set_access(units(*offset), units(*size), ONE, Access::Read).err().map(|error| (error, at))
    });
    let first = refused.next();
    assert_eq!((first.is_some(), refused.count()), (rig.has("access-sums"), 0));
    if let Some((error, at)) = first {
        let context = format!("{at}, device 1, read");
        assert_eq!(told(Err::<(), _>(error)), (Operation::SetAccess, "hsa_amd_vmem_set_access", context));
        if rig.has("host-access-appears") {
            return;
        }
        let host = UNEQUAL.iter().find_map(|(offset, size)| {
            region.set_access(units(*offset), units(*size), DeviceId::HOST, RW).err()
        });
        let context = "the CPU nearest to device 0".to_owned();
        let expected = (Operation::SetAccess, "hsa_agent_get_info", context);
        assert_eq!(told(Err::<(), _>(host.expect("HIP refuses one of them"))), expected);
    }
}

/// A stream that cannot be waited for is destroyed all the same. The errors of a lost device are not recorded.
fn failed_stream_names_its_device(rig: &mut Rig) {
    let created = told(rig.backend.copy_stream(ONE).map(drop));
    assert_eq!(created, (Operation::CreateStream, "hipStreamCreateWithFlags", "device 1".to_owned()));
    drop(rig.backend.copy_stream(ONE).must("a copy stream"));
    let (operation, call, context) = logged(rig);
    assert_eq!((operation, call), (Operation::DestroyStream, "hipStreamSynchronize"));
    assert!(context.starts_with("stream 0x"), "{context}");
    assert_eq!(rig.counts().others[4], 0, "the stream is left");
    drop(rig.backend.copy_stream(ONE).must("a copy stream"));
    assert_eq!(logged(rig), (Operation::DestroyStream, "hipStreamDestroy", "device 1".to_owned()));
    let before = rig.backend.drop_log().count();
    drop(rig.backend.copy_stream(ONE).must("a copy stream"));
    assert_eq!(rig.backend.drop_log().count(), before);
    rig.left.others[4] = 2;
}

fn failed_pinning_names_its_size(rig: &mut Rig) {
    let none = rig.backend.pin(Bytes::ZERO).expect_err("no memory");
    assert!(matches!(none.detail(), Detail::ZeroSize), "{none}");
    let full = rig.backend.pin(units(2)).expect_err("no memory");
    assert!(
        matches!(full.detail(), Detail::OutOfMemory { device: DeviceId::HOST, requested, .. } if *requested == units(2)),
        "{full}"
    );
    drop(rig.backend.pin(units(3)).must("pinned"));
    assert_eq!(logged(rig), (Operation::FreePinned, "hipHostFree", "6 MiB".to_owned()));
    rig.left.others[3] = 1;
}

fn failed_query_names_its_device(rig: &mut Rig) {
    let asked = told(rig.backend.memory_info(ZERO));
    assert_eq!(asked, (Operation::QueryMemory, "hipMemGetInfo", "device 0".to_owned()));
    let asked = told(rig.backend.memory_info(ONE));
    assert_eq!(asked, (Operation::QueryMemory, "hipSetDevice", "device 1".to_owned()));
    let asked = told(rig.backend.memory_info(ONE));
    assert_eq!(asked, (Operation::QueryMemory, "hipGetDevice", "device 1".to_owned()));
    assert_eq!(rig.backend.memory_info(ONE).must("amounts").total, Bytes::mib(512));
    let nowhere = FAR;
    let mut bytes = [0; 4];
    if rig.has("copy-by-source") {
        // SAFETY: nothing is mapped there, and nothing is copied.
        unsafe {
            let asked = told(rig.backend.copy_to_host(ZERO, &mut bytes, nowhere));
            assert_eq!(asked, (Operation::CopyToHost, "hipPointerGetAttributes", nowhere.to_string()));
            let error = rig.backend.copy_to_host(ZERO, &mut bytes, nowhere).expect_err("no owner");
            let words = format!("hipPointerGetAttributes returned device -2 for {nowhere}, which is mapped");
            assert!(
                matches!(error.detail(), Detail::DriverContractViolated { what } if *what == words),
                "{error}"
            );
        }
    }
    let node = Properties::on(ZERO).located(Location::HostNode(12_345));
    let Err(error) = create(rig, 1, &node) else { panic!("there is no such node") };
    assert_eq!(error.operation(), Operation::CreateMemory);
    assert_eq!(
        error.to_string().contains("this machine has no NUMA node 12345"),
        !rig.has("host-memory-is-the-devices"),
        "{error}"
    );
}
