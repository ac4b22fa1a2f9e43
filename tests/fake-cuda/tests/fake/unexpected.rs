//! gpu-vmm-cuda over a fake driver that returns success and no result, or the opposite of an attribute: `FAKE_CUDA_FAIL` with the
//! code 0; or that has shut down.

use crate::backend_memory_types::capability;
use crate::rig::{Cuda, DEVICE, OTHER, open};
use gpu_vmm_core::multicast::{MulticastBackend, MulticastDriver};
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, Evidence, Feature, Location, MemoryCalls, Operation, PhysicalMemory,
    Properties, Region, Reservation, Result, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::TestKit;

const SIZE: Bytes = Bytes::mib(2);

cases! {
    unwritten_descriptor_is_an_error [FAIL = "cuMemExportToShareableHandle:1:0,cuMemGetHandleForAddressRange:1:0"];
    null_page_locked_memory_is_an_error [FAIL = "cuMemHostAlloc:1:0"];
    // The first two are asked of the devices when the backend opens.
    granularity_of_0_is_an_error [FAIL = "cuMemGetAllocationGranularity:3:0,cuMulticastGetGranularity:1:0"];
    context_of_unlisted_device_is_an_error [FAIL = "cuCtxGetDevice:1:0,cuCtxGetDevice:2:999"];
    unreported_read_access_is_missing [FAIL = "cuMemGetAccess:1:0"];
    ignored_hints_deny_fixed_addresses
        [FAIL = "cuMemAddressReserve:2:0,cuMemAddressReserve:4:0,cuMemAddressReserve:6:0,cuMemAddressFree:2:0,\
                 cuMemAddressFree:4:0,cuMemAddressFree:6:0"];
    // The first four are asked of the devices when the backend opens.
    missing_feature_names_its_attribute [FAIL = "cuDeviceGetAttribute:7+:0"];
    driver_that_shut_down_is_not_logged [FAIL = "cuMemAddressFree:1:4,cuMemAddressFree:3:1"];
}

/// Requires that the driver broke its contract in this operation, and returns how.
#[track_caller]
fn broken<T>(operation: Operation, answer: Result<T>) -> String {
    let error = answer.map(drop).unwrap_err();
    let Detail::DriverContractViolated { what } = error.detail() else { panic!("{error}") };
    assert_eq!(error.operation(), operation, "{error}");
    what.clone()
}

fn unwritten_descriptor_is_an_error(cuda: &Cuda) {
    let backend = open();
    let memory = PhysicalMemory::create(&backend, SIZE, Properties::on(DEVICE).shareable()).unwrap();
    let what = "it returned the descriptor -1";
    assert_eq!(broken(Operation::ExportMemory, memory.export()), what);
    memory.export().unwrap();
    let mut region = Region::builder(&backend).on(DEVICE).reserve(SIZE).build().unwrap();
    region.grow_to(SIZE).unwrap();
    assert_eq!(broken(Operation::ExportDmaBuf, region.dma_bufs(Bytes::ZERO, SIZE)), what);
    assert_eq!(region.dma_bufs(Bytes::ZERO, SIZE).unwrap().len(), 1);
    assert_eq!(cuda.violations(), 0);
}

fn null_page_locked_memory_is_an_error(cuda: &Cuda) {
    let backend = open();
    let what = broken(Operation::PinMemory, backend.pin(Bytes(64)));
    assert_eq!(what, "it returned address 0 for 64 B of host memory");
    assert_eq!(cuda.counts().pinned, 0);
    assert_eq!(backend.pin(Bytes(64)).unwrap().size(), Bytes(64));
    assert_eq!((cuda.violations(), backend.drop_log().count()), (0, 0));
}

