//! The trait implementations. Each method calls the module that does the work.
//!
//! Unsafe, since the traits' methods are; their contracts are passed on unchanged.
#![allow(unsafe_code)]

use crate::handle::Whence;
use crate::{CudaBackend, CudaHandle, CudaReservation, host, quirks};
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Device, DeviceId, DriverInfo,
    Event, FabricHandle, Granularity, MemoryCalls, MemoryInfo, Operation, Pinned, Properties, Quirk, Result,
    Stream, SyncCalls, Vendor,
};

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

// SAFETY: the values come from the driver, which is one for the process; handles and reservations are those that it made.
unsafe impl Backend for CudaBackend {
    fn vendor(&self) -> Vendor {
        Vendor::Cuda
    }

    fn instance(&self) -> InstanceId {
        self.inner.driver.instance
    }

    fn driver(&self) -> DriverInfo {
        self.inner.driver.loaded.info.clone()
    }

    fn devices(&self) -> &[Device] {
        &self.inner.driver.devices
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.context_memory_info(device)
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        self.can_access_peer(device, owner)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.known_capabilities(device)
    }

    fn quirks(&self) -> Vec<Quirk> {
        let version = self.inner.driver.loaded.info.version_number;
        quirks::ALL.iter().copied().filter(|quirk| quirk.is_in(version)).collect()
    }

    fn unmaps_runs(&self) -> bool {
        true
    }

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.granularity_of_kind(operation, properties)
    }

    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> {
        host::check_access(operation, properties)
    }

    /// 32 MiB (quirk `addresses-in-32-mib`).
    fn reservation_unit(&self) -> Granularity {
        self.granularity().max(quirks::RESERVATION_UNIT)
    }

    fn deferred(&self) -> &Deferred {
        &self.inner.driver.deferred
    }

    fn drop_log(&self) -> &DropLog {
        &self.inner.drop_log
    }
}

// SAFETY: handles and reservations are those that the driver made.
unsafe impl MemoryCalls for CudaBackend {
    type Handle = CudaHandle;

    type Reservation = CudaReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::create(self, size, properties) }
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import(self, fd, Whence::ThisMachine, size, properties) }
    }

    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import_handle(self, from, size, properties) }
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import_fabric(self, handle, Whence::Fabric, size, properties) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<CudaReservation> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaReservation::new(self, size, alignment, hint) }
    }
}

// SAFETY: the driver copies, and each call waits until its copy is complete; pinned memory and streams are the driver's own.
unsafe impl CopyCalls for CudaBackend {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.memcpy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.memcpy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.memcpy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.memset(device, at, length, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        self.host_alloc(size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        self.open_lane(device)
    }
}

// SAFETY: the driver waits in each context in which this process can have work; events are the driver's own.
unsafe impl SyncCalls for CudaBackend {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.wait_for_device(device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        self.wait_for_stream(device, stream)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.create_event(device)
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        self.captures(stream)
    }

    /// Queries run with the thread in relaxed capture mode.
    fn queries_spoil_captures(&self) -> bool {
        false
    }
}
