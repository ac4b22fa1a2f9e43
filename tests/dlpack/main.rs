//! Parts of a region as tensors for other libraries, on host memory: the consumer's view, its lifetime, and refused requests.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // whatever is not as expected is a failure
#![allow(unsafe_code)]

mod answers;

use gpu_vmm::dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLPackVersion, LegacyTensor, Tensor, TensorRegion,
    TensorView,
};
use gpu_vmm::host::{HostBackend, HostConfig};
use gpu_vmm::{
    Access, Backend, BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, Detail, DeviceId,
    Error, ErrorKind, GrowthKind, Operation, PhysicalMemory, Properties, Region, WaitFor,
};
use gpu_vmm_testkit::FaultInject;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

type Machine = FaultInject<HostBackend>;

const GRANULE: Bytes = Bytes::mib(2);
const IDLE: WaitFor<'static> = WaitFor::all_devices();

fn machine() -> Machine {
    FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap())
}

/// Creates a region with `granules` of its eight granules mapped.
fn region(machine: &Machine, granules: u64) -> Region<Machine> {
    let mut region = Region::builder(machine).reserve(Bytes(8 * GRANULE.0)).build().unwrap();
    region.grow_to(Bytes(granules * GRANULE.0)).unwrap();
    region
}

fn shared(machine: &Machine, granules: u64) -> TensorRegion<Machine> {
    TensorRegion::new(region(machine, granules))
}

fn bytes_view(offset: u64, length: i64) -> TensorView {
    TensorView::new(Bytes(offset), DLDataType::U8, [length])
}

/// Reads a tensor's data.
fn data<const N: usize>(data: *const std::ffi::c_void) -> [u8; N] {
    // SAFETY: each test reads its own tensor, in host memory.
    unsafe { data.cast::<[u8; N]>().read() }
}

fn sizes(pointer: *const i64, ndim: i32) -> Vec<i64> {
    // SAFETY: a tensor of a region has `ndim` numbers in its shape and its strides.
    unsafe { std::slice::from_raw_parts(pointer, ndim as usize) }.to_vec()
}

fn text<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

fn assert_nothing_left(machine: &Machine) {
    let live = machine.live();
    assert_eq!((live.handles, live.reservations, live.mappings), (0, 0, 0), "{live:?}");
}

#[test]
fn tensor_outlives_its_regions_owners() {
    let machine = machine();
    let shared = shared(&machine, 1);
    shared.write(Bytes(4096), b"kept").unwrap();
    let view = TensorView::new(Bytes(4096), DLDataType::F32, [2, 3]);
    let tensor = shared.dlpack(None, &view).unwrap();
    assert_eq!(shared.exports(), 1);
    assert_eq!(tensor.version(), DLPackVersion { major: 1, minor: 0 });
    assert!(!tensor.is_read_only());

    let seen = *tensor.dl_tensor();
    assert_eq!(seen.data as u64, shared.with(Region::address).unwrap().0 + 4096);
    assert_eq!(seen.byte_offset, 0);
    assert_eq!(seen.device, DLDevice { device_type: DLDeviceType::CPU, device_id: 0 });
    assert_eq!(seen.dtype, DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 });
    assert_eq!(sizes(seen.shape, seen.ndim), [2, 3]);
    assert_eq!(sizes(seen.strides, seen.ndim), [3, 1]);
    assert_eq!(&data::<4>(seen.data), b"kept");

    // The region grows, and the tensor keeps its address.
    let grown = shared.grow_to(Bytes(3 * GRANULE.0)).unwrap();
    assert_eq!((grown.how, grown.end), (GrowthKind::Within, Bytes(3 * GRANULE.0)));
    assert_eq!(&data::<4>(seen.data), b"kept");
    shared.write(Bytes(4096), b"anew").unwrap();
    assert_eq!(&data::<4>(seen.data), b"anew");

    // The consumer's writes are in the region.
    // SAFETY: the tensor is writable, and no other code accesses it.
    unsafe { seen.data.cast::<[u8; 4]>().write(*b"back") };
    let mut bytes = [0; 4];
    shared.read(Bytes(4096), &mut bytes).unwrap();
    assert_eq!(&bytes, b"back");

    // It owns the region once all others are gone.
    drop(shared.clone());
    let shared = shared.try_into_region().expect_err("the tensor has the region too");
    drop(shared);
    assert_eq!(machine.live().reservations, 1);
    assert_eq!(&data::<4>(seen.data), b"back");

    let raw = tensor.into_raw();
    assert_eq!(&data::<4>(seen.data), b"back");
    // SAFETY: the structure is valid, and this is the only call of its deleter.
    unsafe {
        let deleter = raw.as_ref().deleter.unwrap();
        deleter(raw.as_ptr());
    }
    assert_nothing_left(&machine);
}

