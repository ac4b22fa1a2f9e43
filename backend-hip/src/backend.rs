//! [`HipBackend`]: the core's backend traits, forwarded to the other modules.
#![allow(unsafe_code)] // the trait's functions are unsafe to call

use crate::driver::Driver;
use crate::handle::HipHandle;
use crate::reservation::HipReservation;
use crate::{addresses, adopt, capabilities, event, loader, memory_types, quirks, staging};
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
#[cfg(feature = "experimental-multicast")]
use gpu_vmm_core::multicast::{MulticastBackend, NoMulticast};
use gpu_vmm_core::{
    Address, AddressRange, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Device, DeviceId,
    DriverInfo, Event, FabricHandle, Granularity, MemoryCalls, MemoryInfo, Operation, Pinned, Properties,
    Quirk, Result, Stream, SyncCalls, Vendor,
};
#[cfg(any(doc, feature = "experimental-multicast"))]
use gpu_vmm_core::{Detail, Error};
use std::fmt;
use std::sync::Arc;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

/// AMD's HIP runtime.
#[derive(Clone)]
pub struct HipBackend {
    pub(crate) driver: Arc<Driver>,
}

impl fmt::Debug for HipBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.driver, f)
    }
}

impl HipBackend {
    /// Loads HIP, or returns the backend that is already loaded: a process has one.
    ///
    /// If `GPU_VMM_HIP_LIBRARY` is set, it names the library. Otherwise the call takes a copy that the process has
    /// already loaded, then the first that can be used of:
    ///
    /// 1. the libraries in the folder `GPU_VMM_HIP_FOLDER`;
    /// 2. `libamdhip64.so.8`, `.so.7` and `.so.6` in the loader's own folders;
    /// 3. the libraries in `$ROCM_PATH/lib`, in `_rocm_sdk_core/lib` of the Python environments `$VIRTUAL_ENV` and
    ///    `$CONDA_PREFIX`, in `/opt/rocm/lib`, `/opt/rocm/core/lib`, and `/opt/rocm/core-X.Y/lib`, the newest first;
    /// 4. `libamdhip64.so` in the loader's own folders.
    ///
    /// On Windows it tries `amdhip64_7.dll` and `amdhip64_6.dll` in the system folder, in `%GPU_VMM_HIP_FOLDER%` and in
    /// `%HIP_PATH%\bin`.
    ///
    /// Failures are not cached: the next call searches again.
    ///
    /// # Errors
    ///
    /// [`Detail::LibraryNotFound`] with every attempt, [`Detail::LibraryRefused`] for HIP before 6.1,
    /// [`Detail::NoDevice`], [`Detail::Forked`], or HIP's error.
    pub fn open() -> Result<Self> {
        Ok(Self { driver: Driver::open()? })
    }

    /// Returns true if this process has already loaded the HIP runtime, through gpu-vmm or otherwise.
    #[must_use]
    pub fn is_loaded() -> bool {
        loader::is_loaded()
    }

    /// Frees the address ranges that were kept after their reservations were dropped, and returns their number.
    ///
    /// HIP 6 crashes if a reservation gets an address that was freed just before. There, dropped reservations are kept
    /// and reused by later ones; this costs addresses but no memory, and no more of them than the program has reserved at one
    /// time, plus what its sizes leave between them. A program needs this only if it reserves new sizes for months. It can call
    /// it while no GPU works. The call waits for all
    /// devices and then 100 ms, which makes HIP's race unlikely but not impossible. HIP 7.0 and later keep nothing.
    ///
    /// # Errors
    ///
    /// [`Detail::DeviceLost`], [`Detail::Forked`], or HIP's error; ranges that HIP refused to free are lost.
    pub fn release_kept_addresses(&self) -> Result<usize> {
        addresses::release_kept(&self.driver)
    }

    pub(crate) fn exists(&self, operation: Operation, device: DeviceId) -> Result<&Device> {
        self.driver.device(operation, device)
    }
}

// SAFETY: the process has one runtime, which answers all calls; it made the handles and reservations.
unsafe impl Backend for HipBackend {
    fn vendor(&self) -> Vendor {
        Vendor::Hip
    }

    fn instance(&self) -> InstanceId {
        self.driver.instance
    }

    fn driver(&self) -> DriverInfo {
        self.driver.info()
    }

