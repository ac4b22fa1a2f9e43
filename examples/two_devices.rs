//! The two devices that some examples use.

use gpu_vmm::host::HostConfig;
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Result};

pub(crate) const FIRST: DeviceId = DeviceId(0);
pub(crate) const SECOND: DeviceId = DeviceId(1);

/// Opens the best backend, if it has two devices that can access each other's memory; else host memory that simulates two.
pub(crate) fn open(memory: Bytes) -> Result<AnyBackend> {
    let best = AnyBackend::open_best()?;
    if best.devices().len() >= 2 && best.can_access(FIRST, SECOND)? && best.can_access(SECOND, FIRST)? {
        return Ok(best);
    }
    println!(
        "{} has no two devices that access each other's memory; host memory simulates them",
        best.vendor()
    );
    Ok(HostConfig::new().devices(2).memory(memory).open()?.into())
}