#[test]
fn a_legacy_tensor_does_the_same() {
    let machine = machine();
    let shared = shared(&machine, 1);
    shared.write(Bytes(64), b"kept").unwrap();
    let tensor = shared.dlpack_unversioned(None, &bytes_view(64, 4)).unwrap();
    let seen = *tensor.dl_tensor();
    assert_eq!((seen.ndim, sizes(seen.shape, 1), sizes(seen.strides, 1)), (1, vec![4], vec![1]));
    let raw = tensor.into_raw();
    assert_eq!(shared.exports(), 1);
    drop(shared);
    assert_eq!(&data::<4>(seen.data), b"kept");
    // SAFETY: it was created above, and has no other owner.
    drop(unsafe { LegacyTensor::from_raw(raw) });
    assert_nothing_left(&machine);
}

#[test]
fn memory_is_removed_after_the_last_tensor() {
    let machine = machine();
    let shared = shared(&machine, 1);
    shared.grow_to(Bytes(4 * GRANULE.0)).unwrap();
    let low = shared.dlpack(None, &bytes_view(0, 1)).unwrap();
    let high = shared.dlpack_unversioned(None, &bytes_view(3 * GRANULE.0, 1)).unwrap();
    assert_eq!(
        text(shared.shrink_to(GRANULE, IDLE)),
        "shrink: 2 tensors of this region are still in use elsewhere; drop them first"
    );
    drop(high);
    assert_eq!(
        text(shared.shrink_to(GRANULE, IDLE)),
        "shrink: 1 tensor of this region is still in use elsewhere; drop it first"
    );
    let shrink = |force| {
        shared.change(Operation::Shrink, force, |region| region.shrink_to(Bytes(3 * GRANULE.0), IDLE))
    };
    let error = shrink(false).unwrap_err();
    assert!(matches!(error.detail(), Detail::Exported { count: 1 }), "{error}");
    assert_eq!(shared.with(Region::end).unwrap(), Bytes(4 * GRANULE.0));
    assert_eq!(shrink(true).unwrap().removed, Bytes::ZERO, "the memory is in one handle with what stays");
    // The deleter takes no lock.
    shared.with(|_| drop(low)).unwrap();
    assert_eq!(shared.exports(), 0);
    let _ = shared.shrink_to(GRANULE, IDLE).unwrap();
    let other = shared.clone();
    let shared = shared.try_into_region().expect_err("there is a clone");
    drop(other);
    let region = shared.try_into_region().unwrap();
    assert_eq!(region.mapped(), GRANULE);
    drop(region);
    assert_nothing_left(&machine);
}

/// Calls the region that it observes.
struct Calling(TensorRegion<Machine>, Arc<Mutex<Vec<Detail>>>);

/// Calls another region than the one that it observes.
struct Reading(TensorRegion<Machine>);

impl BackingObserver for Reading {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.read(Bytes(0), &mut [0])?)
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

#[test]
fn observer_can_use_an_unlocked_region() {
    let machine = machine();
    let (observed, other) = (shared(&machine, 1), shared(&machine, 1));
    observed.on_backing_change(Reading(other)).unwrap();
    assert_eq!(observed.shrink_to(Bytes(0), IDLE).unwrap().removed, GRANULE);
}

