//! gpu-vmm-cuda over the fake driver: which drivers it accepts, how the driver's errors reach its users, and that it releases
//! everything whatever fails.

use crate::child::{Case, case};
use crate::rig::{Cuda, DEVICE, open};
use gpu_vmm::AnyBackend;
use gpu_vmm_core::{
    Access, Backend, Bytes, Capability, ComputeMode, CopyCalls, CopyStream, Detail, Device, DeviceId, Error,
    ErrorKind, Evidence, Feature, GrowthKind, MemoryCalls, Operation, PhysicalMemory, Pinned, Properties,
    Region, Reservation, Result, SyncCalls, Vendor, WaitFor,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use std::path::Path;
use std::sync::Mutex;

const UNIT: Bytes = Bytes::mib(32);

/// Prints the quirks that the backend lists.
pub(crate) const QUIRKS: Case = case("quirks", &[], quirks);

/// A case with a misspelt setting.
pub(crate) const MISSPELT: Case = case("misspelt", &[("GPU", "2")], Cuda::init);

cases! {
    it_is_no_nvidia_driver;
    driver_of_11_4_is_opened [VERSION = "11.4"];
    driver_of_11_3_is_refused [VERSION = "11.3"];
    driver_without_virtual_memory_is_refused [VERSION = "9.0"];
    driver_without_device_says_so [GPUS = "0"];
    driver_that_lists_no_device_is_refused [FAIL = "cuDeviceGetCount:1:0"] => |_| {
        let error = CudaBackend::open().unwrap_err();
        assert!(matches!(error.detail(), Detail::NoDevice { .. }), "{error}");
        assert_has(&error.to_string(), &["cuDeviceGetCount returned 0"]);
    };
    not_ready_gets_advice [FAIL = "cuInit:1+:802"];
    mismatch_gets_advice [FAIL = "cuInit:1+:803"];
    compatibility_library_gets_advice [FAIL = "cuInit:1+:804"] => |_| {
        assert_has(
            &refused(),
            &["CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "take its folder `compat` out of"],
        )
    };
    unknown_driver_version_has_its_code [FAIL = "cuDriverGetVersion:1:34"] => |_| {
        assert_has(&refused(), &["cuDriverGetVersion returned 34; this is the toolkit's stub"]);
    };
    a_failed_start_is_tried_again [FAIL = "cuInit:1:999"];
    failed_device_count_is_an_error [FAIL = "cuDeviceGetCount:1:999"] => a_failed_list_is_an_error;
    failed_device_listing_is_an_error [FAIL = "cuDeviceGet:2:999"] => a_failed_list_is_an_error;
    a_device_without_a_name [FAIL = "cuDeviceGetName:1:999"];
    device_of_unknown_size_is_unusable [FAIL = "cuDeviceTotalMem_v2:1:999"] => |_| {
        an_unusable_device(&["cuDeviceTotalMem_v2", "CUDA_ERROR_UNKNOWN (999)"])
    };
    failed_attribute_denies_no_virtual_memory [FAIL = "cuDeviceGetAttribute:1:999"] => |_| {
        let backend = open();
        let device = backend.device(Operation::Open, DEVICE).unwrap();
        assert_eq!((&device.no_virtual_memory, &device.unusable), (&None, &None));
    };
    device_of_unknown_granularity_is_unusable [FAIL = "cuMemGetAllocationGranularity:1:999"] =>
        |_| an_unusable_device(&["cuMemGetAllocationGranularity", "CUDA_ERROR_UNKNOWN (999)"]);
    device_with_granularity_0_is_unusable [FAIL = "cuMemGetAllocationGranularity:1:0"] =>
        |_| an_unusable_device(&["cuMemGetAllocationGranularity", "of 0 bytes, which is not a power of two"]);
    // The first call asks whether the device has virtual memory management at all.
    device_with_unknown_attribute_is_unusable [FAIL = "cuDeviceGetAttribute:2:999"] =>
        |_| an_unusable_device(&["cuDeviceGetAttribute", "CUDA_ERROR_UNKNOWN (999)"]);
    a_device_without_virtual_memory [VMM = "0"];
    short_memory_has_numbers [FAIL = "cuMemCreate:1:2"];
    short_memory_without_a_context [MEM_MB = "64"];
    mapping_without_memory_has_numbers [FAIL = "cuMemMap:1:2"] => |_| {
        short_growth_has_numbers("cuMemMap");
    };
    access_without_memory_has_numbers [FAIL = "cuMemSetAccess:1:2"] => |_| {
        short_growth_has_numbers("cuMemSetAccess");
    };
    forked_child_cannot_open;
    forked_child_of_process_without_device [GPUS = "0"];
    opening_fails_after_driver;
    driver_works_after_locals;
    error_has_the_drivers_name [FAIL = "cuMemMap:1:999"];
    error_without_a_name_has_its_number [FAIL = "cuMemMap:1:987"];
    dead_device_is_reported [FAIL = "cuStreamSynchronize:1:719"];
    failed_access_leaves_nothing [FAIL = "cuMemSetAccess:1:2"] => nothing_is_left;
    failed_mapping_leaves_nothing [FAIL = "cuMemMap:1:1"] => nothing_is_left;
    failed_creation_leaves_nothing [FAIL = "cuMemCreate:1:1"] => nothing_is_left;
    a_destructor_that_fails_is_logged [FAIL = "cuMemRelease:1:1"];
    undestroyed_addresses_and_streams_are_logged [FAIL = "cuMemAddressFree:1:1,cuStreamDestroy_v2:1:1"];
    capabilities_are_found_out_once;
    unreachable_device_is_no_peer [P2P = "0"];
    peer_access_can_be_one_way [P2P = "higher"];
    calls_wait_for_their_work [WORK_DELAY = "50ms"];
    a_handle_of_another_vendor_is_refused;
    ending_after_the_driver_succeeds;
}

fn refused() -> String {
    CudaBackend::open().unwrap_err().to_string()
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

fn quirks(_: &Cuda) {
    open().quirks().iter().for_each(|quirk| println!("{}", quirk.id));
}

fn it_is_no_nvidia_driver(cuda: &Cuda) {
    let backend = open();
    let Device { name, total_memory, .. } = &backend.devices()[0];
    assert_has(name, &["fake", "no NVIDIA GPU"]);
    assert_eq!((*total_memory, backend.devices().len()), (Bytes::gib(4), 2));
    assert!(backend.devices().iter().all(|device| device.compute_mode == Some(ComputeMode::Default)));
    let library = backend.driver().library;
    assert_has(&library, &["libgpu_vmm_fake_cuda.so"]);
    assert_eq!(format!("{backend:?}"), format!("CUDA 13.0 from {library}, devices: 2"));
    for device in [DEVICE, DeviceId(1)] {
        let found = backend.capabilities(device).unwrap();
        let missing = found.iter().filter(|one| !one.available).map(|one| one.feature);
        assert_eq!(
            missing.collect::<Vec<_>>(),
            [Feature::Win32Handle, Feature::FabricHandle, Feature::HostAccess]
        );
    }
    assert_eq!(cuda.violations(), 0);
}

fn driver_of_11_4_is_opened(cuda: &Cuda) {
    assert!(!cuda.has("cuMulticastCreate") && !cuda.has("cuMemGetHandleForAddressRange"));
    assert!(cuda.has("cuMemRetainAllocationHandle") && cuda.has("cuLaunchKernel"));
    let backend = open();
    assert_eq!(backend.driver().version, "11.4");
    let quirks = backend.quirks();
    assert!(!quirks.is_empty() && quirks.iter().all(|quirk| quirk.is_in(11_040)), "{quirks:?}");
    let found = backend.capabilities(DEVICE).unwrap();
    for feature in [Feature::Multicast, Feature::DmaBuf, Feature::FabricHandle] {
        let is_missing =
            |one: &Capability| one.feature == feature && !one.available && one.found_by == Evidence::Version;
        assert!(found.iter().any(is_missing), "{feature}: {found:?}");
    }
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
    region.write_pattern(DEVICE, Bytes::ZERO, UNIT, 1).unwrap();
    assert_eq!(region.count_wrong(DEVICE, Bytes::ZERO, UNIT, 1).unwrap(), 0);
    // The driver knows no location of the host's, and is not asked.
    // SAFETY: a whole unit, which no work uses.
    unsafe {
        let handle = backend.create(UNIT, &Properties::on(DEVICE)).unwrap();
        let mut reservation = backend.reserve(UNIT, backend.granularity().into(), None).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        assert_eq!(reservation.access(Bytes::ZERO, DeviceId::HOST).unwrap(), Access::None);
        reservation.unmap(Bytes::ZERO, UNIT).unwrap();
    }
    assert_eq!(cuda.violations(), 0);
}

fn driver_of_11_3_is_refused(_: &Cuda) {
    assert_has(&refused(), &["libgpu_vmm_fake_cuda.so", "CUDA 11.3; 11.4 is the oldest"]);
}

fn driver_without_virtual_memory_is_refused(cuda: &Cuda) {
    assert!(!cuda.has("cuMemCreate") && cuda.has("cuMemAlloc_v2"));
    assert_has(&refused(), &["CUDA 9.0; 11.4 is the oldest"]);
}

fn driver_without_device_says_so(_: &Cuda) {
    // SAFETY: the case's only thread sets it, and nothing reads the environment meanwhile.
    unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "none of them") };
    let error = CudaBackend::open().unwrap_err();
    assert!(matches!(error.detail(), Detail::NoDevice { .. }), "{error}");
    let visible = "CUDA_VISIBLE_DEVICES is \"none of them\"";
    assert_has(&error.to_string(), &["cuInit", "CUDA_ERROR_NO_DEVICE", visible]);
    // SAFETY: as above.
    unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
    let error = refused();
    assert!(!error.contains("CUDA_VISIBLE_DEVICES"), "{error}");
    let is_hidden = ["/proc/driver/nvidia", "/dev/dxg"].iter().all(|path| !Path::new(path).exists());
    assert_eq!(error.contains("; /proc/driver/nvidia is missing"), is_hidden, "{error}");
}

fn not_ready_gets_advice(_: &Cuda) {
    assert_has(&refused(), &["CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager must run"]);
}

fn mismatch_gets_advice(_: &Cuda) {
    assert_has(&refused(), &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "load the module again, or reboot"]);
}

