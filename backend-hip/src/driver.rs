//! The loaded runtime and this backend's state: one instance per process, shared by all objects of the backend.

use crate::device_state::DeviceState;
use crate::kept_addresses::KeptAddresses;
use crate::kernels::Compiled;
use crate::loader::Symbols;
use crate::quirks::{self, Quirks};
use gpu_vmm_core::extend::{Deferred, DriverProcess, DropLog, InstanceId};
use gpu_vmm_core::{Detail, DeviceId, DriverInfo, Error, Operation, Result, Vendor};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The loaded runtime.
pub(crate) struct Driver {
    pub(crate) hip: Symbols,
    pub(crate) quirks: Quirks,
    pub(crate) process: DriverProcess,
    pub(crate) instance: InstanceId,
    pub(crate) drop_log: DropLog,
    pub(crate) deferred: Deferred,
    /// Freed addresses that are kept for later reservations.
    pub(crate) kept: KeptAddresses,
    /// Whether released physical memory returns to the device while its addresses stay reserved; set by the first
    /// probe.
    pub(crate) memory_comes_back: OnceLock<bool>,
    /// Whether the runtime keeps the descriptors that it exports; set by the first export.
    #[cfg_attr(not(unix), allow(dead_code))] // descriptors
    pub(crate) exports_are_kept: OnceLock<bool>,
    /// The test kit's kernels that have been compiled.
    pub(crate) compiled: Compiled,
    pub(crate) version: u32,
    pub(crate) library: String,
    /// The folder of the library's file, if it is known.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) devices: Vec<gpu_vmm_core::Device>,
    pub(crate) states: Vec<DeviceState>,
    pub(crate) calls: Mutex<()>,
}

/// The lock of HIP's calls, held. A function that takes it must be called between [`Driver::enter`] and the end of the operation.
pub(crate) type Entered<'a> = MutexGuard<'a, ()>;

impl Driver {
    /// Begins a virtual memory operation: checks that this process loaded the runtime, and takes the lock. HIP has no
    /// lock around these operations, and looks objects up without holding them.
    pub(crate) fn enter(&self, operation: Operation) -> Result<Entered<'_>> {
        // Before the lock: in a forked child, a thread of the parent may hold it forever.
        self.process.check(operation)?;
        Ok(self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn info(&self) -> DriverInfo {
        DriverInfo {
            version: quirks::readable(self.version),
            version_number: self.version,
            library: self.library.clone(),
        }
    }

    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    pub(crate) fn devices(&self) -> &[gpu_vmm_core::Device] {
        &self.devices
    }

    /// Returns the lazily initialized state of a device.
    pub(crate) fn devices_state(&self, device: DeviceId) -> Result<&DeviceState> {
        self.states.get(device.0 as usize).ok_or_else(|| self.no_such_device(Operation::QueryDevice, device))
    }

    /// Returns a device.
    pub(crate) fn device(&self, operation: Operation, device: DeviceId) -> Result<&gpu_vmm_core::Device> {
        self.devices.get(device.0 as usize).ok_or_else(|| self.no_such_device(operation, device))
    }

    /// Returns the error for a device that does not exist.
    fn no_such_device(&self, operation: Operation, device: DeviceId) -> Error {
        Error::new(
            operation,
            Detail::NoSuchDevice { device, vendor: Vendor::Hip, count: self.devices.len() as u32 },
        )
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HIP {} from {}, devices: {}",
            quirks::readable(self.version),
            self.library,
            self.devices.len()
        )
    }
}