impl BackingObserver for Calling {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let answers = [self.0.with(Region::address).map(drop), self.0.resume().map(drop)];
        self.1.lock().unwrap().extend(answers.into_iter().map(|answer| answer.unwrap_err().into_detail()));
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {
        self.1.lock().unwrap().push(self.0.grow_to(Bytes(3 * GRANULE.0)).unwrap_err().into_detail());
    }
}

#[test]
fn observer_calling_its_region_gets_an_error() {
    let machine = machine();
    let (shared, answers) = (shared(&machine, 1), Arc::default());
    let observer = shared.on_backing_change(Calling(shared.clone(), Arc::clone(&answers))).unwrap();
    let _ = shared.shrink_to(Bytes(0), IDLE).unwrap();
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| matches!(answer, Detail::Notifying)), "{answers:?}");
    // The observer holds a clone of its own region.
    assert!(shared.remove_observer(observer).unwrap());
    shared.grow_to(GRANULE).unwrap();
    drop(shared);
    assert_nothing_left(&machine);
}

#[test]
fn tensor_is_valid_after_a_resume() {
    let machine = machine();
    let store = BackingStore::pinned(&machine, Bytes::mib(4)).unwrap();
    let shared = shared(&machine, 1);
    shared.grow_to(Bytes(2 * GRANULE.0)).unwrap(); // a separate handle, which can be removed alone
    shared.write(Bytes(8), b"kept").unwrap();
    let tensor = shared.dlpack(None, &bytes_view(8, 4)).unwrap();
    let seen = *tensor.dl_tensor();
    let refused = shared.suspend(&store, IDLE);
    let error = refused.unwrap_err();
    assert_eq!(error.operation(), Operation::Suspend);
    assert!(matches!(error.detail(), Detail::Exported { count: 1 }), "{error}");
    assert_eq!(machine.live().handles, 2);
    assert!(!shared.suspend_exported(&store, IDLE).unwrap().already);
    assert_eq!(machine.live().handles, 0);
    for length in [1, 0] {
        let refused = shared.dlpack(None, &bytes_view(0, length));
        let error = refused.map(drop).unwrap_err();
        assert_eq!(
            (error.operation(), error.kind()),
            (Operation::ExportTensor, ErrorKind::Suspended),
            "{error}"
        );
    }
    assert!(!shared.resume().unwrap().already);
    assert_eq!(&data::<4>(seen.data), b"kept");
    let _ = shared.shrink_exported_to(GRANULE, IDLE).unwrap();
    assert_eq!(&data::<4>(seen.data), b"kept");
    assert_eq!(machine.live().handles, 1);
    drop(tensor);
    assert!(!shared.suspend(&store, IDLE).unwrap().already);
    drop((shared, store));
    assert_nothing_left(&machine);
}

/// A tensor's pointer that is passed to another thread, and to C.
struct Raw(NonNull<gpu_vmm::dlpack::DLManagedTensorVersioned>);
// SAFETY: a deleter may be called from any thread.
unsafe impl Send for Raw {}

#[test]
fn any_thread_may_drop_the_last() {
    let machine = machine();
    let shared = shared(&machine, 1);
    shared.write(Bytes(0), b"kept").unwrap();
    let raw = Raw(shared.dlpack(None, &bytes_view(0, 4)).unwrap().into_raw());
    let tensor = shared.dlpack_unversioned(None, &bytes_view(0, 4)).unwrap();
    let many: Vec<_> = (0..8)
        .map(|_| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
                    assert_eq!(&data::<4>(tensor.dl_tensor().data), b"kept");
                }
            })
        })
        .collect();
    many.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(shared.exports(), 2);
    drop(shared);
    std::thread::spawn(move || {
        assert_eq!(&data::<4>(tensor.dl_tensor().data), b"kept");
        drop(tensor);
        let Raw(raw) = { raw };
        // SAFETY: it was created above, and has no other owner.
        let tensor = unsafe { Tensor::from_raw(raw) };
        assert_eq!(&data::<4>(tensor.dl_tensor().data), b"kept");
    })
    .join()
    .unwrap();
    assert_nothing_left(&machine);
}

