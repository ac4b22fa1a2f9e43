//! The configuration of the emulated machine: the number of devices, their memory and their granularity.

use gpu_vmm_core::Bytes;

/// The configuration of a host backend. Settings that are not changed are as in [`HostConfig::new`].
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub(crate) devices: u32,
    pub(crate) memory: Option<Bytes>,
    pub(crate) granularity: Bytes,
    pub(crate) host_granularity: Option<Bytes>,
    pub(crate) peers: bool,
    pub(crate) unmaps_runs: bool,
    pub(crate) virtual_memory: bool,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl HostConfig {
    /// Returns the default configuration: one device with all of the machine's memory and a granularity of 2 MiB, as GPUs have.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            devices: 1,
            memory: None,
            granularity: Bytes::mib(2),
            host_granularity: None,
            peers: true,
            unmaps_runs: true,
            virtual_memory: true,
        }
    }

    /// Sets the number of devices, from 1 to [`DeviceId::LIMIT`](gpu_vmm_core::DeviceId::LIMIT).
    #[must_use]
    pub const fn devices(mut self, count: u32) -> Self {
        self.devices = count;
        self
    }

    /// Sets the memory of each device, rounded down to the granularity. It can exceed the machine's memory as long as the process
    /// does not touch all of it.
    #[must_use]
    pub const fn memory(mut self, each: Bytes) -> Self {
        self.memory = Some(each);
        self
    }

    /// Sets the granularity of physical memory: a power of two, at least the machine's page size (4 KiB on most).
    #[must_use]
    pub const fn granularity(mut self, unit: Bytes) -> Self {
        self.granularity = unit;
        self
    }

    /// Sets the granularity of [host memory](gpu_vmm_core::Location::Host): the device granularity, which is the default, or a
    /// larger power of two. GPU drivers too have memory types of different granularity.
    #[must_use]
    pub const fn host_granularity(mut self, unit: Bytes) -> Self {
        self.host_granularity = Some(unit);
        self
    }

    /// Denies every device access to the memory of other devices. By default each device has access to all.
    #[must_use]
    pub const fn without_peers(mut self) -> Self {
        self.peers = false;
        self
    }

    /// Makes each call unmap a single mapping, as on HIP. By default one call can unmap several adjacent mappings, as on CUDA.
    #[must_use]
    pub const fn unmapping_singly(mut self) -> Self {
        self.unmaps_runs = false;
        self
    }

    /// Makes all devices such that have [no virtual memory management](gpu_vmm_core::Device::no_virtual_memory), as some profiles of
    /// virtual GPUs, to test a program's behavior there: regions and pools consist of plain allocations.
    #[must_use]
    pub const fn without_virtual_memory(mut self) -> Self {
        self.virtual_memory = false;
        self
    }
}
