//! The process's one driver, shared by all backends.

use crate::device;
use crate::lease::Leases;
use crate::loader::Loaded;
use crate::slot::Slot;
use gpu_vmm_core::extend::{Deferred, InstanceId, Process};
use gpu_vmm_core::{Device, Operation, Result};
use std::sync::OnceLock;

/// The started driver and the state that the process has once.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) loaded: Loaded,
    pub(crate) process: Process,
    pub(crate) instance: InstanceId,
    pub(crate) deferred: Deferred,
    /// The contexts that programs opened backends with.
    pub(crate) leases: Leases,
    pub(crate) devices: Vec<Device>,
    /// The state of each of `devices`.
    pub(crate) slots: Vec<Slot>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// Returns the driver; the first call starts it. A call that fails leaves no state behind, and the next call tries again.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(driver) = DRIVER.get() {
            driver.process.check(Operation::Open)?;
            return Ok(driver);
        }
        let process = Process::current();
        let loaded = Loaded::new()?;
        let (devices, slots) = device::list(&loaded)?.into_iter().unzip();
        let (instance, deferred, leases) = (InstanceId::unique(), Deferred::new(), Leases::default());
        let driver = Self { loaded, process, instance, deferred, leases, devices, slots };
        // If two threads get here at once, both have started the same driver, and one of the two records is dropped.
        Ok(DRIVER.get_or_init(|| driver))
    }
}
