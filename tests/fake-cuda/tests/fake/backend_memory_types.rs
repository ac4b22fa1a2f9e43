//! gpu-vmm-cuda's memory types over the fake driver: what drivers lack and refuse, and that nothing is left of failed calls.
//! gpu-vmm-cuda's own tests cover the successful calls; they run over the fake driver too.

use crate::child::{Case, DONE, case, start};
use crate::rig::{Cuda, DEVICE, G, open};
use gpu_vmm_core::{
    Access, Backend, Bytes, Capability, Detail, DeviceId, Error, Evidence, FabricHandle, Feature, Grant,
    HandleTypes, Location, MemoryCalls, Operation, PhysicalMemory, Placement, Properties, Region,
    Reservation,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;

const UNIT: Bytes = Bytes::mib(32);

cases! {
    host_memory_needs_12_2 [VERSION = "12.1"];
    driver_of_12_2_has_host_memory [VERSION = "12.2"];
    fabric_handles_are_there [VERSION = "12.3", FABRIC = "1"];
    a_device_that_compresses_nothing [COMPRESSION = "0"];
    compression_that_is_only_reported [COMPRESSION = "reported"];
    nine_devices_have_access [GPUS = "9"];
    an_unknown_attribute [VERSION = "12.3"];
    dma_bufs_are_of_11_7 [VERSION = "11.6"];
    unsupported_dma_bufs_say_so [FAIL = "cuMemGetHandleForAddressRange:1+:801"];
    a_refused_type_has_no_granularity
        [FAIL = "cuMemGetAllocationGranularity:3:801, cuMemGetAllocationGranularity:4:800,\
                  cuMemGetAllocationGranularity:5:999"];
    only_a_refused_type_is_unsupported
        [FAIL = "cuMemCreate:1:801, cuMemCreate:2:800, cuMemCreate:3:801, cuMemCreate:4:800"];
    a_refused_fabric_handle [FABRIC = "1", FAIL = "cuMemExportToShareableHandle:1+:801"];
    sizes_are_multiples_of_the_minimum;
    short_memory_of_the_host [FAIL = "cuMemCreate:1:2"];
    unmapped_host_memory_is_forgotten [FAIL = "cuMemMap:1:2"];
    unknown_properties_leave_nothing [FAIL = "cuMemGetAllocationPropertiesFromHandle:1+:999"];
    failed_trial_has_reason_leaves_nothing [FAIL = "cuMemSetAccess:1+:801"];
    memory_that_the_host_cannot_reach [FAIL = "cuMemSetAccess:3:801"];
    a_dma_buf_of_the_hosts_memory;
    dma_buf_trial_needs_a_context;
    dma_buf_trial_uses_the_programs_context;
    compressible_memory_says_no_dma_buf;
    what_is_permitted_is_found [FABRIC = "1"];
    memory_of_another_machine_is_imported [FABRIC = "1"] => memory_of_another_machine_is_imported;
    memory_that_is_invisible_is_imported [FABRIC = "1", VERSION = "13.2"] => memory_of_another_machine_is_imported;
    memory_that_is_not_compressed_says_so;
    host_memory_region_serves_both;
    former_host_memory_is_the_devices;
}

/// The other machine of the case with two.
pub(crate) const OTHER_MACHINE: Case =
    case("the_other_machine", &[("FABRIC", "1"), ("GPUS", "1")], the_other_machine);

/// The environment variable with the fabric handle, as hexadecimal digits.
const FABRIC_HANDLE: &str = "GPU_VMM_TEST_FABRIC_HANDLE";

pub(crate) fn capability(backend: &CudaBackend, feature: Feature) -> Capability {
    let all = backend.capabilities(DEVICE).unwrap();
    all.into_iter().find(|one| one.feature == feature).expect("a listed feature")
}

#[track_caller]
fn missing(backend: &CudaBackend, feature: Feature, words: &str) -> Evidence {
    let told = capability(backend, feature);
    assert!(!told.available && told.note.contains(words), "{told:?}");
    told.found_by
}

fn on_the_node() -> Properties {
    Properties::on(DEVICE).located(Location::HostNode(0))
}

/// Returns the reason why such memory is not supported.
#[track_caller]
fn refused(backend: &CudaBackend, properties: Properties) -> String {
    match PhysicalMemory::create(backend, UNIT, properties).unwrap_err().into_detail() {
        Detail::Unsupported { reason } => reason,
        error => panic!("{error}"),
    }
}

fn host_memory_needs_12_2(cuda: &Cuda) {
    let backend = open();
    let reason = refused(&backend, on_the_node());
    assert_eq!(reason, "memory of the host came with CUDA 12.2, and the driver is of 12.1");
    for feature in [Feature::HostMemory, Feature::HostNodeMemory] {
        assert_eq!(missing(&backend, feature, &reason), Evidence::Version);
    }
    let reason = refused(&backend, Properties::on(DEVICE).exported_as(HandleTypes::FABRIC));
    assert_eq!(reason, "fabric handles came with CUDA 12.3, and the driver is of 12.1");
    assert_eq!(cuda.violations(), 0);
}

fn driver_of_12_2_has_host_memory(cuda: &Cuda) {
    let backend = open();
    let memory = PhysicalMemory::create(&backend, UNIT, on_the_node()).unwrap();
    assert_eq!((memory.properties(), cuda.violations()), (on_the_node(), 0));
    let reason = refused(&backend, Properties::on(DEVICE).exported_as(HandleTypes::FABRIC));
    assert_eq!(reason, "fabric handles came with CUDA 12.3, and the driver is of 12.2");
    assert_eq!(missing(&backend, Feature::FabricHandle, &reason), Evidence::Version);
}

/// The driver's refusals of a type are [`Detail::Unsupported`], of which a caller takes another type; its other errors are not.
fn a_refused_type_has_no_granularity(cuda: &Cuda) {
    let backend = open();
    let shareable = Properties::on(DEVICE).shareable();
    let ask = || backend.granularity_of(Operation::QueryGranularity, &shareable);
    for name in ["CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_PERMITTED"] {
        let error = ask().unwrap_err();
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        for part in [&*shareable.to_string(), "cuMemGetAllocationGranularity", name] {
            assert!(reason.contains(part), "{error}");
        }
        assert!(!reason.contains("IMEX"), "{error}");
        assert_eq!(error.operation(), Operation::QueryGranularity);
    }
    let error = ask().unwrap_err();
    assert_eq!(error.driver_error().map(|source| source.code), Some(999), "{error}");
    ask().unwrap();
    assert_eq!(cuda.violations(), 0);
}

/// A caller cannot take another type instead of plain memory: its refusal is the driver's error.
fn only_a_refused_type_is_unsupported(cuda: &Cuda) {
    let backend = open();
    for (properties, is_type) in [(Properties::on(DEVICE), false), (Properties::on(DEVICE).shareable(), true)]
    {
        for code in [801, 800] {
            let error = PhysicalMemory::create(&backend, UNIT, properties).unwrap_err();
            let is_unsupported = matches!(error.detail(), Detail::Unsupported { .. });
            assert_eq!(is_unsupported, is_type, "{properties}: {error}");
            if !is_type {
                assert_eq!(error.driver_error().map(|source| source.code), Some(code), "{error}");
            }
        }
    }
    assert_eq!(cuda.violations(), 0);
}

/// The fake driver recommends twice the minimum.
fn sizes_are_multiples_of_the_minimum(cuda: &Cuda) {
    let backend = open();
    for properties in [Properties::on(DEVICE), Properties::on(DEVICE).shareable()] {
        let memory = PhysicalMemory::create(&backend, Bytes(1), properties).unwrap();
        assert_eq!((memory.size(), memory.granularity().bytes()), (Bytes(G as u64), Bytes(G as u64)));
    }
    assert_eq!(cuda.violations(), 0);
}

fn a_refused_fabric_handle(cuda: &Cuda) {
    let backend = open();
    missing(&backend, Feature::FabricHandle, "the device attribute is 1, but: ");
    missing(&backend, Feature::FabricHandle, "CUDA_ERROR_NOT_SUPPORTED");
    assert_eq!(cuda.violations(), 0);
}

fn fabric_handles_are_there(cuda: &Cuda) {
    let properties = Properties::on(DEVICE).exported_as(HandleTypes::FABRIC);
    PhysicalMemory::create(&open(), UNIT, properties).unwrap().export_fabric().unwrap();
    assert_eq!(cuda.violations(), 0);
}

fn a_device_that_compresses_nothing(cuda: &Cuda) {
    let backend = open();
    assert_eq!(missing(&backend, Feature::Compression, "device attribute 107 is 0"), Evidence::Attribute);
    assert!(capability(&backend, Feature::RemoteDma).available);
    assert_eq!(cuda.violations(), 0);
}

fn compression_that_is_only_reported(cuda: &Cuda) {
    let words = "asked for compressible memory, the driver created memory that is not";
    assert_eq!(missing(&open(), Feature::Compression, words), Evidence::Trial);
    assert_eq!((cuda.violations(), cuda.counts().handles), (0, 0));
}

/// More devices than one call grants from the stack.
fn nine_devices_have_access(cuda: &Cuda) {
    let backend = open();
    let devices = || (0..9).map(DeviceId);
    let builder = Region::builder(&backend).on(DEVICE).reserve(UNIT);
    let builder = devices().fold(builder, |builder, device| builder.access(device, Access::ReadWrite));
    let mut region = builder.build().unwrap();
    region.grow_to(UNIT).unwrap();
    for (seed, device) in (5..).zip(devices()) {
        region.write_pattern(device, Bytes::ZERO, UNIT, seed).unwrap();
        assert_eq!(region.count_wrong(device, Bytes::ZERO, UNIT, seed).unwrap(), 0, "{device}");
    }
    assert_eq!(cuda.violations(), 0);
}

fn an_unknown_attribute(cuda: &Cuda) {
    let backend = open();
    for feature in [Feature::HostMemory, Feature::HostNodeMemory] {
        let told = capability(&backend, feature);
        assert!(told.available && told.found_by == Evidence::Trial, "{told:?}");
    }
    assert_eq!(cuda.violations(), 0);
}

/// Returns the error of exporting a unit of such memory as a dma-buf.
fn dma_buf(backend: &CudaBackend, properties: Properties) -> Error {
    // SAFETY: one unit is created, mapped at the beginning of a reservation of its size, and unmapped again.
    unsafe {
        let handle = backend.create(UNIT, &properties).unwrap();
        let mut reservation = backend.reserve(UNIT, backend.granularity().into(), None).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        let error = reservation.dma_buf(DeviceId(0), Bytes::ZERO, UNIT).unwrap_err();
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
        error
    }
}

fn dma_bufs_are_of_11_7(_: &Cuda) {
    let backend = open();
    let error = dma_buf(&backend, Properties::on(DEVICE));
    let Detail::Unsupported { reason, .. } = error.detail() else { panic!("{error}") };
    assert_eq!(missing(&backend, Feature::DmaBuf, reason), Evidence::Version);
}

fn unsupported_dma_bufs_say_so(_: &Cuda) {
    let backend = open();
    let error = dma_buf(&backend, Properties::on(DEVICE));
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("CUDA_ERROR_NOT_SUPPORTED (801)"), "{error}");
    missing(&backend, Feature::DmaBuf, "CUDA_ERROR_NOT_SUPPORTED (801)");
}

