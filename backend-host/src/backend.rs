//! The opened backend and its trait implementations.
#![allow(unsafe_code)]

use crate::capture::Waiting;
use crate::config::HostConfig;
use crate::handle::HostHandle;
use crate::host::Host;
use crate::memory::{CREATE, Memory};
use crate::reservation::HostReservation;
use crate::stream_names::default_of;
use crate::{capabilities, copy, event, memory_types, quirks, share, staging, stream};
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
#[cfg(feature = "experimental-multicast")]
use gpu_vmm_core::multicast::{MulticastBackend, NoMulticast};
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Detail, Device, DeviceId,
    DriverInfo, Error, Event, FabricHandle, Granularity, MemoryCalls, MemoryInfo, Operation, Pinned,
    Properties, Quirk, Result, Stream, SyncCalls, Vendor,
};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A backend that emulates GPUs with host memory: see the [crate's documentation](crate).
///
/// Every opened backend is an instance of its own. It lives until the last of its clones, handles and reservations is dropped.
#[derive(Clone)]
pub struct HostBackend(pub(crate) Arc<Host>);

impl fmt::Debug for HostBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host memory, devices: {}", self.0.devices.len())
    }
}

impl HostBackend {
    /// Opens the default configuration: one device with all of the machine's memory and a granularity of 2 MiB.
    ///
    /// # Errors
    ///
    /// As for [`HostConfig::open`].
    pub fn open() -> Result<Self> {
        Self::with(&HostConfig::new())
    }

    fn with(config: &HostConfig) -> Result<Self> {
        Host::open(config).map(|host| Self(Arc::new(host)))
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

// SAFETY: the devices and their properties are set when the backend is opened, and never change.
unsafe impl Backend for HostBackend {
    fn vendor(&self) -> Vendor {
        Vendor::Host
    }

    fn instance(&self) -> InstanceId {
        self.0.instance
    }

    fn driver(&self) -> DriverInfo {
        self.0.kernel.clone()
    }

    fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Counts only the memory of this backend; other use of the machine's memory is not included.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.0.device_memory(Operation::QueryMemory, device).map(|device_memory| device_memory.info())
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        for one in [device, owner] {
            self.0.device_memory(Operation::QueryPeerAccess, one)?;
        }
        Ok(device == owner || self.0.peers)
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        const OPERATION: Operation = Operation::QueryCapabilities;
        self.0.process.check(OPERATION)?;
        capabilities::of(&self.0, self.device(OPERATION, device)?)
    }

    fn quirks(&self) -> Vec<Quirk> {
        quirks::of(self.0.kernel.version_number)
    }

    fn unmaps_runs(&self) -> bool {
        self.0.unmaps_runs
    }

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        memory_types::check_place(operation, properties.location)?;
        let device = self.device(operation, properties.device)?;
        let is_hosts = properties.location.is_host();
        Ok(if is_hosts { self.0.host_granularity } else { device.granularity })
    }

    /// The addresses are the process's own.
    fn check_host_access(&self, _operation: Operation, _properties: &Properties) -> Result<()> {
        Ok(())
    }

    fn deferred(&self) -> &Deferred {
        &self.0.deferred
    }

    fn drop_log(&self) -> &DropLog {
        &self.0.log
    }
}

// SAFETY: memory and addresses are the kernel's own.
unsafe impl MemoryCalls for HostBackend {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<HostHandle> {
        // As a driver does; the core has already rounded the size.
        let unit = self.granularity_of(CREATE, properties)?;
        if !unit.divides(size) {
            let why = format!("{size} is no multiple of the granularity {unit}");
            let source = refusal("the host backend", Errno::INVAL, why);
            return Err(Error::new(CREATE, Detail::Driver { source, context: properties.to_string() }));
        }
        let memory = Memory::create(&self.0, size, properties)?;
        Ok(HostHandle { memory, properties: memory_types::given(properties) })
    }

    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<HostHandle> {
        self.0.device_memory(Operation::ImportMemory, properties.device)?;
        Ok(HostHandle {
            memory: Memory::import(&self.0, fd, size)?,
            properties: memory_types::given(properties),
        })
    }

    unsafe fn import_fabric(&self, _: &FabricHandle, _: Bytes, _: &Properties) -> Result<HostHandle> {
        Err(share::no_fabric(Operation::ImportMemory))
    }

    unsafe fn adopt(&self, at: Address) -> Result<HostHandle> {
        HostHandle::adopt(&self.0, at)
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<HostReservation> {
        self.0.process.check(Operation::Reserve)?;
        HostReservation::new(&self.0, size, alignment, hint)
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.0.allocate_plain(device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { self.0.free_plain(device, at, size) }
    }
}

// SAFETY: the CPU copies, before the call returns or in the queue of the stream.
unsafe impl CopyCalls for HostBackend {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        self.0.after_default_stream(Operation::CopyFromHost, device)?;
        // SAFETY: the caller upholds the trait's contract, here and below.
        unsafe { copy::from_host(&self.0, device, to, from) }
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        self.0.after_default_stream(Operation::CopyToHost, device)?;
        // SAFETY: as above.
        unsafe { copy::to_host(&self.0, device, to, from) }
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        self.0.after_default_stream(Operation::Copy, device)?;
        // SAFETY: as above.
        unsafe { copy::between(&self.0, device, to, from, length) }
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        self.0.after_default_stream(Operation::Fill, device)?;
        // SAFETY: as above.
        unsafe { copy::fill(&self.0, device, at, length, value) }
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        staging::pin(&self.0, size)
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        staging::copy_stream(&self.0, device)
    }
}

// SAFETY: work in flight is waited for in its queue.
unsafe impl SyncCalls for HostBackend {
    /// Waits for the work that [`start_pattern_on`](gpu_vmm_core::testkit::TestKit::start_pattern_on) has started: all other work
    /// is complete when its call returns.
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        let operation = Operation::WaitForDevice;
        self.0.device_memory(operation, device)?;
        self.0.queues.wait_for_device(operation, device)?;
        self.0.queues.check_alive(operation, device)
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::WaitForStream;
        let (device, name) = stream::of(&self.0, operation, device, stream)?;
        if name == default_of(device) {
            self.0.queues.wait_for_default(operation, device)?;
        } else {
            self.0.queues.check_waiting(operation, Waiting::Stream(name))?;
            self.0.queues.wait(operation, self.0.queues.place(operation, name)?)?;
        }
        self.0.queues.check_alive(operation, device)
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        event::create(&self.0, device)
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        let operation = Operation::QueryCapture;
        match stream::check(&self.0, operation, stream)? {
            Some(_) => self.0.queues.is_capturing(operation, stream.as_raw().addr()),
            None => {
                let mut devices = self.0.devices.iter().map(|device| default_of(device.id));
                devices.try_fold(false, |is, name| Ok(is || self.0.queues.is_capturing(operation, name)?))
            }
        }
    }

    fn queries_spoil_captures(&self) -> bool {
        false
    }
}

// SAFETY: there are no multicast objects.
#[cfg(feature = "experimental-multicast")]
unsafe impl MulticastBackend for HostBackend {
    type Driver = NoMulticast<HostHandle>;

    fn multicast(&self, operation: Operation) -> Result<Self::Driver> {
        Err(Error::new(operation, Detail::Unsupported { reason: capabilities::NO_MULTICAST.to_owned() }))
    }
}