fn a_failed_start_is_tried_again(_: &Cuda) {
    assert_has(&refused(), &["CUDA_ERROR_UNKNOWN"]);
    assert_eq!(open().devices().len(), 2);
}

/// A device that is left out would change the ordinals of those behind it.
fn a_failed_list_is_an_error(_: &Cuda) {
    let error = CudaBackend::open().unwrap_err();
    assert!(matches!(error.detail(), Detail::Driver { .. }), "{error}");
    assert_has(&error.to_string(), &["cuDeviceGet", "CUDA_ERROR_UNKNOWN (999)"]);
    assert_eq!(open().devices().len(), 2);
}

fn a_device_without_a_name(_: &Cuda) {
    let backend = open();
    let [first, second] = backend.devices() else { panic!("{:?}", backend.devices()) };
    assert_has(&first.name, &["a device without a name", "cuDeviceGetName", "CUDA_ERROR_UNKNOWN (999)"]);
    assert!(first.unusable.is_none(), "{:?}", first.unusable);
    assert_has(&second.name, &["fake"]);
}

/// The first device cannot be used, for a reason that has these parts; the second can.
fn an_unusable_device(parts: &[&str]) {
    let backend = open();
    let [first, second] = backend.devices() else { panic!("{:?}", backend.devices()) };
    assert_has(first.unusable.as_deref().expect("a reason"), parts);
    let total = if parts[0] == "cuDeviceTotalMem_v2" { Bytes::ZERO } else { Bytes::gib(4) };
    assert_eq!((first.total_memory, first.granularity.bytes()), (total, Bytes::mib(2)));
    assert!(second.unusable.is_none(), "{:?}", second.unusable);
    let error = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap_err();
    assert_has(&error.to_string(), &["device 0", parts[0]]);
    let error = backend.granularity_of(Operation::Allocate, &Properties::on(DEVICE)).unwrap_err();
    assert_has(&error.to_string(), &["device 0", parts[0]]);
    // No capability of it is tried, and memory is page-locked in a context of the other.
    let found = backend.capabilities(DEVICE).unwrap();
    assert!(matches!(&*found, [only] if !only.available && only.note.contains(parts[0])), "{found:?}");
    drop(backend.pin(UNIT).unwrap());
}