#[test]
fn panicking_thread_leaves_the_region_usable() {
    let machine = machine();
    let shared = shared(&machine, 1);
    let other = shared.clone();
    std::thread::spawn(move || other.with(|_| panic!("while it looks"))).join().unwrap_err();
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
    shared.grow_to(Bytes(2 * GRANULE.0)).unwrap();
    drop(tensor);
    assert_eq!(shared.try_into_region().unwrap().end(), Bytes(2 * GRANULE.0));
}

#[test]
fn views_that_are_right() {
    let machine = machine();
    let shared = shared(&machine, 2);
    let end = 2 * GRANULE.0;
    let strided = |shape: &[i64], strides: &[i64]| TensorView {
        strides: Some(strides.to_vec()),
        ..TensorView::new(Bytes(end - 16), DLDataType::F32, shape)
    };
    let compact = |offset: u64, shape: &[i64]| TensorView::new(Bytes(offset), DLDataType::F32, shape);
    let cases: [(TensorView, &[i64]); 12] = [
        (compact(end - 4, &[]), &[]),
        (compact(0, &[2, 512, 1024]), &[524_288, 1024, 1]),
        (compact(end - 16, &[4, 1]), &[1, 1]),
        // Without elements: anywhere in the region, mapped or not, and with the strides of size 1.
        (compact(0, &[0]), &[1]),
        (compact(8 * GRANULE.0, &[3, 0, 2]), &[2, 2, 1]),
        (compact(4 * GRANULE.0, &[i64::MAX, 0]), &[1, 1]),
        // The farthest element is the last one of the region.
        (strided(&[2, 2], &[2, 1]), &[2, 1]),
        (strided(&[2, 2], &[1, 2]), &[1, 2]),
        (strided(&[4, 1000], &[1, 0]), &[1, 0]),
        (strided(&[2], &[3]), &[3]),
        // In a dimension of size 1, the stride is ignored.
        (strided(&[1, 4], &[-7, 1]), &[-7, 1]),
        (strided(&[4, 0], &[i64::MAX, -1]), &[i64::MAX, -1]),
    ];
    for (view, strides) in cases {
        let tensor = shared.dlpack(None, &view).unwrap_or_else(|error| panic!("{view:?}: {error}"));
        let seen = tensor.dl_tensor();
        assert_eq!(seen.data as u64, shared.with(Region::address).unwrap().0 + view.offset.0, "{view:?}");
        assert_eq!(sizes(seen.shape, seen.ndim), view.shape, "{view:?}");
        assert_eq!(sizes(seen.strides, seen.ndim), strides, "{view:?}");
    }
    let most = TensorView::new(Bytes(0), DLDataType::U8, [1; 32]);
    assert_eq!(shared.dlpack(None, &most).unwrap().dl_tensor().ndim, 32);
    let lanes = DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 3 };
    shared.dlpack(None, &TensorView::new(Bytes(12), lanes, [3])).unwrap();
    assert_eq!(shared.exports(), 0);
}

