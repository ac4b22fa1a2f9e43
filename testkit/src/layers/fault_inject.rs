//! A backend whose driver calls fail on demand, and that counts its live objects.
#![allow(unsafe_code)]

use super::fault_copy_stream::FaultCopyStream;
use super::fault_event::FaultEvent;
use super::fault_held::{FaultHandle, FaultReservation, Live, Registry};
use super::fault_plan::Plan;
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::testkit::{CaptureMode, Graph, TestKit, Walked, WorkStream, check_may_wait};
use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, CopyCalls, CopyStream, DeviceId, Event, FabricHandle,
    MemoryCalls, Operation, Pinned, Properties, Result, Stream, SyncCalls,
};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

/// A backend that forwards to an inner backend, except for the driver calls that fail by plan.
///
/// The calls that can make an operation fail are numbered from 0: create, import, export, reserve, plain allocations, map, unmap, set
/// access, copies, fill, synchronize, events and captures, can access, the pattern's, and multicast calls. A call
/// that fails by plan does not reach the driver. [`live`](Self::live) returns the driver's live objects at any time.
///
/// A call in which a driver may wait, or which maps memory, panics if its thread holds a lock under which that is forbidden:
/// [`check_may_wait`], [`check_may_map`](crate::check_may_map).
#[derive(Debug)]
pub struct FaultInject<B: Backend> {
    pub(super) inner: B,
    pub(super) plan: Arc<Plan>,
    pub(super) registry: Arc<Registry<B::Reservation>>,
}

impl<B: Backend> Clone for FaultInject<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), plan: Arc::clone(&self.plan), registry: Arc::clone(&self.registry) }
    }
}

impl<B: Backend> FaultInject<B> {
    /// Wraps a backend. No call fails yet.
    pub fn new(inner: B) -> Self {
        Self { inner, plan: Arc::default(), registry: Arc::default() }
    }

    /// Restarts counting at 0, and makes `count` calls from number `first` on fail.
    pub fn fail(&self, first: u64, count: u64) {
        let range = first..first.saturating_add(count);
        self.plan.start(vec![range]);
    }

    /// Restarts counting at 0, and makes the calls of these numbers fail.
    pub fn fail_each(&self, numbers: &[u64]) {
        self.plan.start(numbers.iter().map(|number| *number..number.saturating_add(1)).collect());
    }

    /// Makes all calls of these kinds fail, until [`stop`](FaultInject::stop).
    pub fn fail_calls(&self, calls: &'static [Operation]) {
        self.plan.fail_calls(calls);
    }

    /// Sets whether a `set_access` that fails by plan still reaches the driver: a driver may fail after a part of the
    /// work.
    pub fn set_access_though_failing(&self, whether: bool) {
        self.plan.carry_out(whether);
    }

    /// Sets whether a reservation loses its addresses to other code whenever its memory is returned. It cannot regain
    /// them while this is set.
    pub fn lose_addresses(&self, whether: bool) {
        self.plan.lose_addresses(whether);
    }

    /// Sets whether other devices cannot access the memory of this one, as on machines without peer access.
    pub fn hide_memory(&self, owner: DeviceId, whether: bool) {
        self.plan.hide_memory(owner, whether);
    }

    /// Sets whether a stream of the device captures. Waiting for the device then fails, as with every driver. No call
    /// reports the capture.
    pub fn capture_on(&self, device: DeviceId, whether: bool) {
        self.plan.capture_on(device, whether);
    }

    /// Runs `act` once, in the next call of a kind (as for [`fail_calls`](FaultInject::fail_calls), or [`Operation::Free`] for freeing
    /// a plain allocation), before the inner backend is called.
    pub fn during(&self, call: Operation, act: impl FnOnce() + Send + 'static) {
        self.plan.during(call, Box::new(act));
    }

    /// Starts a thread in the next call of this operation, which goes on when the thread runs. The thread can be received after the
    /// call.
    pub fn start_during<T: Send + 'static>(
        &self,
        call: Operation,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> mpsc::Receiver<JoinHandle<T>> {
        let (sends, started) = mpsc::channel();
        self.during(call, move || {
            let (begins, begun) = mpsc::channel();
            let thread = thread::spawn(move || {
                // The call waits for it.
                let _ = begins.send(());
                act()
            });
            let _ = begun.recv();
            thread::yield_now();
            let _ = sends.send(thread);
        });
        started
    }

    /// Makes no more calls fail, and returns the number of calls since [`FaultInject::fail`].
    pub fn stop(&self) -> u64 {
        self.plan.stop()
    }

    /// Returns the number of calls of a kind (as for [`fail_calls`](FaultInject::fail_calls)) that were not made to fail, since
    /// this backend was made.
    pub fn made(&self, call: Operation) -> u64 {
        self.plan.made(call)
    }

    /// Returns the inner backend.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Returns the numbers of this backend's live objects.
    pub fn live(&self) -> Live {
        self.registry.live()
    }