fn a_device_without_virtual_memory(_: &Cuda) {
    let backend = open();
    let reason = backend.devices()[0].no_virtual_memory.clone().expect("a reason");
    assert_has(&reason, &["VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0"]);
    // No call that the driver would refuse is made.
    let error = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap_err();
    assert_has(&error.to_string(), &["device 0 has no virtual memory management", &reason]);
    let mut region = Region::builder(&backend).build().unwrap();
    region.grow_to(UNIT).unwrap();
    region.write(Bytes(0), b"plain").unwrap();
    assert_eq!(region.grow_to(UNIT + UNIT).unwrap().how, GrowthKind::Copied);
    let mut bytes = [0; 5];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"plain");
}

fn short_memory_has_numbers(_: &Cuda) {
    let backend = open();
    let error = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap_err();
    let Detail::OutOfMemory { requested, free, total, source, .. } = error.detail() else {
        panic!("{error}")
    };
    assert_eq!((*requested, *total), (UNIT, Bytes::gib(4)));
    assert!(*free > Bytes::gib(3) && *free < *total);
    assert_eq!((source.call, source.code), ("cuMemCreate", 2));
}

/// A device without memory for a context reports no numbers.
fn short_memory_without_a_context(cuda: &Cuda) {
    let backend = open();
    let held = PhysicalMemory::create(&backend, Bytes::mib(32), Properties::on(DEVICE)).unwrap();
    let error = PhysicalMemory::create(&backend, Bytes::mib(64), Properties::on(DEVICE)).unwrap_err();
    let Detail::OutOfMemory { free, total, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*free, *total), (Bytes::ZERO, Bytes::mib(64)));
    drop(held);
    assert_eq!(cuda.counts().contexts, 0);
}

