//! The backend that is chosen at run time: each function returns what the vendor's own backend returns, on the fake driver and on
//! host memory.

use crate::rig::Cuda;
use gpu_vmm::AnyBackend;
use gpu_vmm::host::HostConfig;
use gpu_vmm_core::multicast::{MulticastBackend, MulticastDriver};
use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, Detail, DeviceId, FabricHandle, Grant, Handle, HandleTypes,
    Location, MemoryCalls, Operation, Properties, Reservation, Result, Stream, Vendor,
};
use gpu_vmm_cuda::{CudaBackend, MaybeCuda};
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{CaptureMode, TestKit};
use std::fmt::Debug;
use std::os::fd::AsFd;

cases! {
    any_backend_reports_the_same [P2P = "higher"];
    any_backend_reports_the_hosts_values;
    any_backend_acts_as_the_cuda_backend [P2P = "higher", FABRIC = "1"];
    any_backend_acts_as_the_host_backend;
    any_multicast_refuses_another_vendors_handles;
    any_backend_has_the_chosen_backend;
    the_best_backend_has_a_usable_device [GPUS = "1", FAIL = "cuDeviceTotalMem_v2:1:999"] => |_| {
            let unusable = open();
            assert!(unusable.devices().iter().all(|device| device.unusable.is_some()));
            assert_eq!(AnyBackend::open(Vendor::Cuda).unwrap().vendor(), Vendor::Cuda);
            assert_eq!(AnyBackend::open_best().unwrap().vendor(), Vendor::Host);
        };
}

const ONE: DeviceId = DeviceId(0);
const TWO: DeviceId = DeviceId(1);
const NONE: DeviceId = DeviceId(2);
const DEVICES: [DeviceId; 3] = [ONE, TWO, NONE];
const UNIT: Bytes = Bytes::mib(32);
const BOTH: Bytes = Bytes::mib(64);

/// Adds what a call returned.
fn told<T: Debug>(all: &mut Vec<String>, call: &str, result: Result<T>) {
    all.push(format!("{call}: {:?}", result.map_err(|error| error.to_string())));
}

/// Returns what can be known of a handle of any vendor.
fn seen(handle: &impl Handle) -> (Bytes, Properties) {
    (handle.size(), handle.properties())
}

fn open() -> CudaBackend {
    CudaBackend::open().unwrap()
}

/// Returns a host backend whose properties differ from the default.
fn host() -> gpu_vmm::host::HostBackend {
    let config = HostConfig::new().devices(2).memory(Bytes::gib(1)).host_granularity(Bytes::mib(8));
    config.without_peers().unmapping_singly().open().unwrap()
}

/// Returns the results of all functions that only report.
fn reported(backend: &impl TestKit) -> Vec<String> {
    let here = Properties::on(ONE).located(Location::Host);
    let mut all = vec![
        format!("{:?} {:?} {:?}", backend.vendor(), backend.instance(), backend.driver()),
        format!("{:?} {:?}", backend.granularity(), backend.reservation_unit()),
        format!("{:?} {:?}", backend.devices(), backend.quirks()),
        format!("{} {:p} {:p}", backend.unmaps_runs(), backend.deferred(), backend.drop_log()),
        format!("{} {}", backend.queries_spoil_captures(), backend.pattern_by()),
        format!("{:?}", backend.per_thread_stream()),
    ];
    for properties in [Properties::on(ONE), here, Properties::on(NONE)] {
        told(&mut all, "granularity_of", backend.granularity_of(Operation::QueryGranularity, &properties));
        told(&mut all, "host access", backend.check_host_access(Operation::QueryAccess, &properties));
    }
    // SAFETY: whole units of a device that exists.
    let held = unsafe { backend.create(UNIT, &Properties::on(TWO)) }.unwrap();
    for device in DEVICES {
        told(&mut all, "memory_info", backend.memory_info(device));
        told(&mut all, "capabilities", backend.capabilities(device));
        for owner in DEVICES {
            told(&mut all, "can_access", backend.can_access(device, owner));
        }
    }
    let free = |device| backend.memory_info(device).unwrap().free;
    assert_ne!(free(ONE), free(TWO), "the devices differ");
    drop(held);
    all
}

/// On CUDA the granularity of memory and the unit of addresses differ, and so do the devices: the first one can access the
/// second's memory, and not the reverse.
fn any_backend_reports_the_same(_: &Cuda) {
    let backend = open();
    let own = reported(&backend);
    assert_eq!(reported(&AnyBackend::from(backend.clone())), own);
    assert_ne!(backend.granularity(), backend.reservation_unit());
    assert!(backend.can_access(ONE, TWO).unwrap() && !backend.can_access(TWO, ONE).unwrap());
}

