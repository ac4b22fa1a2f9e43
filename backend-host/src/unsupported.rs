//! The backend on systems other than 64-bit Linux: an uninhabited type.
#![allow(unsafe_code)]

use crate::config::HostConfig;
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
#[cfg(feature = "experimental-multicast")]
use gpu_vmm_core::multicast::{MulticastBackend, NoMulticast};
#[cfg(feature = "testkit")]
use gpu_vmm_core::testkit::{TestKit, Walked, WorkStream};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Detail,
    Device, DeviceId, DriverInfo, Error, Event, FabricHandle, Grant, Handle, MemoryCalls, MemoryInfo,
    Operation, Pinned, Properties, Quirk, Reservation, Result, Stream, SyncCalls, Vendor,
};
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{BorrowedHandle, OwnedHandle};

/// A backend that emulates GPUs with host memory. It exists on 64-bit Linux only: on this system it cannot be opened.
#[derive(Clone, Debug)]
pub enum HostBackend {}

/// Physical memory of a backend that cannot be opened.
#[derive(Debug)]
pub enum HostHandle {}

/// An address range of a backend that cannot be opened.
#[derive(Debug)]
pub enum HostReservation {}

impl HostBackend {
    /// Returns an error, since this system has no such backend.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], always.
    pub fn open() -> Result<Self> {
        Self::with(&HostConfig::new())
    }

    fn with(config: &HostConfig) -> Result<Self> {
        let reason = format!("the host backend needs 64-bit Linux; {config:?} cannot be opened");
        Err(Error::new(Operation::Open, Detail::Unsupported { reason }))
    }
}

impl HostConfig {
    /// Opens a backend with this configuration. Each opened backend is an instance of its own: another cannot map its handles.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for settings out of range, and on systems other than 64-bit Linux; [`Detail::Driver`] if the kernel
    /// cannot create a memfd.
    pub fn open(&self) -> Result<HostBackend> {
        HostBackend::with(self)
    }
}

// SAFETY: no value of the type exists.
unsafe impl Backend for HostBackend {
    fn vendor(&self) -> Vendor {
        match *self {}
    }

    fn instance(&self) -> InstanceId {
        match *self {}
    }

    fn driver(&self) -> DriverInfo {
        match *self {}
    }

    fn devices(&self) -> &[Device] {
        match *self {}
    }

    fn memory_info(&self, _: DeviceId) -> Result<MemoryInfo> {
        match *self {}
    }

    fn can_access(&self, _: DeviceId, _: DeviceId) -> Result<bool> {
        match *self {}
    }

    fn capabilities(&self, _: DeviceId) -> Result<Vec<Capability>> {
        match *self {}
    }

    fn quirks(&self) -> Vec<Quirk> {
        match *self {}
    }

    fn unmaps_runs(&self) -> bool {
        match *self {}
    }

    fn check_host_access(&self, _: Operation, _: &Properties) -> Result<()> {
        match *self {}
    }

    fn deferred(&self) -> &Deferred {
        match *self {}
    }

