//! On what a run was made.

use gpu_vmm_core::{Backend, DeviceId, Workbench};
use serde::{Deserialize, Serialize};

/// On what a run was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// What was run on: `cuda`, `hip`, `host`.
    pub target: String,
    /// The driver's version, as people write it.
    pub driver: String,
    /// The device that was chosen.
    pub device: String,
}

impl Environment {
    pub(crate) fn of<B: Workbench>(target: &str, backend: &B, device: DeviceId) -> Self {
        let devices: &[gpu_vmm_core::Device] = Backend::devices(backend);
        let name = devices.get(device.0 as usize).map(|found| found.name.clone()).unwrap_or_default();
        Self { target: target.to_owned(), driver: backend.driver().version, device: name }
    }
}