#[test]
fn views_that_are_wrong_by_themselves() {
    let machine = machine();
    let shared = shared(&machine, 1);
    let right = TensorView::new(Bytes(0), DLDataType::F32, [2, 2]);
    let of = |bits, lanes| DLDataType { code: DLDataTypeCode::FLOAT, bits, lanes };
    let strided = |strides: &[i64]| TensorView { strides: Some(strides.to_vec()), ..right.clone() };
    let shaped = |shape: &[i64]| TensorView { shape: shape.to_vec(), ..right.clone() };
    let far = TensorView { strides: Some(vec![1; 3]), ..shaped(&[2, 2, 2]) };
    let bits = "the bits must be 8 or a multiple of it, and the lanes 1 or more";
    let cases = [
        (TensorView { dtype: of(4, 1), ..right.clone() }, bits),
        (TensorView { dtype: of(12, 1), ..right.clone() }, bits),
        (TensorView { dtype: of(0, 1), ..right.clone() }, bits),
        (TensorView { dtype: of(32, 0), ..right.clone() }, bits),
        (
            TensorView { offset: Bytes(6), ..right.clone() },
            "the offset 6 B is not a multiple of the element's 4 bytes; the next lower multiple is 4 B",
        ),
        (
            TensorView { offset: Bytes(4), dtype: of(32, 2), ..right.clone() },
            "the offset 4 B is not a multiple of the element's 8 bytes; the next lower multiple is 0 B",
        ),
        (shaped(&[1; 33]), "33 dimensions are more than 32"),
        (shaped(&[2, -4]), "dimension 1 has the size -4; it must be zero or more"),
        (strided(&[1]), "there are 1 strides for 2 dimensions; give one for each, or none"),
        (TensorView { shape: vec![2], ..far }, "there are 3 strides for 1 dimensions"),
        (strided(&[2, -1]), "dimension 1 of size 2 has the stride -1, which leads below the offset 0 B"),
        (shaped(&[1 << 32, 1 << 32]), "has more than 2^63 - 1 elements"),
        (shaped(&[i64::MAX, 2, 0]), "has more than 2^63 - 1 elements"),
        (shaped(&[1 << 62]), "reaches over more than 2^64 - 1 bytes"),
        (
            TensorView { shape: vec![3, 3], ..strided(&[i64::MAX, i64::MAX]) },
            "reaches over more than 2^64 - 1 bytes",
        ),
        // A product of 2^64, and a sum of twice 2^63.
        (
            TensorView { shape: vec![(1 << 31) + 1, 1], ..strided(&[1 << 33, 1]) },
            "reaches over more than 2^64 - 1 bytes",
        ),
        (
            TensorView { shape: vec![(1 << 31) + 1; 2], ..strided(&[1 << 32, 1 << 32]) },
            "reaches over more than 2^64 - 1 bytes",
        ),
    ];
    for (view, reason) in cases {
        let refused = shared.dlpack(None, &view);
        assert!(
            matches!(refused.as_ref().map_err(Error::detail), Err(Detail::BadTensor { .. })),
            "{view:?}: {refused:?}"
        );
        let text = text(refused);
        assert!(text.starts_with("export tensor: ") && text.contains(reason), "{view:?}: {text}");
        shared.dlpack_unversioned(None, &view).unwrap_err();
    }
    assert_eq!(shared.exports(), 0);
}

#[test]
fn views_of_what_is_not_there() {
    let machine = machine();
    let mut region = region(&machine, 2);
    let memory = PhysicalMemory::create(&machine, GRANULE, Properties::on(DeviceId(0))).unwrap();
    region.map(Bytes(3 * GRANULE.0), &memory).unwrap();
    region.set_access(Bytes(3 * GRANULE.0), GRANULE, DeviceId(0), Access::ReadWrite).unwrap();
    let shared = TensorRegion::new(region);
    let granule = GRANULE.0 as i64;
    let refused = |view: &TensorView| shared.dlpack(None, view).unwrap_err();

    // One byte after the mapped memory.
    shared.dlpack(None, &bytes_view(1, 2 * granule - 1)).unwrap();
    let error = refused(&bytes_view(1, 2 * granule));
    let hole = Bytes(2 * GRANULE.0);
    assert!(matches!(error.detail(), Detail::NotMapped { hole: at, .. } if *at == hole), "{error}");
    // On both sides of a hole.
    let over = TensorView { strides: Some(vec![3 * granule]), ..bytes_view(1, 2) };
    assert!(
        matches!(refused(&over).detail(), Detail::NotMapped { hole: at, .. } if *at == hole),
        "{}",
        refused(&over)
    );
    shared.dlpack(None, &bytes_view(3 * GRANULE.0, granule)).unwrap();
    // Beyond the addresses.
    let error = refused(&bytes_view(0, 8 * granule + 1));
    assert!(
        matches!(error.detail(), Detail::OutOfRange { limit, .. } if *limit == Bytes(8 * GRANULE.0)),
        "{error}"
    );
    let error = refused(&bytes_view(8 * GRANULE.0 + 1, 0));
    assert!(
        matches!(error.detail(), Detail::OutOfRange { limit, .. } if *limit == Bytes(8 * GRANULE.0)),
        "{error}"
    );
    let error = refused(&bytes_view(u64::MAX, 1));
    assert!(matches!(error.detail(), Detail::Overflow { .. } | Detail::OutOfRange { .. }), "{error}");
    let error = refused(&bytes_view(u64::MAX, 2));
    assert!(matches!(error.detail(), Detail::Overflow { .. }), "{error}");
    assert_eq!(shared.exports(), 0);
}