fn any_backend_reports_the_hosts_values(_: &Cuda) {
    let backend = host();
    let own = reported(&backend);
    assert_eq!(reported(&AnyBackend::from(backend.clone())), own);
    assert!(!backend.unmaps_runs());
}

/// Returns the results of all functions that create or change something. They take the second of two devices, and each number
/// that they take differs from the others.
fn acted<B: TestKit + MulticastBackend>(backend: &B, hint: Address) -> Vec<String> {
    let mut all = Vec::new();
    on_memory(&mut all, backend, hint);
    on_streams(&mut all, backend);
    on_objects(&mut all, backend);
    all
}

fn on_memory<B: TestKit>(all: &mut Vec<String>, backend: &B, hint: Address) {
    let there = Properties::on(TWO).shareable();
    let fabric = Properties::on(TWO).exported_as(HandleTypes::FABRIC);
    // SAFETY: whole units, of devices that exist or are refused; each mapping is removed before its reservation ends, and work
    // has ended before that.
    unsafe {
        told(all, "create", backend.create(BOTH, &Properties::on(NONE)).map(drop));
        let handle = backend.create(BOTH, &there).unwrap();
        all.push(format!("{:?}", seen(&handle)));
        let fd = handle.export().unwrap();
        told(all, "import", backend.import(fd.as_fd(), BOTH, &there).map(|handle| seen(&handle)));
        told(all, "import", backend.import(fd.as_fd(), BOTH, &Properties::on(NONE)).map(drop));
        let offered = backend.create(BOTH, &fabric).and_then(|memory| Ok((memory.export_fabric()?, memory)));
        let name = offered.as_ref().map_or(FabricHandle([7; FabricHandle::LENGTH]), |(name, _)| *name);
        told(all, "export_fabric", handle.export_fabric().map(drop));
        for size in [BOTH, UNIT] {
            let imported = backend.import_fabric(&name, size, &fabric);
            told(all, "import_fabric", imported.map(|handle| seen(&handle)));
        }
        told(all, "offered", offered.map(drop));

        let unit = Alignment::from(backend.granularity());
        let far = Alignment::new(Bytes::gib(16)).unwrap();
        let aligned = backend.reserve(UNIT, far, None).unwrap();
        assert!(aligned.range().base.is_aligned_to(Bytes::gib(16)), "{:?}", aligned.range());
        let mut reservation = backend.reserve(Bytes::mib(128), unit, Some(hint)).unwrap();
        let range = reservation.range();
        all.push(format!("{range}"));
        assert_eq!(range.base, hint, "these addresses are free");
        reservation.map(UNIT, &handle).unwrap();
        let grant = |device, access| Grant { device, access };
        reservation.set_access(UNIT, BOTH, &[grant(TWO, Access::ReadWrite)]).unwrap();
        told(all, "set_access", reservation.set_access(UNIT, BOTH, &[grant(ONE, Access::Read)]));
        for device in DEVICES {
            told(all, "access", reservation.access(UNIT, device));
            told(all, "dma_buf", reservation.dma_buf(device, UNIT, UNIT).map(drop));
        }
        told(all, "dma_buf", reservation.dma_buf(TWO, UNIT, Bytes(1)).map(drop));
        on_bytes(all, backend, range.base + UNIT);
        told(all, "unmap", reservation.unmap(UNIT, BOTH));
        told(all, "return_memory", reservation.return_memory());
        told(all, "regain", reservation.regain());
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.unmap(Bytes::ZERO, BOTH).unwrap();

        let at = backend.allocate_plain(TWO, UNIT).unwrap();
        all.push(format!("plain: {:?}", DEVICES.map(|device| backend.memory_info(device).ok())));
        told(all, "free_plain", backend.free_plain(TWO, at, UNIT));
        told(all, "allocate_plain", backend.allocate_plain(NONE, UNIT));
    }
    told(all, "pin", backend.pin(Bytes(12_345)).map(|pinned| pinned.size()));
}

