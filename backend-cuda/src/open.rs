//! Starts the driver, once per process.

use crate::device;
use crate::driver::Driver;
use crate::lease::Leases;
use crate::loader::Loaded;
use gpu_vmm_core::extend::{Deferred, DriverProcess, InstanceId, Process, allow_nvtx};
use gpu_vmm_core::{Operation, Result};
use std::sync::OnceLock;

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// Returns the driver; the first call starts it. A call that fails leaves no state behind, and the next call tries again.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(driver) = DRIVER.get() {
            driver.process.check(Operation::Open)?;
            return Ok(driver);
        }
        let process = DriverProcess::new(Process::current());
        let loaded = Loaded::new()?;
        allow_nvtx();
        let (devices, states) = device::list(&loaded)?.into_iter().unzip();
        process.watch_exit();
        let (instance, deferred, leases) = (InstanceId::unique(), Deferred::new(), Leases::default());
        let driver = Self { loaded, process, instance, deferred, leases, devices, states };
        // If two threads get here at once, both have started the same driver, and one of the two records is dropped.
        Ok(DRIVER.get_or_init(|| driver))
    }
}