#[test]
fn poisoned_part_is_in_no_tensor() {
    let machine = machine();
    let mut region = region(&machine, 1);
    // After the wait for the device, the call fails, and so does every call that would undo it.
    machine.set_access_though_failing(true);
    machine.fail(1, 1000);
    let failed = region.set_access(Bytes(0), GRANULE, DeviceId(0), Access::None);
    machine.stop();
    assert!(
        matches!(
            failed.as_ref().map_err(Error::detail),
            Err(Detail::RollbackFailed { .. }) | Err(Detail::Driver { .. })
        ),
        "{failed:?}"
    );
    let poisoned = region.mapping_at(Bytes(0)).is_some_and(|mapping| mapping.poisoned);
    assert!(poisoned, "{failed:?}");
    let refused = TensorRegion::new(region).dlpack(None, &bytes_view(0, 1));
    assert!(matches!(refused.as_ref().map_err(Error::detail), Err(Detail::Poisoned { .. })), "{refused:?}");
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { machine.reclaim() }.unwrap();
}

#[test]
fn a_tensor_is_on_one_device() {
    let machine = machine();
    let (zero, one) = (DeviceId(0), DeviceId(1));
    let mut region = region(&machine, 1);
    region.grow_to_on(one, Bytes(2 * GRANULE.0)).unwrap();
    region.grow_to_on(zero, Bytes(3 * GRANULE.0)).unwrap();
    let shared = TensorRegion::new(region);
    let (on_zero, on_one) = (bytes_view(0, 8), bytes_view(GRANULE.0, 8));
    // The second range ends on the device where it begins: device 0.
    let both = [2, GRANULE.0 as i64 + 2].map(|length| bytes_view(GRANULE.0 - 1, length));

    // Host memory belongs to the only CPU, for every simulated device.
    let cpu = DLDevice { device_type: DLDeviceType::CPU, device_id: 0 };
    for (device, view) in [(None, &on_zero), (Some(zero), &on_zero), (None, &on_one), (Some(one), &on_one)] {
        assert_eq!(shared.dlpack(device, view).unwrap().dl_tensor().device, cpu);
    }
    for both in &both {
        let reason = text(shared.dlpack(None, both));
        assert!(reason.contains("memory of device 0, and from offset 2 MiB on of device 1"), "{reason}");
    }
    for (device, view, owner) in [(one, &on_zero, zero), (zero, &on_one, one), (DeviceId(7), &on_one, one)] {
        let reason = text(shared.dlpack(Some(device), view));
        assert!(reason.contains(&format!("are memory of {owner}, not of {device}")), "{reason}");
    }
    // A tensor without elements is on the device of the memory at its address, or of the region.
    shared.dlpack(Some(one), &bytes_view(GRANULE.0, 0)).unwrap();
    shared.dlpack(Some(zero), &bytes_view(GRANULE.0, 0)).unwrap_err();
    shared.dlpack(Some(zero), &bytes_view(4 * GRANULE.0, 0)).unwrap();
    shared.dlpack(Some(one), &bytes_view(4 * GRANULE.0, 0)).unwrap_err();
    assert_eq!(shared.exports(), 0);
}

