//! Attributes of devices.

use crate::c::{Answer, HipError};
use crate::settings::SETTINGS;
use std::ffi::c_int;

/// `hipDeviceAttributeComputeMode`: 0 is the default, the only mode of AMD's runtime.
const COMPUTE_MODE: c_int = 6;
/// `hipDeviceAttributeVirtualMemoryManagementSupported`, the same number in all versions.
const VIRTUAL_MEMORY: c_int = 89;
/// `hipDeviceAttributeIsLargeBar`.
const LARGE_BAR: c_int = 10011;
/// `hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported`.
const REMOTE_DMA: c_int = 94;
/// `hipDeviceAttributeHandleTypeFabricSupported`.
const FABRIC: c_int = 95;
/// The version that added the last two.
const OF_7_14: u32 = 71_400_000;

/// Returns an attribute of a device.
pub(crate) fn of(attribute: c_int, device: usize) -> Answer<bool> {
    let is_set = match attribute {
        VIRTUAL_MEMORY => device >= SETTINGS.without_vmm,
        COMPUTE_MODE => false,
        LARGE_BAR => true,
        REMOTE_DMA if SETTINGS.version >= OF_7_14 => true,
        FABRIC if SETTINGS.version >= OF_7_14 => false,
        _ => return Err(HipError::INVALID_VALUE),
    };
    let names = [attribute.to_string(), format!("{attribute}@{device}")];
    let is_negated = names.iter().any(|name| SETTINGS.negates.contains(name));
    Ok(is_set != is_negated)
}

/// Returns whether a device's memory can have fabric handles.
pub(crate) fn has_fabric(device: usize) -> bool {
    of(FABRIC, device) == Ok(true)
}