/// The driver needs memory of the device for page tables, too.
fn short_growth_has_numbers(call: &str) {
    let backend = open();
    let mut region = Region::builder(&backend).on(DeviceId(1)).reserve(UNIT).build().unwrap();
    let error = region.grow_to(UNIT).unwrap_err();
    let Detail::OutOfMemory { device, requested, free, total, source } = error.detail() else {
        panic!("{error}")
    };
    assert_eq!((*device, *requested, *total, source.call), (DeviceId(1), UNIT, Bytes::gib(4), call));
    assert!(*free > Bytes::gib(3) && *free < *total, "{error}");
}

/// Grows a region by one unit, and returns the error.
fn failed_growth(backend: &CudaBackend) -> Error {
    let mut region = Region::builder(backend).reserve(UNIT).build().unwrap();
    let error = region.grow_to(UNIT).unwrap_err();
    assert_eq!(region.end(), Bytes::ZERO);
    error
}

fn error_has_the_drivers_name(_: &Cuda) {
    let error = failed_growth(&open());
    assert!(matches!(error.detail(), Detail::Driver { .. }), "{error}");
    let parts = ["cuMemMap", "CUDA_ERROR_UNKNOWN (999)", "unknown error", "(32 MiB), device 0"];
    assert_has(&error.to_string(), &parts);
}

