//! The driver as this process has it: one, whoever opens it and however often.

use crate::device;
use crate::lease::Leases;
use crate::loader::Loaded;
use crate::slot::Slot;
use gpu_vmm_core::extend::{Deferred, InstanceId, Process};
use gpu_vmm_core::{Device, Operation, Result};
use std::sync::OnceLock;

/// The started driver and what is found out once for the process.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) loaded: Loaded,
    pub(crate) process: Process,
    pub(crate) instance: InstanceId,
    pub(crate) deferred: Deferred,
    /// The contexts that backends were opened with.
    pub(crate) leases: Leases,
    pub(crate) devices: Vec<Device>,
    /// What belongs to each of `devices`.
    pub(crate) slots: Vec<Slot>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// The driver, started by the first call. A call that fails leaves nothing behind, and the next one tries again.
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
        // Where two threads come here at once, both have started the same driver, and one of the two records of it
        // is dropped again.
        Ok(DRIVER.get_or_init(|| driver))
    }
}
