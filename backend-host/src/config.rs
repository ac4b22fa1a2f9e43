//! What machine a host backend plays: how many devices, with how much memory, in which units.

use crate::HostBackend;
#[cfg(doc)]
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Bytes, Result};

/// A machine to be played by the host's memory. What is not set is as in [`HostConfig::new`].
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub(crate) devices: u32,
    pub(crate) memory: Option<Bytes>,
    pub(crate) granularity: Bytes,
    pub(crate) host_granularity: Option<Bytes>,
    pub(crate) peers: bool,
    pub(crate) unmaps_runs: bool,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl HostConfig {
    /// One device with all of the machine's memory and a granularity of 2 MiB, which is what GPUs have.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            devices: 1,
            memory: None,
            granularity: Bytes::mib(2),
            host_granularity: None,
            peers: true,
            unmaps_runs: true,
        }
    }

    /// How many devices: 1 to [`DeviceId::LIMIT`](gpu_vmm_core::DeviceId::LIMIT).
    #[must_use]
    pub const fn devices(mut self, count: u32) -> Self {
        self.devices = count;
        self
    }

    /// How much memory each device has; it is rounded down to the granularity. More than the machine has can be
    /// set, as long as not all of it is touched.
    #[must_use]
    pub const fn memory(mut self, each: Bytes) -> Self {
        self.memory = Some(each);
        self
    }

    /// The unit of physical memory: a power of two, at least a page of the machine (4 KiB on most).
    #[must_use]
    pub const fn granularity(mut self, unit: Bytes) -> Self {
        self.granularity = unit;
        self
    }

    /// The unit of memory that is asked for as [the host's](gpu_vmm_core::Location::Host): the granularity or a larger
    /// power of two. Without this it is the granularity; drivers have memory of several units.
    #[must_use]
    pub const fn host_granularity(mut self, unit: Bytes) -> Self {
        self.host_granularity = Some(unit);
        self
    }

    /// No device reaches the memory of another; without this each reaches all.
    #[must_use]
    pub const fn without_peers(mut self) -> Self {
        self.peers = false;
        self
    }

    /// One call unmaps one mapping, as on HIP; without this it may unmap several that follow each other, as on CUDA.
    #[must_use]
    pub const fn unmapping_singly(mut self) -> Self {
        self.unmaps_runs = false;
        self
    }

    /// Opens a backend that plays this machine. It is an instance of its own: its handles cannot be mapped by
    /// another.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for numbers that no machine here can have, and on
    /// systems other than 64-bit Linux; [`Detail::Driver`] where the kernel gives no
    /// memfd.
    pub fn open(&self) -> Result<HostBackend> {
        HostBackend::with(self)
    }
}
