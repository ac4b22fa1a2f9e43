//! Devices by the identities that all processes know.

use gpu_vmm_core::{Backend, DeviceUuid, Properties};
use gpu_vmm_share::manifest::MemoryKind;

/// Returns properties with this process's number of the device.
///
/// # Errors
///
/// Why there are none: this process does not see the device, or does not know the kind.
pub(super) fn properties<B: Backend>(
    backend: &B,
    device: DeviceUuid,
    kind: MemoryKind,
) -> Result<Properties, String> {
    let known = backend.devices().iter().find(|known| known.uuid == Some(device));
    let known = known.ok_or_else(|| format!("the server does not see the device {device}"))?;
    kind.of_device(known.id)
}

/// Returns the identity of a device of which the server has created memory.
pub(super) fn uuid<B: Backend>(backend: &B, properties: &Properties) -> DeviceUuid {
    let device = backend.devices().iter().find(|device| device.id == properties.device);
    device.and_then(|device| device.uuid).unwrap_or(DeviceUuid([0; 16]))
}
