//! The process's one driver, and what a backend shares with its handles, reservations and streams.

use crate::device_state::DeviceState;
use crate::ffi::Functions;
use crate::lease::{Attached, Leases};
use crate::loader::Loaded;
use gpu_vmm_core::extend::{Deferred, DriverProcess, DropLog, InstanceId, usable_device};
use gpu_vmm_core::{Detail, Device, DeviceId, Error, Operation, Result, Vendor};
use std::fmt;

/// The started driver and the state that the process has once.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) loaded: Loaded,
    pub(crate) process: DriverProcess,
    pub(crate) instance: InstanceId,
    pub(crate) deferred: Deferred,
    /// The contexts that programs opened backends with.
    pub(crate) leases: Leases,
    pub(crate) devices: Vec<Device>,
    /// The state of each of `devices`.
    pub(crate) states: Vec<DeviceState>,
}

/// The driver as one backend has opened it. The backend's handles, reservations and streams share it.
pub(crate) struct Opened {
    pub(crate) driver: &'static Driver,
    pub(crate) attached: Option<Attached>,
    pub(crate) drop_log: DropLog,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.driver.loaded.info;
        write!(f, "CUDA {} from {}, devices: {}", info.version, info.library, self.driver.devices.len())
    }
}

impl Opened {
    #[inline]
    pub(crate) fn functions(&self) -> &'static Functions {
        &self.driver.loaded.functions
    }

    /// Returns [`Detail::Forked`] in a forked child, and [`Detail::Exiting`] while the process exits.
    #[inline]
    pub(crate) fn here(&self, operation: Operation) -> Result<()> {
        self.driver.process.check(operation)
    }

    pub(crate) fn devices(&self) -> &'static [Device] {
        &self.driver.devices
    }

    /// Returns a device, if it exists and is usable.
    pub(crate) fn device(&self, operation: Operation, device: DeviceId) -> Result<&'static Device> {
        usable_device(operation, Vendor::Cuda, self.devices(), device)
    }

    /// Returns the state that the process keeps for a device, usable or not.
    pub(crate) fn state(&self, operation: Operation, device: DeviceId) -> Result<&'static DeviceState> {
        let states = &self.driver.states;
        states.get(device.0 as usize).ok_or_else(|| {
            Error::new(
                operation,
                Detail::NoSuchDevice { device, vendor: Vendor::Cuda, count: states.len() as u32 },
            )
        })
    }
}
