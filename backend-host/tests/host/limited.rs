//! Drivers that refuse large handles and large reservations, although there is room for smaller ones.

use gpu_vmm_core::extend::forward;
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{
    Address, Alignment, Backend, BankedRegion, Bytes, CopyCalls, Detail, DeviceVec, Error, ErrorKind,
    MemoryCalls, Operation, Placement, Properties, Region, Result, SyncCalls, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: Bytes = Bytes::mib(1);

/// A driver with a largest handle and a largest reservation.
#[derive(Clone, Debug)]
struct Limited {
    inner: HostBackend,
    handle: Bytes,
    reservation: Bytes,
    /// The number of handles that the driver was asked for.
    creates: Arc<AtomicU64>,
}

impl Limited {
    fn new(handle: Bytes, reservation: Bytes) -> Self {
        let inner = HostConfig::new().memory(Bytes::mib(256)).open().unwrap();
        Self { inner, handle, reservation, creates: Arc::default() }
    }
}

// SAFETY: calls are forwarded to the inner backend, or refused before it.
unsafe impl Backend for Limited {
    forward!(inner: Backend);
}

// SAFETY: as above.
unsafe impl MemoryCalls for Limited {
    type Handle = <HostBackend as MemoryCalls>::Handle;
    type Reservation = <HostBackend as MemoryCalls>::Reservation;
    forward!(inner: import, import_fabric, allocate_plain, free_plain);

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle> {
        self.creates.fetch_add(1, Ordering::Relaxed);
        if size > self.handle {
            let (device, info) = (properties.device, self.inner.memory_info(properties.device)?);
            let source = refusal("create", Errno::NOMEM, "the memory is in pieces");
            let (free, total) = (info.free, info.total);
            let detail = Detail::OutOfMemory { device, requested: size, free, total, source };
            return Err(Error::new(Operation::CreateMemory, detail));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.create(size, properties) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation> {
        if size > self.reservation {
            let source = refusal("reserve", Errno::INVAL, "too large for this driver");
            let context = size.to_string();
            return Err(Error::new(Operation::Reserve, Detail::Driver { source, context }));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.reserve(size, alignment, hint) }
    }
}

// SAFETY: as above.
unsafe impl CopyCalls for Limited {
    forward!(inner: CopyCalls);
}

// SAFETY: as above.
unsafe impl SyncCalls for Limited {
    forward!(inner: SyncCalls);
}

const ALL: Bytes = Bytes(u64::MAX);

#[test]
fn a_refused_default_reservation_gets_smaller() {
    let driver = Limited::new(ALL, MIB * 40);
    let region = Region::builder(&driver).build().unwrap();
    assert_eq!(region.reserved(), MIB * 32);
    let guarded = Region::builder(&driver).guarded().build().unwrap();
    assert_eq!((guarded.reserved(), guarded.guard()), (MIB * 32, MIB * 2));
    let mut vec = DeviceVec::<u64, _>::new(&driver, gpu_vmm_core::DeviceId(0)).unwrap();
    vec.resize(1000, 7).unwrap();
    assert_eq!(vec.region().reserved(), MIB * 32);
    // A size that the caller names is reserved as it is or not at all.
    let error = Region::builder(&driver).reserve(MIB * 41).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Driver);
    // Another size does not help here.
    let taken = Placement::Exact(region.address());
    let error = Region::builder(&driver).at(taken).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressTaken);
    let none = Limited::new(ALL, MIB);
    assert_eq!(Region::builder(&none).build().unwrap_err().kind(), ErrorKind::Driver);
}

#[test]
fn refused_handles_shrink_while_memory_is_free() {
    let driver = Limited::new(MIB * 24, ALL);
    let mut region = Region::builder(&driver).reserve(MIB * 512).build().unwrap();
    region.grow_to(MIB * 100).unwrap();
    let sizes: Vec<_> = region.mappings().map(|mapping| mapping.length.0 >> 20).collect();
    // 100 and 50 are refused; the next ones are as large as the first that is not.
    assert_eq!((sizes, driver.creates.load(Ordering::Relaxed)), (vec![24, 24, 24, 24, 4], 7));
    region.write(MIB * 24 - Bytes(3), b"border").unwrap();
    let _ = region.shrink_to(MIB * 48, WaitFor::all_devices()).unwrap();
    // No more than is free: one attempt, and nothing is left behind.
    let before = driver.creates.swap(0, Ordering::Relaxed);
    let error = region.grow_to(MIB * 256 + MIB * 2).unwrap_err();
    assert!(error.is_out_of_memory() && before == 7, "{error}");
    assert_eq!(driver.creates.load(Ordering::Relaxed), 1);
    assert_eq!(driver.memory_info(gpu_vmm_core::DeviceId(0)).unwrap().free, MIB * 208);
    drop(region);
    let mut banked = BankedRegion::build(Region::builder(&driver)).unwrap();
    let bank = banked.add_bank(MIB * 60).unwrap();
    banked.select(bank, WaitFor::all_devices()).unwrap();
    assert_eq!(banked.region().mappings().count(), 5, "15 MiB is no multiple of the granularity");
}

#[test]
fn hopeless_handles_report_the_first_error() {
    let driver = Limited::new(MIB, ALL);
    let mut region = Region::builder(&driver).build().unwrap();
    let error = region.grow_to(MIB * 64).unwrap_err();
    let Detail::OutOfMemory { requested, .. } = error.detail() else { panic!("{error}") };
    assert_eq!(*requested, MIB * 64);
    assert_eq!(driver.creates.load(Ordering::Relaxed), 6, "64, 32, 16, 8, 4 and 2 MiB");
}