/// The driver would answer with an error that says nothing.
fn a_dma_buf_of_the_hosts_memory(cuda: &Cuda) {
    let backend = open();
    let error = dma_buf(&backend, on_the_node());
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("DMA-BUFs of device memory only"), "{error}");
    assert_eq!(cuda.violations(), 0);
}

fn short_memory_of_the_host(cuda: &Cuda) {
    let backend = open();
    let error = PhysicalMemory::create(&backend, UNIT, on_the_node()).unwrap_err();
    assert!(error.to_string().contains("the host is out of memory"), "{error}");
    let Detail::OutOfMemory { device, requested, free, total, .. } = error.detail() else {
        panic!("{error}")
    };
    assert_eq!((*device, *requested), (DeviceId::HOST, UNIT));
    assert!(!free.is_zero() && free <= total);
    assert_eq!(cuda.counts().contexts, 0);
}

fn unknown_properties_leave_nothing(cuda: &Cuda) {
    use std::os::fd::AsFd;
    let backend = open();
    let compressible = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE).compressible());
    let memory = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE).shareable()).unwrap();
    let fd = memory.export().unwrap();
    // SAFETY: the memory is of this size and these properties.
    let imported = unsafe { PhysicalMemory::import(&backend, fd.as_fd(), UNIT, memory.properties()) };
    for answer in [compressible, imported] {
        let error = answer.unwrap_err();
        let call = error.driver_error().expect("an answer of the driver's").call;
        assert_eq!(call, "cuMemGetAllocationPropertiesFromHandle");
    }
    assert_eq!((cuda.counts().handles, backend.drop_log().count()), (1, 0));
}

