//! Starts the driver, once per process.

use crate::device;
use crate::driver::Driver;
use crate::lease::Leases;
use crate::loader::Loaded;
use gpu_vmm_core::extend::{Deferred, DriverProcess, InstanceId, Process, allow_nvtx};
use gpu_vmm_core::{Detail, Error, Operation, Result, Vendor};
use std::sync::OnceLock;

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// The process in which the driver was started and had no device, and the reason.
static NO_DEVICE: OnceLock<(Process, String)> = OnceLock::new();

impl Driver {
    /// Returns the driver; the first call starts it. A call that fails leaves no state behind, and the next call tries again.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(driver) = DRIVER.get() {
            driver.process.check(Operation::Open)?;
            return Ok(driver);
        }
        without_device()?;
        let current = Process::current();
        let process = DriverProcess::new(current);
        let note = |error: &Error| {
            if let Detail::NoDevice { reason, .. } = error.detail() {
                NO_DEVICE.get_or_init(|| (current, reason.clone()));
            }
        };
        let loaded = Loaded::new().inspect_err(note)?;
        allow_nvtx();
        let (devices, states) = device::list(&loaded).inspect_err(note)?.into_iter().unzip();
        process.watch_exit();
        let (instance, deferred, leases) = (InstanceId::unique(), Deferred::new(), Leases::default());
        let driver = Self { loaded, process, instance, deferred, leases, devices, states };
        // If two threads get here at once, both have started the same driver, and one of the two records is dropped.
        Ok(DRIVER.get_or_init(|| driver))
    }
}

/// Returns the error of the parent in a child of a process in which the driver has no device. NVIDIA's driver crashes in `cuInit` there.
fn without_device() -> Result<()> {
    match NO_DEVICE.get() {
        Some((process, reason)) if !process.is_this() => {
            let (vendor, reason) = (Vendor::Cuda, reason.clone());
            Err(Error::new(Operation::Open, Detail::NoDevice { vendor, reason }))
        }
        _ => Ok(()),
    }
}