    fn devices(&self) -> &[Device] {
        self.driver.devices()
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.exists(Operation::QueryMemory, device)?;
        self.driver.memory_info(device)
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        self.exists(Operation::QueryPeerAccess, device)?;
        self.exists(Operation::QueryPeerAccess, owner)?;
        self.driver.can_access(device, owner)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        const OPERATION: Operation = Operation::QueryCapabilities;
        self.driver.process.check(OPERATION)?;
        capabilities::of(&self.driver, self.exists(OPERATION, device)?)
    }

    fn quirks(&self) -> Vec<Quirk> {
        let version = self.driver.version();
        quirks::QUIRKS.iter().filter(|quirk| quirk.is_in(version)).copied().collect()
    }

    /// False: HIP 6 leaks all mappings but the first, and one mapping per call works on all versions.
    fn unmaps_runs(&self) -> bool {
        !quirks::workaround_enabled(&quirks::UNMAP_ONE_MAPPING)
    }

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        let device = self.device(operation, properties.device)?;
        memory_types::granularity_of(&self.driver, operation, device, properties)
    }

    fn recommended_granularity(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        let device = self.device(operation, properties.device)?;
        memory_types::recommended_granularity(&self.driver, operation, device, properties)
    }

    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> {
        memory_types::check_host_access(&self.driver, operation, properties)
    }

    fn deferred(&self) -> &Deferred {
        &self.driver.deferred
    }

    fn drop_log(&self) -> &DropLog {
        &self.driver.drop_log
    }
}

// SAFETY: the runtime made the handles and reservations.
unsafe impl MemoryCalls for HipBackend {
    type Handle = HipHandle;

    type Reservation = HipReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<HipHandle> {
        const OPERATION: Operation = Operation::CreateMemory;
        self.driver.process.check(OPERATION)?;
        memory_types::check(&self.driver, OPERATION, properties)?;
        #[cfg(windows)]
        if properties.handle_types.contains(gpu_vmm_core::HandleTypes::WIN32) {
            return crate::win32::create(&self.driver, size, properties);
        }
        HipHandle::create(&self.driver, size, properties)
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<HipHandle> {
        crate::share::import(&self.driver, fd, size, properties)
    }

    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<HipHandle> {
        crate::win32::import(&self.driver, from, size, properties)
    }

    unsafe fn import_fabric(
        &self,
        from: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<HipHandle> {
        memory_types::check_fabric(&self.driver, Operation::ImportMemory, properties.device)?;
        crate::fabric::import(&self.driver, from, size, properties)
    }

    unsafe fn adopt(&self, at: Address) -> Result<HipHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { adopt::adopt(&self.driver, at) }
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<HipReservation> {
        HipReservation::new(&self.driver, size, alignment, hint)
    }

    unsafe fn reserve_kept(
        &self,
        size: Bytes,
        alignment: Alignment,
        within: AddressRange,
        random: u64,
    ) -> Option<HipReservation> {
        HipReservation::kept(&self.driver, size, alignment, within, random)
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.driver.allocate_plain(Operation::Allocate, device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_plain(Operation::Free, device, at, size) }
    }
}

// SAFETY: the runtime copies, and a call returns after the copy; pinned memory and streams belong to the runtime.
unsafe impl CopyCalls for HipBackend {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy_from_host(device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy_to_host(device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy(device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.fill(device, at, length, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        staging::pin(&self.driver, size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        self.exists(Operation::CreateStream, device)?;
        staging::copy_stream(&self.driver, device)
    }
}

// SAFETY: the runtime waits; events belong to the runtime.
unsafe impl SyncCalls for HipBackend {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.exists(Operation::WaitForDevice, device)?;
        self.driver.synchronize(Operation::WaitForDevice, device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        self.driver.synchronize_stream(device, stream)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.exists(Operation::CreateEvent, device)?;
        event::create(&self.driver, device)
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        event::is_capturing(&self.driver, stream)
    }

    /// True if the calling thread cannot be put into relaxed capture mode, in which queries invalidate no capture.
    fn queries_spoil_captures(&self) -> bool {
        !self.driver.can_relax()
    }

    fn waits_spoil_captures(&self) -> bool {
        !self.driver.waits_by_freeing()
    }
}

// SAFETY: HIP has no multicast objects.
#[cfg(feature = "experimental-multicast")]
unsafe impl MulticastBackend for HipBackend {
    type Driver = NoMulticast<HipHandle>;

    fn multicast(&self, operation: Operation) -> Result<Self::Driver> {
        let reason = capabilities::NO_MULTICAST.to_owned();
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }
}