fn error_without_a_name_has_its_number(_: &Cuda) {
    assert_has(
        &failed_growth(&open()).to_string(),
        &["cuMemMap", "a code without a name in this driver (987)"],
    );
}

fn dead_device_is_reported(_: &Cuda) {
    let backend = open();
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
    let error = region.fill(Bytes::ZERO, UNIT, 1).unwrap_err();
    assert!(matches!(error.detail(), Detail::DeviceLost { .. }), "{error}");
    assert_has(&error.to_string(), &["cuStreamSynchronize", "CUDA_ERROR_LAUNCH_FAILED"]);
}

fn nothing_is_left(cuda: &Cuda) {
    let backend = open();
    let before = backend.memory_info(DEVICE).unwrap().free;
    drop(failed_growth(&backend));
    cuda.check_what_is_left();
    assert_eq!(backend.memory_info(DEVICE).unwrap().free, before);
    assert_eq!((cuda.violations(), backend.drop_log().count()), (0, 0));
    // And it continues to work.
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
}

fn a_destructor_that_fails_is_logged(cuda: &Cuda) {
    let backend = open();
    let memory = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap();
    drop(memory);
    let error = backend.drop_log().take_last().expect("an entry");
    let parts =
        ["release", "cuMemRelease", "CUDA_ERROR_INVALID_VALUE", "32 MiB of device memory of device 0"];
    assert_has(&error.to_string(), &parts);
    // The call did nothing: the handle still exists, as the only one.
    assert_eq!(cuda.counts().handles, 1);
    cuda.release(0x1_0000);
}

fn undestroyed_addresses_and_streams_are_logged(cuda: &Cuda) {
    let backend = open();
    // SAFETY: whole units.
    let reservation = unsafe { backend.reserve(UNIT, backend.granularity().into(), None) }.unwrap();
    let base = reservation.range().base;
    drop(reservation);
    let error = backend.drop_log().take_last().expect("an entry");
    assert_has(&error.to_string(), &["cuMemAddressFree", "CUDA_ERROR_INVALID_VALUE", &base.to_string()]);
    cuda.free(base.0 as usize, UNIT.0 as usize);
    drop(backend.copy_stream(DEVICE).unwrap());
    let error = backend.drop_log().take_last().expect("an entry");
    assert_has(&error.to_string(), &["cuStreamDestroy_v2", "CUDA_ERROR_INVALID_VALUE"]);
    // The stream ends with its context.
    assert_eq!((cuda.counts().streams, backend.drop_log().count()), (1, 2));
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
}

/// A trial needs memory of the device, so that none would succeed when all of it is in use.
fn capabilities_are_found_out_once(cuda: &Cuda) {
    let backend = open();
    cuda.enter(DEVICE.0 as usize);
    let found = backend.capabilities(DEVICE).unwrap();
    let all = cuda.create(DEVICE.0, cuda.free_memory());
    assert_eq!(backend.memory_info(DEVICE).unwrap().free, Bytes::ZERO);
    assert_eq!(format!("{:?}", backend.capabilities(DEVICE).unwrap()), format!("{found:?}"));
    cuda.release(all);
    assert_eq!(cuda.violations(), 0);
}

fn unreachable_device_is_no_peer(cuda: &Cuda) {
    let backend = open();
    let reaches = |device, owner| backend.can_access(device, owner).unwrap();
    assert!(reaches(DEVICE, DEVICE) && !reaches(DEVICE, DeviceId(1)) && !reaches(DeviceId(1), DEVICE));
    let found = backend.capabilities(DEVICE).unwrap();
    let none = "no other device can be reached";
    assert!(found.iter().any(|one| one.feature == Feature::PeerAccess && one.note == none), "{found:?}");
    let builder = Region::builder(&backend).on(DEVICE).reserve(UNIT);
    let grown = builder.access(DeviceId(1), Access::Read).build().and_then(|mut region| region.grow_to(UNIT));
    assert!(grown.is_err());
    assert_eq!(cuda.violations(), 0);
}