fn granularity_of_0_is_an_error(_: &Cuda) {
    let backend = open();
    let ask = Operation::QueryGranularity;
    let host = Properties::on(DEVICE).located(Location::Host);
    let what = broken(ask, backend.granularity_of(ask, &host));
    assert_eq!(what, "it reports a granularity of 0 bytes, which is not a power of two");
    assert_eq!(backend.granularity_of(ask, &host).unwrap().bytes(), SIZE);
    let driver = backend.multicast(ask).unwrap();
    let shared = Properties::on(DEVICE).shareable();
    let what = broken(ask, driver.granularity(ask, 2, SIZE, &shared));
    assert_eq!(what, "it returned the multicast granularity 0, which is not a power of two");
    driver.granularity(ask, 2, SIZE, &shared).unwrap();
}

/// The error of a stream of a foreign context names the context alone if the driver does not report its device.
fn context_of_unlisted_device_is_an_error(cuda: &Cuda) {
    let backend = open();
    let context = std::ptr::with_exposed_provenance_mut(cuda.enter(0));
    // SAFETY: the context is alive as long as the process.
    let what = broken(Operation::Open, unsafe { CudaBackend::with_context(DEVICE, context) });
    assert!(what.starts_with("it reports that context 0x"), "{what}");
    assert!(what.ends_with(" belongs to device -1, which it did not list"), "{what}");
    let (own, mut event) = (backend.own_stream(DEVICE).unwrap(), backend.event(OTHER).unwrap());
    let error = event.record(own.stream()).unwrap_err();
    let Detail::ForeignStream { theirs, ours } = error.detail() else { panic!("{error}") };
    assert!(theirs.starts_with("context 0x") && ours.starts_with("device 1, context 0x"), "{error}");
    assert_eq!(error.operation(), Operation::RecordEvent);
    // SAFETY: as above.
    drop(unsafe { CudaBackend::with_context(DEVICE, context) }.unwrap());
    assert_eq!(cuda.violations(), 0);
}

fn unreported_read_access_is_missing(cuda: &Cuda) {
    let backend = open();
    let found = capability(&backend, Feature::ReadOnlyAccess);
    assert_eq!((found.available, found.found_by), (false, Evidence::Trial));
    assert_eq!(found.note, "access was set to read, but the driver reports no access");
    assert_eq!((cuda.violations(), backend.drop_log().count()), (0, 0));
}

/// The driver takes no hint, and returns null for each.
fn ignored_hints_deny_fixed_addresses(cuda: &Cuda) {
    let backend = open();
    let found = capability(&backend, Feature::FixedAddress);
    assert_eq!((found.available, found.found_by), (false, Evidence::Trial), "{}", found.note);
    let asked = found.note.strip_prefix("asked for 0x").expect(&found.note);
    let asked = asked.strip_suffix(", which had just been freed, the driver returned 0x0").expect(asked);
    assert!(u64::from_str_radix(asked, 16).is_ok_and(|at| at != 0), "{}", found.note);
    assert_eq!((cuda.counts().reservations, cuda.violations()), (0, 0));
}

fn missing_feature_names_its_attribute(_: &Cuda) {
    let backend = open();
    for (feature, number) in [
        (Feature::FileDescriptor, 103),
        (Feature::Compression, 107),
        (Feature::RemoteDma, 110),
        (Feature::DmaBuf, 124),
        (Feature::FabricHandle, 128),
        (Feature::HostNodeMemory, 141),
        (Feature::HostMemory, 145),
    ] {
        let found = capability(&backend, feature);
        let expected = (false, Evidence::Attribute, format!("device attribute {number} is 0"));
        assert_eq!((found.available, found.found_by, found.note), expected, "{feature}");
    }
}

/// It has released everything. Any other failure is logged.
fn driver_that_shut_down_is_not_logged(cuda: &Cuda) {
    let backend = open();
    for logged in 0..2 {
        // SAFETY: whole units.
        let reservation = unsafe { backend.reserve(SIZE, backend.granularity().into(), None) }.unwrap();
        let range = reservation.range();
        drop(reservation);
        assert_eq!(backend.drop_log().count(), logged);
        cuda.free(range.base.0 as usize, SIZE.0 as usize);
    }
    let error = backend.drop_log().take_last().unwrap();
    assert_eq!(error.operation(), Operation::FreeReservation);
}
