//! What a device supports, and the evidence for each answer.

use crate::attributes;
use crate::driver::Driver;
use crate::{memory_types, probe};
use gpu_vmm_core::{Access, Capability, Device, Evidence, Feature, HandleTypes, Result};
use std::sync::Arc;

/// Why there is no multicast.
pub(crate) const NO_MULTICAST: &str = "HIP has no API for it";

/// Returns the capabilities of a device; of an unusable device, only the reason.
pub(crate) fn of(driver: &Arc<Driver>, device: &Device) -> Result<Vec<Capability>> {
    if let Some(reason) = &device.unusable {
        return Ok(vec![Capability::no(Feature::VirtualMemory, Evidence::Attribute, reason)]);
    }
    Ok(vec![
        virtual_memory(driver, device),
        fixed_address(driver, device),
        read_only(driver, device),
        peers(driver, device)?,
        descriptor(driver, device),
        win32_handle(driver, device),
        attributes::fabric(driver, device.id),
        Capability::no(Feature::Multicast, Evidence::Design, NO_MULTICAST),
        memory_types::host_access(driver, device)?,
        memory_types::host_memory(driver, device)?,
        memory_types::host_node_memory(driver, device)?,
        Capability::no(Feature::Compression, Evidence::Design, memory_types::NO_COMPRESSION),
        attributes::remote_dma(driver, device.id),
        dma_buf(driver, device),
    ])
}

fn virtual_memory(driver: &Arc<Driver>, device: &Device) -> Capability {
    match probe::memory_comes_back(driver, device) {
        Ok(true) => Capability::yes(
            Feature::VirtualMemory,
            Evidence::Trial,
            "unmapped and released memory returns to the device while its addresses stay reserved",
        ),
        Ok(false) => Capability::yes(
            Feature::VirtualMemory,
            Evidence::Trial,
            "unmapped and released memory does NOT return to the device while its addresses stay reserved; closing or \
             suspending a region returns it",
        ),
        Err(error) => Capability::no(Feature::VirtualMemory, Evidence::Trial, error.to_string()),
    }
}

fn fixed_address(driver: &Arc<Driver>, device: &Device) -> Capability {
    match probe::fixed_address(driver, device) {
        Ok((true, given, _)) => {
            let note = format!(
                "{} was requested and returned; a hint that is taken yields another address",
                given.base
            );
            Capability::yes(Feature::FixedAddress, Evidence::Trial, note)
        }
        Ok((false, given, hint)) => {
            let reason = format!("{hint} was requested and {} returned", given.base);
            Capability::no(Feature::FixedAddress, Evidence::Trial, reason)
        }
        Err(error) => Capability::no(Feature::FixedAddress, Evidence::Trial, error.to_string()),
    }
}

fn read_only(driver: &Arc<Driver>, device: &Device) -> Capability {
    match probe::read_only(driver, device) {
        Ok(Access::Read) => Capability::yes(
            Feature::ReadOnlyAccess,
            Evidence::Trial,
            "set and read back; a write faults in the hardware and ends the process",
        ),
        Ok(other) => Capability::no(
            Feature::ReadOnlyAccess,
            Evidence::Trial,
            format!("set, but {other} was read back"),
        ),
        Err(error) => Capability::no(Feature::ReadOnlyAccess, Evidence::Trial, error.to_string()),
    }
}

fn peers(driver: &Driver, device: &Device) -> Result<Capability> {
    let mut reachable = Vec::new();
    let others = driver.devices().iter().filter(|other| other.id != device.id);
    for other in others.clone() {
        if driver.can_access(device.id, other.id)? {
            reachable.push(other.id.0.to_string());
        }
    }
    let others = others.count();
    Ok(if reachable.is_empty() {
        let reason = format!("hipDeviceCanAccessPeer: none of {others} other devices");
        Capability::no(Feature::PeerAccess, Evidence::Attribute, reason)
    } else {
        let note = format!("hipDeviceCanAccessPeer: devices {} of {others} others", reachable.join(", "));
        Capability::yes(Feature::PeerAccess, Evidence::Attribute, note)
    })
}

fn descriptor(driver: &Arc<Driver>, device: &Device) -> Capability {
    cfg_if::cfg_if! {
        if #[cfg(unix)] {
            use crate::quirks::ImportForm;
            match probe::export(driver, device) {
                Ok(()) if driver.quirks.import_form == ImportForm::Unknown => Capability::no(
                    Feature::FileDescriptor,
                    Evidence::Version,
                    "export works; how this version imports is unknown, and a wrong guess crashes",
                ),
                Ok(()) => Capability::yes(Feature::FileDescriptor, Evidence::Trial, "created and exported"),
                Err(error) => Capability::no(Feature::FileDescriptor, Evidence::Trial, error.to_string()),
            }
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::FILE_DESCRIPTOR.missing_here().unwrap_or_default();
            Capability::no(Feature::FileDescriptor, Evidence::Design, reason)
        }
    }
}

fn win32_handle(driver: &Arc<Driver>, device: &Device) -> Capability {
    cfg_if::cfg_if! {
        if #[cfg(windows)] {
            match crate::win32::works(gpu_vmm_core::Operation::QueryCapabilities, driver, device.id) {
                Ok(handle_type) => {
                    let note = format!("created as type {}, exported and imported", handle_type.0);
                    Capability::yes(Feature::Win32Handle, Evidence::Trial, note)
                }
                Err(error) => {
                    let reason = match error.detail() {
                        gpu_vmm_core::Detail::Unsupported { reason } => reason.clone(),
                        _ => error.to_string(),
                    };
                    Capability::no(Feature::Win32Handle, Evidence::Trial, reason)
                }
            }
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::WIN32.missing_here().unwrap_or_default();
            Capability::no(Feature::Win32Handle, Evidence::Design, reason)
        }
    }
}

fn dma_buf(driver: &Arc<Driver>, device: &Device) -> Capability {
    cfg_if::cfg_if! {
        if #[cfg(unix)] {
            match probe::dma_buf(driver, device) {
                Ok(()) => Capability::yes(Feature::DmaBuf, Evidence::Trial, "exports one mapping per dma-buf"),
                Err(error) => Capability::no(Feature::DmaBuf, Evidence::Trial, error.to_string()),
            }
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::FILE_DESCRIPTOR.missing_here().unwrap_or_default();
            Capability::no(Feature::DmaBuf, Evidence::Design, reason)
        }
    }
}