/// Bytes that a device writes and reads, and those that a device must not.
///
/// # Safety
///
/// The second device has 64 MiB of memory there, and may write it.
unsafe fn on_bytes(all: &mut Vec<String>, backend: &impl TestKit, at: Address) {
    // SAFETY: the caller promises it.
    unsafe {
        for device in [TWO, NONE] {
            told(all, "copy_from_host", backend.copy_from_host(device, at, b"0123456789abcdef"));
            told(all, "copy", backend.copy(device, at + Bytes(32), at + Bytes(8), Bytes(4)));
            told(all, "fill", backend.fill(device, at + Bytes(2), Bytes(3), b'x'));
            let mut bytes = [0; 40];
            told(all, "copy_to_host", backend.copy_to_host(device, &mut bytes, at));
            all.push(format!("{bytes:?}"));
            // The first of two nodes, each the next one's address and a value.
            let nodes = [at.0 + 16, 5, 0, 7].map(u64::to_ne_bytes);
            told(all, "copy_from_host", backend.copy_from_host(device, at, nodes.as_flattened()));
            for most in [1, 9] {
                told(all, "walk_list", backend.walk_list(device, at, most));
            }
            told(all, "write_pattern", backend.write_pattern(device, at, Bytes(64), 3));
            for (length, seed) in [(Bytes(64), 3), (Bytes(72), 3), (Bytes(64), 4)] {
                told(all, "count_wrong", backend.count_wrong(device, at, length, seed));
            }
            let own = backend.own_stream(TWO).unwrap();
            let started = backend.start_pattern_on(device, own.stream(), at, Bytes(80), 11, 2);
            told(all, "start_pattern_on", started);
            told(all, "synchronize_stream", backend.synchronize_stream(TWO, own.stream()));
            for (length, seed) in [(Bytes(80), 11), (Bytes(88), 11), (Bytes(80), 12)] {
                told(all, "count_wrong", backend.count_wrong(TWO, at, length, seed));
            }
        }
    }
}

fn on_streams<B: TestKit>(all: &mut Vec<String>, backend: &B) {
    for device in DEVICES {
        told(all, "synchronize", backend.synchronize(device));
        told(all, "synchronize_stream", backend.synchronize_stream(device, Stream::DEFAULT));
        told(all, "copy_stream", backend.copy_stream(device).map(drop));
        told(all, "own_stream", backend.own_stream(device).map(|one| one.context().is_some()));
        told(all, "blocking_stream", backend.blocking_stream(device).map(|one| one.context().is_some()));
        told(all, "stream_elsewhere", backend.stream_elsewhere(device).map(|one| one.context().is_some()));
        told(all, "event", backend.event(device).map(drop));
    }
    let own = backend.own_stream(TWO).unwrap();
    let kind = |result: Result<()>| result.map_err(|error| (error.operation(), error.kind()));
    for device in [ONE, TWO] {
        let mut event = backend.event(device).unwrap();
        all.push(format!("record: {:?}", kind(event.record(own.stream()))));
    }
    let mut calls = 0;
    for stream in backend.stream_elsewhere(TWO).into_iter().chain([backend.own_stream(TWO).unwrap()]) {
        told(all, "in_context_of", backend.in_context_of(stream.as_ref(), &mut || calls += 1));
        for device in [TWO, NONE] {
            // SAFETY: the backend ends before the stream.
            let opened = unsafe { backend.open_in_context_of(device, stream.as_ref()) };
            told(all, "open_in_context_of", opened.map(|opened| opened.vendor()));
        }
    }
    all.push(format!("{calls} calls"));
    // SAFETY: nothing is captured.
    let refused = unsafe { backend.begin_capture(NONE, Stream::DEFAULT, CaptureMode::Relaxed) };
    told(all, "begin_capture", refused);
    told(all, "end_capture", backend.end_capture(NONE, Stream::DEFAULT).map(drop));
    // On CUDA, work on the default stream would invalidate the capture of a blocking stream alone.
    for captured in [own, backend.blocking_stream(TWO).unwrap()] {
        // SAFETY: the capture is ended below, and nothing is captured.
        unsafe { backend.begin_capture(TWO, captured.stream(), CaptureMode::Relaxed) }.unwrap();
        for stream in [captured.stream(), Stream::DEFAULT] {
            told(all, "is_capturing", backend.is_capturing(stream));
        }
        all.push(format!("{:?}", kind(backend.synchronize_stream(TWO, captured.stream()))));
        told(all, "end_capture", backend.end_capture(TWO, captured.stream()).map(drop));
        told(all, "is_capturing", backend.is_capturing(captured.stream()));
    }
}