    /// Returns the access that the driver reports for a device, or for the host, at an address; `None` if this backend has nothing
    /// mapped there.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn access_at(&self, address: Address, device: DeviceId) -> Result<Option<Access>> {
        if !device.is_host() {
            self.inner.device(Operation::QueryAccess, device)?;
        }
        self.registry.access_at(address, device)
    }

    /// Unmaps and frees the remaining reservations, and returns their number. A region keeps a reservation to the end
    /// of the process if a rollback in it failed.
    ///
    /// # Safety
    ///
    /// No region of this backend exists any more, and no device uses their memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub unsafe fn reclaim(&self) -> Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.registry.reclaim() }
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl<B: Backend> Backend for FaultInject<B> {
    forward!(inner: vendor, instance, driver, devices, memory_info, capabilities, quirks, unmaps_runs);
    forward!(inner: granularity, granularity_of, recommended_granularity, check_host_access);
    forward!(inner: reservation_unit, deferred, drop_log);

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        let _call = self.plan.call(Operation::QueryPeerAccess)?;
        Ok((device == owner || !self.plan.is_hidden(owner)) && self.inner.can_access(device, owner)?)
    }
}

// SAFETY: as above.
unsafe impl<B: Backend> MemoryCalls for FaultInject<B> {
    type Handle = FaultHandle<B::Handle>;

    type Reservation = FaultReservation<B::Reservation>;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle> {
        let _call = self.plan.call(Operation::CreateMemory)?;
        // SAFETY: the caller's promises are passed on; so in every function below.
        let inner = unsafe { self.inner.create(size, properties) }?;
        Ok(FaultHandle::new(inner, &self.plan, &self.registry))
    }

    #[cfg(unix)]
    unsafe fn import(
        &self,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        let _call = self.plan.call(Operation::ImportMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.import(fd, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.plan, &self.registry))
    }

    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        let _call = self.plan.call(Operation::ImportMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.import_win32(from, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.plan, &self.registry))
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        let _call = self.plan.call(Operation::ImportMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.import_fabric(handle, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.plan, &self.registry))
    }

    unsafe fn adopt(&self, at: Address) -> Result<Self::Handle> {
        let _call = self.plan.call(Operation::AdoptMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.adopt(at) }?;
        Ok(FaultHandle::new(inner, &self.plan, &self.registry))
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation> {
        let _call = self.plan.call(Operation::Reserve)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.reserve(size, alignment, hint) }?;
        Ok(FaultReservation::new(inner, &self.plan, &self.registry))
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        let _call = self.plan.call(Operation::Allocate)?;
        self.inner.allocate_plain(device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // HIP waits for the device.
        check_may_wait("free_plain");
        self.plan.act(Operation::Free);
        // SAFETY: as in `create`.
        unsafe { self.inner.free_plain(device, at, size) }
    }
}

// SAFETY: as above.
unsafe impl<B: Backend> CopyCalls for FaultInject<B> {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        let _call = self.plan.call(Operation::CopyFromHost)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        let _call = self.plan.call(Operation::CopyToHost)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        let _call = self.plan.call(Operation::Copy)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.copy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        let _call = self.plan.call(Operation::Fill)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.fill(device, at, length, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        let _call = self.plan.call(Operation::PinMemory)?;
        self.inner.pin(size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        let _call = self.plan.call(Operation::CreateStream)?;
        Ok(Box::new(FaultCopyStream::new(self.inner.copy_stream(device)?, &self.plan)))
    }
}

// SAFETY: as above.
unsafe impl<B: Backend> SyncCalls for FaultInject<B> {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        let _call = self.plan.wait(device)?;
        self.inner.synchronize(device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        let _call = self.plan.call(Operation::WaitForStream)?;
        self.inner.synchronize_stream(device, stream)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        let _call = self.plan.call(Operation::CreateEvent)?;
        Ok(Box::new(FaultEvent::new(self.inner.event(device)?, &self.plan)))
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        let _call = self.plan.call(Operation::QueryCapture)?;
        self.inner.is_capturing(stream)
    }

    forward!(inner: queries_spoil_captures, waits_spoil_captures);
}

impl<B: TestKit> TestKit for FaultInject<B> {
    fn pattern_by(&self) -> &'static str {
        self.inner.pattern_by()
    }

    fn reports_faults(&self) -> bool {
        self.inner.reports_faults()
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let _call = self.plan.call(Operation::WritePattern)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.write_pattern(device, at, length, seed) }
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        let _call = self.plan.call(Operation::CheckPattern)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.count_wrong(device, at, length, seed) }
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        let _call = self.plan.call(Operation::WalkList)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.walk_list(device, head, most) }
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.inner.own_stream(device)
    }

    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.inner.blocking_stream(device)
    }

    fn stream_elsewhere(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.inner.stream_elsewhere(device)
    }

    fn in_context_of(&self, stream: &dyn WorkStream, act: &mut dyn FnMut()) -> Result<()> {
        self.inner.in_context_of(stream, act)
    }

    unsafe fn open_in_context_of(&self, device: DeviceId, stream: &dyn WorkStream) -> Result<Self> {
        // SAFETY: as in `create`.
        unsafe { self.inner.open_in_context_of(device, stream) }.map(Self::new)
    }

    fn per_thread_stream(&self) -> Option<Stream<'static>> {
        self.inner.per_thread_stream()
    }

    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.inner.begin_capture(device, stream, mode) }
    }

    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        self.inner.end_capture(device, stream)
    }

    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.inner.start_pattern_on(device, stream, at, length, seed, rounds) }
    }
}
