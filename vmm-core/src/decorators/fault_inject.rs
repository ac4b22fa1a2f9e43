//! A backend whose driver calls fail when they are told to.
#![allow(unsafe_code)]

use crate::workbench::Flight;
use crate::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, Capability, Device, DeviceId, DriverError,
    DriverInfo, DropLog, Error, Grant, Granularity, InstanceId, MemoryInfo, Properties, Quirk, Reservation,
    Result, Stream, Vendor, Workbench,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// A backend like the one inside of it, but for the driver calls that are told to fail.
///
/// The calls that change something or move data are numbered from 0 on: create, import, reserve, map, unmap, set
/// access, copies, fill and synchronize; the workbench is left alone. A call that fails by plan does not reach the driver.
#[derive(Debug, Clone)]
pub struct FaultInject<B> {
    inner: B,
    plan: Arc<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    next: AtomicU64,
    fail_from: AtomicU64,
    fail_below: AtomicU64,
}

impl Plan {
    fn call(&self, call: &'static str) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let failing = self.fail_from.load(Ordering::SeqCst)..self.fail_below.load(Ordering::SeqCst);
        if !failing.contains(&number) {
            return Ok(());
        }
        let source =
            DriverError { call, code: -1, name: "INJECTED".into(), description: "failed by plan".into() };
        Err(Error::Driver { operation: call, source, context: format!("driver call {number}") })
    }
}

impl<B: Backend> FaultInject<B> {
    /// Wraps a backend; nothing fails yet.
    pub fn new(inner: B) -> Self {
        Self { inner, plan: Arc::default() }
    }

    /// Starts counting at 0, and lets `count` calls from number `first` on fail.
    pub fn fail(&self, first: u64, count: u64) {
        self.plan.fail_from.store(first, Ordering::SeqCst);
        self.plan.fail_below.store(first.saturating_add(count), Ordering::SeqCst);
        self.plan.next.store(0, Ordering::SeqCst);
    }

    /// Lets nothing fail any more, and tells how many calls there were since [`FaultInject::fail`].
    pub fn stop(&self) -> u64 {
        self.plan.fail_below.store(0, Ordering::SeqCst);
        self.plan.next.load(Ordering::SeqCst)
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }
}

impl<B: Backend> Backend for FaultInject<B> {
    type Handle = B::Handle;
    type Reservation = FaultReservation<B::Reservation>;

    fn vendor(&self) -> Vendor {
        self.inner.vendor()
    }

    fn instance(&self) -> InstanceId {
        self.inner.instance()
    }

    fn driver(&self) -> DriverInfo {
        self.inner.driver()
    }

    fn devices(&self) -> &[Device] {
        self.inner.devices()
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.inner.memory_info(device)
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        self.inner.can_access(device, owner)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.inner.capabilities(device)
    }

    fn quirks(&self) -> Vec<Quirk> {
        self.inner.quirks()
    }

    fn unmaps_runs(&self) -> bool {
        self.inner.unmaps_runs()
    }

    fn granularity(&self) -> Granularity {
        self.inner.granularity()
    }

    fn reservation_unit(&self) -> Granularity {
        self.inner.reservation_unit()
    }

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<B::Handle> {
        self.plan.call("create")?;
        // SAFETY: the caller's promises are passed on; so in every function below.
        unsafe { self.inner.create(size, properties) }
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<B::Handle> {
        self.plan.call("import")?;
        // SAFETY: as in `create`.
        unsafe { self.inner.import(fd, size, properties) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation> {
        self.plan.call("reserve")?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.reserve(size, alignment, hint) }?;
        Ok(FaultReservation { inner, plan: Arc::clone(&self.plan) })
    }

    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        self.plan.call("copy from host")?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        self.plan.call("copy to host")?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        self.plan.call("copy")?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        self.plan.call("fill")?;
        // SAFETY: as in `create`.
        unsafe { self.inner.fill(device, at, length, value) }
    }

    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.plan.call("synchronize")?;
        self.inner.synchronize(device)
    }

    fn synchronize_stream(&self, stream: Stream<'_>) -> Result<()> {
        self.plan.call("synchronize stream")?;
        self.inner.synchronize_stream(stream)
    }

    fn drop_log(&self) -> &DropLog {
        self.inner.drop_log()
    }
}

impl<B: Workbench> Workbench for FaultInject<B> {
    fn pattern_by(&self) -> &'static str {
        self.inner.pattern_by()
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.inner.write_pattern(device, at, length, seed) }
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        // SAFETY: as in `create`.
        unsafe { self.inner.count_wrong(device, at, length, seed) }
    }

    unsafe fn start_pattern(
        &self,
        device: DeviceId,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<Box<dyn Flight>> {
        // SAFETY: as in `create`.
        unsafe { self.inner.start_pattern(device, at, length, seed, rounds) }
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.inner.allocate_plain(device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.inner.free_plain(device, at, size) }
    }
}

/// Addresses of a [`FaultInject`] backend.
#[derive(Debug)]
pub struct FaultReservation<R> {
    inner: R,
    plan: Arc<Plan>,
}

impl<R: Reservation> Reservation for FaultReservation<R> {
    type Handle = R::Handle;

    fn range(&self) -> AddressRange {
        self.inner.range()
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &R::Handle) -> Result<()> {
        self.plan.call("map")?;
        // SAFETY: the caller's promises are passed on; so in every function below.
        unsafe { self.inner.map(offset, handle) }
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        self.plan.call("unmap")?;
        // SAFETY: as in `map`.
        unsafe { self.inner.unmap(offset, length) }
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        self.plan.call("set access")?;
        // SAFETY: as in `map`.
        unsafe { self.inner.set_access(offset, length, grants) }
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `map`.
        unsafe { self.inner.access(offset, device) }
    }
}
