//! [`CudaBackend`] and the trait implementations. Each method calls the module that does the work.
//!
//! Unsafe, since the traits' methods are; their contracts are passed on unchanged.
#![allow(unsafe_code)]

use crate::driver::{Driver, Opened};
use crate::handle::{CudaHandle, ImportSource};
use crate::lease::Attached;
#[cfg(feature = "experimental-multicast")]
use crate::multicast::CudaMulticast;
use crate::reservation::CudaReservation;
use crate::{host, loader, quirks};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
#[cfg(feature = "experimental-multicast")]
use gpu_vmm_core::multicast::MulticastBackend;
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Device, DeviceId, DriverInfo,
    Event, FabricHandle, Granularity, MemoryCalls, MemoryInfo, Operation, Pinned, Properties, Quirk, Result,
    Stream, SyncCalls, Vendor,
};
use std::fmt;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;
use std::sync::Arc;

/// NVIDIA's CUDA driver.
///
/// A clone shares the backend. All CUDA backends of a process have the same [`InstanceId`], since
/// the process has one driver: any of them can map another's memory. Each opened backend has its own [`DropLog`].
#[derive(Clone)]
pub struct CudaBackend {
    pub(crate) opened: Arc<Opened>,
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.opened, f)
    }
}

impl CudaBackend {
    /// Loads and starts the driver, or uses the one that this process has already started.
    ///
    /// The library is `libcuda.so.1`, then `libcuda.so`, then the one of WSL. If the environment variable `GPU_VMM_CUDA_LIBRARY` is
    /// set, only the library that it names is tried. On Windows the library is `nvcuda.dll` from the system folder only. CUDA:
    /// `cuInit`.
    ///
    /// # Errors
    ///
    /// - [`Detail::LibraryNotFound`] with every name that was tried.
    /// - [`Detail::LibraryRefused`] if the library is not a CUDA driver, is the toolkit's stub, is older than 11.4 or does not
    ///   start.
    /// - [`Detail::NoDevice`] if the driver lists no device.
    /// - [`Detail::Forked`] in a forked child of a process that had opened the driver.
    ///
    /// A later call tries again.
    pub fn open() -> Result<Self> {
        Driver::get().map(|driver| Self::new(driver, None))
    }

    /// Returns true if this process has already loaded the driver's library, through this crate or otherwise.
    #[must_use]
    pub fn is_loaded() -> bool {
        loader::is_loaded()
    }

    /// Sets the security descriptor of memory that this process creates from now on for export as a Windows handle
    /// ([`HandleTypes::WIN32`](gpu_vmm_core::HandleTypes::WIN32)), in the [text form of Windows][1]: `D:P(A;;GA;;;BA)` allows administrators.
    /// It says which users can open the memory's object again or request more rights to it. Without this call, only the user that the
    /// process runs as can. HIP's runtime ignores such descriptors.
    ///
    /// It has never run on Windows.
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) with the error of Windows for a text that is no descriptor. The one before stays.
    ///
    /// [1]: https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format
    #[cfg(windows)]
    pub fn set_export_security(descriptor: &str) -> Result<()> {
        crate::win32::security::choose(Operation::CreateMemory, descriptor)
    }

    pub(crate) fn new(driver: &'static Driver, attached: Option<Attached>) -> Self {
        Self { opened: Arc::new(Opened { driver, attached, drop_log: DropLog::new() }) }
    }
}

// SAFETY: the values come from the driver, which is one for the process; handles and reservations are those that it made.
unsafe impl Backend for CudaBackend {
    fn vendor(&self) -> Vendor {
        Vendor::Cuda
    }

    fn instance(&self) -> InstanceId {
        self.opened.driver.instance
    }

    fn driver(&self) -> DriverInfo {
        self.opened.driver.loaded.info.clone()
    }

    fn devices(&self) -> &[Device] {
        &self.opened.driver.devices
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.opened.context_memory_info(device)
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        self.opened.can_access_peer(device, owner)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.opened.known_capabilities(device)
    }

    fn quirks(&self) -> Vec<Quirk> {
        let version = self.opened.driver.loaded.info.version_number;
        quirks::QUIRKS.iter().copied().filter(|quirk| quirk.is_in(version)).collect()
    }

    fn unmaps_runs(&self) -> bool {
        true
    }

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.opened.granularity_of_kind(operation, properties)
    }

    fn recommended_granularity(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.opened.recommended_granularity(operation, properties)
    }

    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> {
        host::check_access(operation, properties)
    }

    /// 32 MiB (quirk `addresses-in-32-mib`).
    fn reservation_unit(&self) -> Granularity {
        self.granularity().max(quirks::RESERVATION_UNIT)
    }

    fn deferred(&self) -> &Deferred {
        &self.opened.driver.deferred
    }

    fn drop_log(&self) -> &DropLog {
        &self.opened.drop_log
    }
}

// SAFETY: handles and reservations are those that the driver made.
unsafe impl MemoryCalls for CudaBackend {
    type Handle = CudaHandle;

    type Reservation = CudaReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::create(&self.opened, size, properties) }
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import(&self.opened, fd, ImportSource::ThisMachine, size, properties) }
    }

    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import_handle(&self.opened, from, size, properties) }
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import_fabric(&self.opened, handle, ImportSource::Fabric, size, properties) }
    }

    unsafe fn adopt(&self, at: Address) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::adopt(&self.opened, at) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<CudaReservation> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaReservation::new(&self.opened, size, alignment, hint) }
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.opened.allocate_plain(device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.free_plain(device, at, size) }
    }
}

// SAFETY: the driver copies, and each call waits until its copy is complete; pinned memory and streams are the driver's own.
unsafe impl CopyCalls for CudaBackend {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.memcpy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.memcpy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.memcpy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.memset(device, at, length, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        self.opened.host_alloc(size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        self.opened.open_copy_stream(device)
    }
}

// SAFETY: the driver waits in each context in which this process can have work; events are the driver's own.
unsafe impl SyncCalls for CudaBackend {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.opened.wait_for_device(device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        self.opened.wait_for_stream(device, stream)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.opened.create_event(device)
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        self.opened.captures(stream)
    }

    /// Queries run with the thread in relaxed capture mode.
    fn queries_spoil_captures(&self) -> bool {
        false
    }
}

// SAFETY: the objects are the driver's own.
#[cfg(feature = "experimental-multicast")]
unsafe impl MulticastBackend for CudaBackend {
    type Driver = CudaMulticast;

    fn multicast(&self, operation: Operation) -> Result<CudaMulticast> {
        CudaMulticast::of(&self.opened, operation)
    }
}