fn failed_trial_has_reason_leaves_nothing(cuda: &Cuda) {
    let backend = open();
    // With a context; without one no dma-buf is tried.
    backend.memory_info(DEVICE).unwrap();
    for feature in [Feature::ReadOnlyAccess, Feature::HostMemory, Feature::HostNodeMemory, Feature::DmaBuf] {
        assert_eq!(missing(&backend, feature, "CUDA_ERROR_NOT_SUPPORTED (801)"), Evidence::Trial);
    }
    cuda.check_what_is_left();
    assert_eq!((cuda.violations(), backend.drop_log().count()), (0, 0));
}

/// The third call is the host's access to host memory, after the trial of read-only access and the device's access.
fn memory_that_the_host_cannot_reach(cuda: &Cuda) {
    let found = open().capabilities(DEVICE).unwrap();
    let notes = [Feature::HostMemory, Feature::HostNodeMemory].map(|feature| {
        let one = found.iter().find(|one| one.feature == feature).expect("a listed feature");
        assert!(one.available, "{one:?}");
        one.note.contains("the host was given no access")
            && one.note.contains("CUDA_ERROR_NOT_SUPPORTED (801)")
    });
    assert_eq!((notes, cuda.violations()), ([true, false], 0));
}

/// Quirk `dma-buf-wants-a-context`; querying capabilities creates none.
fn dma_buf_trial_needs_a_context(cuda: &Cuda) {
    let backend = open();
    let told = capability(&backend, Feature::DmaBuf);
    assert!(told.available && told.found_by == Evidence::Attribute, "{told:?}");
    assert_eq!(told.note, "not tried, since that would make a context on the device");
    assert_eq!((cuda.counts().contexts, cuda.violations()), (0, 0));
}