    fn drop_log(&self) -> &DropLog {
        match *self {}
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for HostBackend {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    unsafe fn create(&self, _: Bytes, _: &Properties) -> Result<HostHandle> {
        match *self {}
    }

    #[cfg(unix)]
    unsafe fn import(&self, _: BorrowedFd<'_>, _: Bytes, _: &Properties) -> Result<HostHandle> {
        match *self {}
    }

    #[cfg(windows)]
    unsafe fn import_win32(&self, _: BorrowedHandle<'_>, _: Bytes, _: &Properties) -> Result<HostHandle> {
        match *self {}
    }

    unsafe fn import_fabric(&self, _: &FabricHandle, _: Bytes, _: &Properties) -> Result<HostHandle> {
        match *self {}
    }

    unsafe fn reserve(&self, _: Bytes, _: Alignment, _: Option<Address>) -> Result<HostReservation> {
        match *self {}
    }

    fn allocate_plain(&self, _: DeviceId, _: Bytes) -> Result<Address> {
        match *self {}
    }

    unsafe fn free_plain(&self, _: DeviceId, _: Address, _: Bytes) -> Result<()> {
        match *self {}
    }
}

// SAFETY: as above.
unsafe impl CopyCalls for HostBackend {
    unsafe fn copy_from_host(&self, _: DeviceId, _: Address, _: &[u8]) -> Result<()> {
        match *self {}
    }

    unsafe fn copy_to_host(&self, _: DeviceId, _: &mut [u8], _: Address) -> Result<()> {
        match *self {}
    }

    unsafe fn copy(&self, _: DeviceId, _: Address, _: Address, _: Bytes) -> Result<()> {
        match *self {}
    }

    unsafe fn fill(&self, _: DeviceId, _: Address, _: Bytes, _: u8) -> Result<()> {
        match *self {}
    }

    fn pin(&self, _: Bytes) -> Result<Box<dyn Pinned>> {
        match *self {}
    }

    fn copy_stream(&self, _: DeviceId) -> Result<Box<dyn CopyStream>> {
        match *self {}
    }
}

// SAFETY: as above.
unsafe impl SyncCalls for HostBackend {
    fn synchronize(&self, _: DeviceId) -> Result<()> {
        match *self {}
    }

    fn synchronize_stream(&self, _: DeviceId, _: Stream<'_>) -> Result<()> {
        match *self {}
    }

    fn event(&self, _: DeviceId) -> Result<Box<dyn Event>> {
        match *self {}
    }

    fn is_capturing(&self, _: Stream<'_>) -> Result<bool> {
        match *self {}
    }

    fn queries_spoil_captures(&self) -> bool {
        match *self {}
    }
}

// SAFETY: no value of the type exists.
#[cfg(feature = "experimental-multicast")]
unsafe impl MulticastBackend for HostBackend {
    type Driver = NoMulticast<HostHandle>;

    fn multicast(&self, _: Operation) -> Result<Self::Driver> {
        match *self {}
    }
}

// SAFETY: no value of the type exists.
unsafe impl Handle for HostHandle {
    fn size(&self) -> Bytes {
        match *self {}
    }

    fn properties(&self) -> Properties {
        match *self {}
    }

    #[cfg(unix)]
    fn export(&self) -> Result<OwnedFd> {
        match *self {}
    }

    #[cfg(windows)]
    fn export_win32(&self) -> Result<OwnedHandle> {
        match *self {}
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        match *self {}
    }
}

// SAFETY: no value of the type exists.
unsafe impl Reservation for HostReservation {
    type Handle = HostHandle;

    fn range(&self) -> AddressRange {
        match *self {}
    }

    unsafe fn map(&mut self, _: Bytes, _: &HostHandle) -> Result<()> {
        match *self {}
    }

    unsafe fn unmap(&mut self, _: Bytes, _: Bytes) -> Result<()> {
        match *self {}
    }

    unsafe fn set_access(&mut self, _: Bytes, _: Bytes, _: &[Grant]) -> Result<()> {
        match *self {}
    }

    unsafe fn access(&self, _: Bytes, _: DeviceId) -> Result<Access> {
        match *self {}
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        match *self {}
    }

    fn regain(&mut self) -> Result<()> {
        match *self {}
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, _: DeviceId, _: Bytes, _: Bytes) -> Result<OwnedFd> {
        match *self {}
    }
}

#[cfg(feature = "testkit")]
impl TestKit for HostBackend {
    fn pattern_by(&self) -> &'static str {
        match *self {}
    }

    unsafe fn write_pattern(&self, _: DeviceId, _: Address, _: Bytes, _: u64) -> Result<()> {
        match *self {}
    }

    unsafe fn count_wrong(&self, _: DeviceId, _: Address, _: Bytes, _: u64) -> Result<u64> {
        match *self {}
    }

    unsafe fn walk_list(&self, _: DeviceId, _: Address, _: u64) -> Result<Walked> {
        match *self {}
    }

    fn own_stream(&self, _: DeviceId) -> Result<Box<dyn WorkStream>> {
        match *self {}
    }

    unsafe fn start_pattern_on(
        &self,
        _: DeviceId,
        _: Stream<'_>,
        _: Address,
        _: Bytes,
        _: u64,
        _: u32,
    ) -> Result<()> {
        match *self {}
    }
}
