//! A host backend that does one thing wrong, to show that the model sees it.
#![allow(unsafe_code)] // passes a backend's calls on

use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Device,
    DeviceId, DriverInfo, Event, FabricHandle, Grant, Granularity, Handle, MemoryCalls, MemoryInfo,
    Operation, Pinned, Properties, Quirk, Reservation, Result, Stream, SyncCalls, Vendor,
};
use gpu_vmm_host::{HostBackend, HostHandle, HostReservation};
use gpu_vmm_testkit::{TestKit, Walked, WorkStream};
use std::os::fd::{BorrowedFd, OwnedFd};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// A set access to reading alone is answered with success and not done.
    ReadOnlyForgotten,
    /// Memory is mapped one granule behind where it should be, unless it is at the region's begin.
    MappedTooFar,
    /// A fill leaves the first byte out.
    FillTooShort,
    /// A pattern is another one from the second granule on.
    PatternGoesWrong,
    /// An unmap of more than a granule is answered with success and not done.
    LargeUnmapForgotten,
}

#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) host: HostBackend,
    pub(super) fault: Fault,
}

#[derive(Debug)]
pub(super) struct BrokenReservation {
    host: HostReservation,
    granule: Bytes,
    fault: Fault,
}

// SAFETY: every call goes to the host's, but for answers that the core is to refuse.
unsafe impl Backend for Broken {
    fn vendor(&self) -> Vendor {
        self.host.vendor()
    }

    fn instance(&self) -> InstanceId {
        self.host.instance()
    }

    fn driver(&self) -> DriverInfo {
        self.host.driver()
    }

    fn devices(&self) -> &[Device] {
        self.host.devices()
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.host.memory_info(device)
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        self.host.can_access(device, owner)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.host.capabilities(device)
    }

    fn quirks(&self) -> Vec<Quirk> {
        self.host.quirks()
    }

    fn unmaps_runs(&self) -> bool {
        self.host.unmaps_runs()
    }

    fn granularity(&self) -> Granularity {
        self.host.granularity()
    }

    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> {
        self.host.check_host_access(operation, properties)
    }

    fn deferred(&self) -> &Deferred {
        self.host.deferred()
    }

    fn drop_log(&self) -> &DropLog {
        self.host.drop_log()
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for Broken {
    type Handle = HostHandle;

    type Reservation = BrokenReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<HostHandle> {
        // SAFETY: the caller's promises are passed on; so in every function below.
        unsafe { self.host.create(size, properties) }
    }

    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<HostHandle> {
        // SAFETY: as in `create`.
        unsafe { self.host.import(fd, size, properties) }
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<HostHandle> {
        // SAFETY: as in `create`.
        unsafe { self.host.import_fabric(handle, size, properties) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<BrokenReservation> {
        // SAFETY: as in `create`.
        let host = unsafe { self.host.reserve(size, alignment, hint) }?;
        Ok(BrokenReservation { host, granule: self.granularity().bytes(), fault: self.fault })
    }
}

// SAFETY: as above.
unsafe impl CopyCalls for Broken {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.host.copy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.host.copy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.host.copy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        let short = if self.fault == Fault::FillTooShort { Bytes(1) } else { Bytes(0) };
        // SAFETY: as in `create`; it is no more than was asked for.
        unsafe { self.host.fill(device, at + short, length - short, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        self.host.pin(size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        self.host.copy_stream(device)
    }
}

// SAFETY: as above.
unsafe impl SyncCalls for Broken {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.host.synchronize(device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        self.host.synchronize_stream(device, stream)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.host.event(device)
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        self.host.is_capturing(stream)
    }

    fn queries_spoil_captures(&self) -> bool {
        self.host.queries_spoil_captures()
    }
}

impl TestKit for Broken {
    fn pattern_by(&self) -> &'static str {
        self.host.pattern_by()
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let right = if self.fault == Fault::PatternGoesWrong { self.granularity().bytes() } else { length };
        let right = right.min(length);
        // SAFETY: as in `create`; both parts together are what was asked for.
        unsafe {
            self.host.write_pattern(device, at, right, seed)?;
            self.host.write_pattern(device, at + right, length - right, seed)
        }
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        // SAFETY: as in `create`.
        unsafe { self.host.count_wrong(device, at, length, seed) }
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        // SAFETY: as in `create`.
        unsafe { self.host.walk_list(device, head, most) }
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.host.own_stream(device)
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
        unsafe { self.host.start_pattern_on(device, stream, at, length, seed, rounds) }
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.host.allocate_plain(device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: as in `create`.
        unsafe { self.host.free_plain(device, at, size) }
    }
}

// SAFETY: every call goes to the host's, but for answers that the core is to refuse.
unsafe impl Reservation for BrokenReservation {
    type Handle = HostHandle;

    fn range(&self) -> AddressRange {
        self.host.range()
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &HostHandle) -> Result<()> {
        let room = offset + self.granule + handle.size() <= self.range().size;
        let wrong = self.fault == Fault::MappedTooFar && offset.0 > 0 && room;
        let offset = if wrong { offset + self.granule } else { offset };
        // SAFETY: as in `create`; what is mapped there already, the host backend refuses.
        unsafe { self.host.map(offset, handle) }
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        if self.fault == Fault::LargeUnmapForgotten && length > self.granule {
            return Ok(());
        }
        // SAFETY: as in `create`.
        unsafe { self.host.unmap(offset, length) }
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        if self.fault == Fault::ReadOnlyForgotten && grants.iter().all(|grant| grant.access == Access::Read) {
            return Ok(());
        }
        // SAFETY: as in `create`.
        unsafe { self.host.set_access(offset, length, grants) }
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `create`.
        unsafe { self.host.access(offset, device) }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        // SAFETY: as in `map`.
        unsafe { self.host.return_memory() }
    }

    fn regain(&mut self) -> Result<()> {
        self.host.regain()
    }

    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd> {
        // SAFETY: as in `create`.
        unsafe { self.host.dma_buf(owner, offset, length) }
    }
}