/// The first device can access memory of the second one, and not the reverse.
fn peer_access_can_be_one_way(cuda: &Cuda) {
    let (backend, other) = (open(), DeviceId(1));
    let grown = |owner, device| {
        let builder = Region::builder(&backend).on(owner).reserve(UNIT);
        builder.access(device, Access::Read).build().and_then(|mut region| region.grow_to(UNIT))
    };
    grown(other, DEVICE).unwrap();
    let error = grown(DEVICE, other).unwrap_err();
    let Detail::PeerUnreachable { device, owner } = error.detail() else { panic!("{error}") };
    assert_eq!((*device, *owner), (other, DEVICE));
    for (device, peers) in [(DEVICE, true), (other, false)] {
        let found = backend.capabilities(device).unwrap();
        let is_peer = |one: &Capability| one.feature == Feature::PeerAccess && one.available == peers;
        assert!(found.iter().any(is_peer), "{device}: {found:?}");
    }
    assert_eq!(cuda.violations(), 0);
}

/// Work is slow here, so that a call that does not wait returns before its work is done.
fn calls_wait_for_their_work(_: &Cuda) {
    let backend = open();
    let mut region = Region::builder(&backend).reserve(UNIT).build().unwrap();
    region.grow_to(UNIT).unwrap();
    let done = |result: Result<()>| {
        result.unwrap();
        let began = std::time::Instant::now();
        backend.synchronize(DEVICE).unwrap();
        assert!(began.elapsed() < std::time::Duration::from_millis(40), "something was still running");
    };
    done(region.fill(Bytes::ZERO, UNIT, 1));
    done(region.write(Bytes::ZERO, b"bytes"));
    let (from, half) = (region.address(), Bytes(UNIT.0 / 2));
    // SAFETY: both halves are mapped.
    done(unsafe { backend.copy(DEVICE, from + half, from, half) });
    done(region.write_pattern(DEVICE, Bytes::ZERO, UNIT, 1));
    // Unmapping right after it causes no fault.
    let _ = region.shrink_to(Bytes::ZERO, WaitFor::all_devices()).unwrap();
    backend.synchronize(DEVICE).unwrap();
}

/// Of the two in the error, the handle is the foreign one.
fn a_handle_of_another_vendor_is_refused(_: &Cuda) {
    let (cuda, host) = (AnyBackend::from(open()), AnyBackend::open(Vendor::Host).unwrap());
    // SAFETY: whole units; nothing is mapped.
    unsafe {
        let handle = host.create(UNIT, &Properties::on(DEVICE)).unwrap();
        let mut reservation = cuda.reserve(UNIT, cuda.granularity().into(), None).unwrap();
        let error = reservation.map(Bytes::ZERO, &handle).unwrap_err();
        let Detail::ForeignHandle { theirs, ours } = error.detail() else { panic!("{error}") };
        assert!(theirs.contains("HostHandle") && ours.contains("CudaReservation"), "{error}");
    }
}