fn dma_buf_trial_uses_the_programs_context(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let told = capability(&open(), Feature::DmaBuf);
    assert!(told.available && told.found_by == Evidence::Trial, "{told:?}");
    assert_eq!((cuda.counts().contexts, cuda.violations()), (1, 0));
}

/// Quirk `compressible-has-no-dma-buf`.
fn compressible_memory_says_no_dma_buf(cuda: &Cuda) {
    let backend = open();
    let error = dma_buf(&backend, Properties::on(DEVICE).compressible());
    let Detail::Unsupported { reason, .. } = error.detail() else { panic!("{error}") };
    for words in ["CUDA_ERROR_UNKNOWN (999)", "compressible"] {
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(cuda.violations(), 0);
}

fn what_is_permitted_is_found(cuda: &Cuda) {
    let backend = open();
    assert!(capability(&backend, Feature::FabricHandle).available);
    let both = Properties::on(DEVICE).shareable().exported_as(HandleTypes::FABRIC);
    let memory = PhysicalMemory::create(&backend, UNIT, both).unwrap();
    let (bytes, _fd) = (memory.export_fabric().unwrap(), memory.export().unwrap());
    // SAFETY: the memory is of this size; another device is reported as an error.
    let wrong = unsafe {
        PhysicalMemory::import_fabric(&backend, &bytes, UNIT, Properties { device: DeviceId(1), ..both })
    };
    let error = wrong.unwrap_err();
    let Detail::Mismatch { what, theirs, ours } = error.detail() else { panic!("{error}") };
    let expected = ("location", "memory of device 0", "the importer expects memory of device 1");
    assert_eq!((*what, &**theirs, &**ours), expected);
    assert_eq!((cuda.counts().handles, cuda.violations()), (1, 0));
}

fn memory_of_another_machine_is_imported(cuda: &Cuda) {
    let backend = open();
    let owner = DeviceId(1);
    let memory = Properties::on(owner).exported_as(HandleTypes::FABRIC);
    let mut region = Region::builder(&backend).memory(memory).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
    region.write_pattern(owner, Bytes::ZERO, UNIT, 5).unwrap();
    let handle = region.mapping_at(Bytes::ZERO).unwrap().memory.export_fabric().unwrap();
    let digits = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let version = ("FAKE_CUDA_VERSION", backend.driver().version);
    let other = start(&OTHER_MACHINE, &[(FABRIC_HANDLE, digits), version]).wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&other.stdout), format!("{DONE}\n"));
    assert_eq!(region.count_wrong(owner, Bytes::ZERO, UNIT, 6).unwrap(), 0);
    assert_eq!(cuda.violations(), 0);
}

