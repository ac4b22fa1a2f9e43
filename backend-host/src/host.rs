//! The state that a backend, its handles and its reservations share.

use crate::config::HostConfig;
use crate::device::{self, DeviceMemory};
use crate::mappings::Mappings;
use crate::queues::Queues;
use crate::reserve_mappings::ReserveMappings;
use crate::store::Store;
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId, Process};
use gpu_vmm_core::{Detail, Device, DeviceId, DriverInfo, Error, Granularity, Operation, Result, Vendor};
use std::sync::Arc;

/// The state that a backend, its handles and its reservations share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) process: Process,
    pub(crate) store: Store,
    pub(crate) reserve_mappings: ReserveMappings,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) queues: Queues,
    pub(crate) log: DropLog,
    pub(crate) deferred: Deferred,
    pub(crate) instance: InstanceId,
    pub(crate) kernel: DriverInfo,
    pub(crate) devices: Vec<Device>,
    pub(crate) device_memories: Vec<Arc<DeviceMemory>>,
    pub(crate) host_granularity: Granularity,
    pub(crate) peers: bool,
    pub(crate) unmaps_runs: bool,
}

impl Host {
    pub(crate) fn open(config: &HostConfig) -> Result<Self> {
        let devices = device::devices(config)?;
        let (process, mappings) = (Process::current(), Arc::default());
        Ok(Self {
            process,
            queues: Queues::new(process, &mappings),
            store: Store::open().map_err(|source| {
                Error::driver(Operation::Open, source, "the file behind physical memory")
            })?,
            reserve_mappings: ReserveMappings::new(),
            mappings,
            log: DropLog::new(),
            deferred: Deferred::new(),
            instance: InstanceId::unique(),
            kernel: device::kernel(),
            device_memories: devices.iter().map(|device| DeviceMemory::new(device.total_memory)).collect(),
            devices,
            host_granularity: device::host_granularity(config)?,
            peers: config.peers,
            unmaps_runs: config.unmaps_runs,
        })
    }

    /// Returns the memory of a device; an error in a forked child.
    pub(crate) fn device_memory(&self, operation: Operation, device: DeviceId) -> Result<&Arc<DeviceMemory>> {
        self.process.check(operation)?;
        let count = self.devices.len() as u32;
        self.device_memories.get(device.0 as usize).ok_or_else(|| {
            Error::new(operation, Detail::NoSuchDevice { device, vendor: Vendor::Host, count })
        })
    }

    /// Waits for the work on a device's default stream before a synchronous copy, fill or kernel of that stream.
    pub(crate) fn after_default_stream(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.device_memory(operation, device)?;
        self.queues.wait_for_default(operation, device)
    }

    pub(crate) const fn has_peers(&self) -> bool {
        self.peers
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.process.is_this() {
            // No caller is left to receive an error, and a failure leaks only a few unused pages.
            let _ = self.reserve_mappings.release();
        }
    }
}