/// Static variables of C and C++ programs, and exit handlers, run after the driver has shut down: gpu-vmm calls it no more, and
/// destructors do nothing.
fn ending_after_the_driver_succeeds(cuda: &Cuda) {
    type Left = (PhysicalMemory<CudaBackend>, Box<dyn Pinned>, Box<dyn CopyStream>, CudaBackend);
    static LEFT: Mutex<Option<Left>> = Mutex::new(None);
    extern "C" fn at_exit() {
        let left = LEFT.lock().unwrap().take();
        let Some((memory, pinned, copy_stream, backend)) = left else { return };
        let late = backend.synchronize(DEVICE).map_err(|error| error.kind());
        drop((memory, pinned, copy_stream));
        let code = match backend.drop_log().take_last() {
            _ if late != Err(ErrorKind::Exiting) => 2,
            None => 0,
            Some(_) => 1,
        };
        // SAFETY: ends the process with the result.
        unsafe { libc::_exit(code) }
    }
    // Registered before the driver's own handler, so it runs after that.
    // SAFETY: the handler is a function of this program.
    unsafe { libc::atexit(at_exit) };
    let backend = open();
    let memory = PhysicalMemory::create(&backend, UNIT, Properties::on(DEVICE)).unwrap();
    let (pinned, copy_stream) = (backend.pin(UNIT).unwrap(), backend.copy_stream(DEVICE).unwrap());
    *LEFT.lock().unwrap() = Some((memory, pinned, copy_stream, backend));
    let counts = cuda.counts();
    assert_eq!([counts.handles, counts.pinned, counts.streams], [1; 3]);
    println!("DONE");
    std::process::exit(1)
}

/// The program has started the driver, and gpu-vmm learns of it in the child alone. Host memory does not replace the GPU.
fn forked_child_cannot_open(cuda: &Cuda) {
    cuda.init();
    in_child(|| {
        let is_forked = |opened: Result<Vendor>| opened.is_err_and(|error| error.kind() == ErrorKind::Forked);
        is_forked(CudaBackend::open().map(|backend| backend.vendor()))
            && is_forked(AnyBackend::open_best().map(|backend| backend.vendor()))
            && AnyBackend::open(Vendor::Host).is_ok()
            && cuda.violations() == 0
    });
    assert_eq!(AnyBackend::open_best().unwrap().vendor(), Vendor::Cuda);
}

/// The best backend is host memory in both: not because of the fork.
fn forked_child_of_process_without_device(_: &Cuda) {
    let without = || {
        let opened = CudaBackend::open().map_err(|error| error.kind());
        let best = AnyBackend::open_best().map(|backend| backend.vendor());
        matches!(opened, Err(ErrorKind::NoSuchDevice)) && best.is_ok_and(|vendor| vendor == Vendor::Host)
    };
    assert!(without());
    in_child(without);
}

/// Runs a check in a forked child.
fn in_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child opens backends, which takes no lock of this single-threaded process, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = check();
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and the pointer is valid for one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the check in the child does not hold");
}

/// Runs a handler while the process exits, which ends the process with its result: 0 for success.
fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler is a function of this program.
    unsafe { libc::atexit(handler) };
}

/// The driver was never opened before.
fn opening_fails_after_driver(cuda: &Cuda) {
    extern "C" fn open_late() {
        let kinds = [CudaBackend::open().map(drop), AnyBackend::open_best().map(drop)]
            .map(|opened| opened.map_err(|error| error.kind()));
        // SAFETY: ends the process with the result.
        unsafe { libc::_exit(i32::from(kinds != [Err(ErrorKind::Exiting); 2])) }
    }
    // Before the driver's own handler, so it runs after that.
    at_exit(open_late);
    cuda.init();
    println!("DONE");
    std::process::exit(1)
}

/// A handler that was registered after the driver was started runs before the driver ends, and after the thread's locals.
fn driver_works_after_locals(cuda: &Cuda) {
    extern "C" fn call() {
        let cuda = Cuda::load();
        let mut context = 0usize;
        let answers = [
            cuda.call("cuDevicePrimaryCtxRetain", &[(&raw mut context).addr(), 0]),
            cuda.call("cuCtxPushCurrent_v2", &[context]),
            cuda.call("cuStreamSynchronize", &[2]),
            cuda.call("cuCtxPopCurrent_v2", &[0]),
        ];
        // SAFETY: ends the process with the result.
        unsafe { libc::_exit(i32::from(answers != [0; 4])) }
    }
    cuda.init();
    at_exit(call);
    // The thread's locals exist.
    cuda.enter(0);
    cuda.ok("cuStreamSynchronize", &[2]);
    println!("DONE");
    std::process::exit(1)
}