/// Has one device, and imports memory of a device that is not it.
fn the_other_machine(cuda: &Cuda) {
    let backend = open();
    let digits = std::env::var(FABRIC_HANDLE).unwrap();
    let byte = |place: usize| u8::from_str_radix(&digits[2 * place..][..2], 16).unwrap();
    let handle = FabricHandle(std::array::from_fn(byte));
    let properties = Properties::on(DEVICE).exported_as(HandleTypes::FABRIC);
    // SAFETY: the other process exported one unit.
    let memory = unsafe { PhysicalMemory::import_fabric(&backend, &handle, UNIT, properties) }.unwrap();
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    region.map(Bytes::ZERO, &memory).unwrap();
    region.set_access(Bytes::ZERO, UNIT, DEVICE, Access::ReadWrite).unwrap();
    assert_eq!(region.count_wrong(DEVICE, Bytes::ZERO, UNIT, 5).unwrap(), 0);
    region.write_pattern(DEVICE, Bytes::ZERO, UNIT, 6).unwrap();
    assert_eq!(cuda.violations(), 0);
}

fn memory_that_is_not_compressed_says_so(_: &Cuda) {
    let backend = open();
    let asked = on_the_node().compressible();
    let memory = PhysicalMemory::create(&backend, UNIT, asked).unwrap();
    assert_eq!(memory.properties(), on_the_node());
    assert!(
        PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE).compressible())
            .unwrap()
            .properties()
            .compressible
    );
}

fn unmapped_host_memory_is_forgotten(cuda: &Cuda) {
    let backend = open();
    let hosts = PhysicalMemory::create(&backend, UNIT, on_the_node()).unwrap();
    let own = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap();
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    let error = region.map(Bytes::ZERO, &hosts).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfMemory { .. }), "{error}");
    region.map(Bytes::ZERO, &own).unwrap();
    region.set_access(Bytes::ZERO, UNIT, DEVICE, Access::ReadWrite).unwrap();
    // Memory of the host would have none.
    drop(region.dma_bufs(Bytes::ZERO, UNIT).unwrap());
    assert_eq!(cuda.violations(), 0);
}

/// The first half is unmapped, and then has memory of the device.
fn former_host_memory_is_the_devices(cuda: &Cuda) {
    let backend = open();
    let host = Grant { device: DeviceId::HOST, access: Access::Read };
    // SAFETY: whole units; each range is mapped or unmapped as a whole, and no work uses it.
    unsafe {
        let hosts = [(); 2].map(|()| backend.create(UNIT, &on_the_node()).unwrap());
        let own = backend.create(UNIT, &Properties::on(DEVICE)).unwrap();
        let mut reservation = backend.reserve(UNIT + UNIT, backend.granularity().into(), None).unwrap();
        reservation.map(Bytes::ZERO, &hosts[0]).unwrap();
        reservation.map(UNIT, &hosts[1]).unwrap();
        reservation.set_access(Bytes::ZERO, UNIT + UNIT, &[host]).unwrap();
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
        reservation.map(Bytes::ZERO, &own).unwrap();
        for length in [UNIT, UNIT + UNIT] {
            let error = reservation.set_access(Bytes::ZERO, length, &[host]).unwrap_err();
            assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        }
        let access = [Bytes::ZERO, UNIT].map(|at| reservation.access(at, DeviceId::HOST).unwrap());
        assert_eq!(access, [Access::None, Access::Read]);
        reservation.set_access(UNIT, UNIT, &[host]).unwrap();
        reservation.unmap(Bytes::ZERO, UNIT + UNIT).unwrap();
    }
    assert_eq!(cuda.violations(), 0);
}

fn host_memory_region_serves_both(cuda: &Cuda) {
    let backend = open();
    let mut region = Region::builder(&backend)
        .memory(on_the_node())
        .reserve(UNIT)
        .at(Placement::Anywhere)
        .build()
        .unwrap();
    region.grow_to(UNIT).unwrap();
    region.write_pattern(DEVICE, Bytes::ZERO, UNIT, 5).unwrap();
    // A peer gets access as to a device's memory, and need not support peer access.
    region.set_access(Bytes::ZERO, UNIT, DeviceId(1), Access::Read).unwrap();
    region.set_access(Bytes::ZERO, UNIT, DeviceId::HOST, Access::Read).unwrap();
    let word = region.address().0 as *const u64;
    // SAFETY: the CPU may read it, and the device has finished.
    assert_eq!(unsafe { word.read() }, gpu_vmm_testkit::pattern_word(5, 0));
    assert_eq!(cuda.violations(), 0);
}