fn on_objects<B: TestKit + MulticastBackend>(all: &mut Vec<String>, backend: &B) {
    let operation = Operation::QueryGranularity;
    let driver = match backend.multicast(operation) {
        Ok(driver) => driver,
        Err(error) => return all.push(error.to_string()),
    };
    let shared = Properties::on(TWO).shareable();
    let fabric = Properties::on(TWO).exported_as(HandleTypes::FABRIC);
    for device in DEVICES {
        told(all, "check_device", driver.check_device(operation, device));
    }
    for (devices, size) in [(2, BOTH), (17, BOTH), (2, Bytes(0))] {
        told(all, "granularity", driver.granularity(operation, devices, size, &shared));
    }
    // SAFETY: the numbers are right, or the driver refuses them without an effect.
    unsafe {
        told(all, "create", driver.create(17, BOTH, &shared).map(drop));
        told(all, "create", driver.create(2, Bytes(12_345), &shared).map(drop));
        let object = driver.create(2, BOTH, &shared).unwrap();
        all.push(format!("{:?}", seen(&object)));
        let fd = object.export().unwrap();
        told(all, "import", driver.import(fd.as_fd(), BOTH, &shared).map(|handle| seen(&handle)));
        let name = FabricHandle([7; FabricHandle::LENGTH]);
        told(all, "import_fabric", driver.import_fabric(&name, BOTH, &fabric).map(drop));
        for device in DEVICES {
            told(all, "add", driver.add(&object, device));
        }
        let memory = backend.create(BOTH, &shared).unwrap();
        let (first, second, third) = (Bytes::mib(4), Bytes::mib(8), Bytes::mib(16));
        told(all, "bind", driver.bind(&object, first + Bytes(1), &memory, second, third));
        told(all, "bind", driver.bind(&object, first, &memory, second, third));
        told(all, "unbind", driver.unbind(&object, TWO, first, second));
        told(all, "unbind", driver.unbind(&object, TWO, second, third));
        told(all, "unbind", driver.unbind(&object, TWO, first, third));
    }
}

/// Checks that both act alike. The addresses are the same each time, `away` from those that the driver would choose.
fn check_acts<B: TestKit + MulticastBackend>(backend: &B, away: i64)
where
    AnyBackend: From<B>,
{
    // SAFETY: whole units.
    let chosen = unsafe { backend.reserve(UNIT, backend.granularity().into(), None) }.unwrap().range().base;
    let hint = Address(chosen.0.checked_add_signed(away).unwrap());
    let own = acted(backend, hint);
    assert_eq!(acted(&AnyBackend::from(backend.clone()), hint), own);
}

fn any_backend_acts_as_the_cuda_backend(_: &Cuda) {
    check_acts(&open(), 4 << 30);
}

fn any_backend_acts_as_the_host_backend(_: &Cuda) {
    check_acts(&host(), -(64 << 30));
}

/// Each call with a handle of another vendor's names its operation, and both sides.
fn any_multicast_refuses_another_vendors_handles(cuda: &Cuda) {
    let (shared, host) = (Properties::on(TWO).shareable(), AnyBackend::from(host()));
    let backend = AnyBackend::from(open());
    let driver = backend.multicast(Operation::QueryGranularity).unwrap();
    // SAFETY: whole units; the calls with a handle of another vendor's are refused.
    unsafe {
        let theirs = host.create(UNIT, &shared).unwrap();
        let (object, memory) =
            (driver.create(2, UNIT, &shared).unwrap(), backend.create(UNIT, &shared).unwrap());
        for (operation, answer) in [
            (Operation::AddDevice, driver.add(&theirs, TWO)),
            (Operation::Bind, driver.bind(&theirs, Bytes::ZERO, &memory, Bytes::ZERO, UNIT)),
            (Operation::Bind, driver.bind(&object, Bytes::ZERO, &theirs, Bytes::ZERO, UNIT)),
            (Operation::Unbind, driver.unbind(&theirs, TWO, Bytes::ZERO, UNIT)),
        ] {
            let error = answer.unwrap_err();
            let Detail::ForeignHandle { theirs, ours } = error.detail() else { panic!("{error}") };
            assert_eq!(error.operation(), operation, "{error}");
            assert!(theirs.contains("Host(") && ours.starts_with("Cuda("), "{error}");
        }
    }
    assert_eq!(cuda.violations(), 0);
}

fn any_backend_has_the_chosen_backend(_: &Cuda) {
    let backend = open();
    let (chosen, other) = (AnyBackend::from(backend.clone()), AnyBackend::from(host()));
    assert_eq!(chosen.as_cuda().map(Backend::instance), Some(backend.instance()));
    assert!(other.as_cuda().is_none());
}