#[test]
fn the_access_is_what_the_consumer_needs() {
    let machine = machine();
    let zero = DeviceId(0);
    let mut region = region(&machine, 1);
    region.grow_to(Bytes(2 * GRANULE.0)).unwrap();
    region.set_access(GRANULE, GRANULE, zero, Access::Read).unwrap();
    region.set_access(GRANULE, GRANULE, DeviceId::HOST, Access::Read).unwrap();
    let shared = TensorRegion::new(region);
    let read_only = |offset| TensorView { read_only: true, ..bytes_view(offset, 4) };

    let tensor = shared.dlpack(None, &read_only(GRANULE.0)).unwrap();
    assert!(tensor.is_read_only());
    assert_eq!(data::<4>(tensor.dl_tensor().data), [0; 4]);
    for device in [zero, DeviceId::HOST] {
        shared.dlpack(Some(device), &read_only(GRANULE.0)).unwrap();
        let refused = shared.dlpack(Some(device), &bytes_view(GRANULE.0, 4)).unwrap_err();
        let (read, both) = (Access::Read, Access::ReadWrite);
        assert!(
            matches!(refused.detail(), Detail::NoAccess { device: who, have, need, .. }
                if (who, have, need) == (&device, &read, &both)),
            "{refused}"
        );
    }
    // The CPU's access must have been set explicitly.
    let refused = shared.dlpack(Some(DeviceId::HOST), &read_only(0)).unwrap_err();
    assert!(matches!(refused.detail(), Detail::NoAccess { device: DeviceId::HOST, .. }), "{refused}");
    // Consumers may write a tensor without a version.
    let refused = text(shared.dlpack_unversioned(None, &read_only(0)));
    assert!(refused.contains("cannot say that it is read-only"), "{refused}");
}

/// A forked child has the tensor too, and its calls change nothing here.
#[test]
fn a_forked_child_changes_nothing() {
    let machine = machine();
    let shared = shared(&machine, 1);
    shared.write(Bytes(0), b"kept").unwrap();
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
    let raw = shared.dlpack(None, &bytes_view(0, 4)).unwrap().into_raw();
    let seen = *tensor.dl_tensor();
    // SAFETY: the child drops its objects and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [
            shared.dlpack(None, &bytes_view(0, 4)).map(drop),
            shared.grow_to(Bytes(2 * GRANULE.0)).map(drop),
            shared.shrink_to(Bytes(0), IDLE).map(drop),
            shared.resume().map(drop),
            shared.write(Bytes(0), b"lost"),
            shared.read(Bytes(0), &mut [0]),
        ];
        let all = refused
            .iter()
            .all(|result| matches!(result.as_ref().map_err(Error::detail), Err(Detail::Forked)));
        drop(shared);
        drop(tensor);
        // SAFETY: it was created above, and has no other owner in this process; the child ends here.
        unsafe {
            let deleter = raw.as_ref().deleter.unwrap_or_else(|| libc::_exit(2));
            deleter(raw.as_ptr());
            libc::_exit(i32::from(!all));
        }
    }
    let mut status = 0;
    // SAFETY: it waits for the child and writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(shared.exports(), 2);
    assert_eq!(&data::<4>(seen.data), b"kept");
    // SAFETY: it was created above, and has no other owner.
    drop(unsafe { Tensor::from_raw(raw) });
    drop((tensor, shared));
    assert_eq!(machine.drop_log().count(), 0);
    assert_nothing_left(&machine);
}

/// A plain region moves when it grows or shrinks, so that its tensors would show freed memory.
#[test]
fn tensors_keep_plain_regions_in_place() {
    let machine =
        FaultInject::new(HostConfig::new().without_virtual_memory().memory(Bytes::mib(64)).open().unwrap());
    let shared = shared(&machine, 1);
    shared.write(Bytes(0), b"kept").unwrap();
    let address = shared.with(Region::address).unwrap();
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
    let two = Bytes(2 * GRANULE.0);
    for refused in [
        shared.grow_to(two).map(drop),
        shared.shrink_to(Bytes(0), IDLE).map(drop),
        shared.shrink_exported_to(Bytes(0), IDLE).map(drop),
        shared.change(Operation::Shrink, true, |region| region.shrink_to(Bytes(0), IDLE)).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error.detail(), Detail::Exported { count: 1 }), "{error}");
    }
    // Growth that needs no more memory does not move it.
    assert_eq!(shared.grow_to(GRANULE).unwrap().address, address);
    assert_eq!(data(tensor.dl_tensor().data), *b"kept");
    drop(tensor);
    assert_eq!(shared.grow_to(two).unwrap().how, GrowthKind::Copied);
    let mut bytes = [0; 4];
    shared.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
}
