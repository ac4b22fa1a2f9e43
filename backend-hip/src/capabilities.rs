//! What a device supports, and the evidence for each answer.

use crate::attributes;
use crate::driver::Driver;
use crate::{memory_types, probe};
use gpu_vmm_core::{
    Access, Address, AddressRange, Capability, Device, Evidence, Feature, HandleTypes, Result,
};
use std::sync::Arc;

/// Why there is no multicast.
pub(crate) const NO_MULTICAST: &str = "HIP has no API for it";

/// Returns the capabilities of a device; of one that is unusable or has no virtual memory management, only the reason.
pub(crate) fn of(driver: &Arc<Driver>, device: &Device) -> Result<Vec<Capability>> {
    if let Some(reason) = device.unusable.as_ref().or(device.no_virtual_memory.as_ref()) {
        return Ok(vec![Capability::no(Feature::VirtualMemory, Evidence::Attribute, reason)]);
    }
    Ok(vec![
        virtual_memory(driver, device)?,
        fixed_address(driver, device)?,
        read_only(driver, device)?,
        peers(driver, device)?,
        descriptor(driver, device)?,
        win32_handle(driver, device)?,
        memory_types::fabric(driver, device)?,
        Capability::no(Feature::Multicast, Evidence::Design, NO_MULTICAST),
        memory_types::host_access(driver, device)?,
        memory_types::host_memory(driver, device)?,
        memory_types::host_node_memory(driver, device)?,
        Capability::no(Feature::Compression, Evidence::Design, memory_types::NO_COMPRESSION),
        attributes::remote_dma(driver, device.id),
        dma_buf(driver, device)?,
    ])
}

fn virtual_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let note = probe::memory_comes_back(driver, device).map(|comes_back| {
        if comes_back {
            "unmapped and released memory returns to the device while its addresses stay reserved"
        } else {
            "unmapped and released memory does NOT return to the device while its addresses stay reserved; closing or \
             suspending a region returns it"
        }
    });
    Capability::tried(Feature::VirtualMemory, note)
}

fn fixed_address(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    match probe::fixed_address(driver, device) {
        Ok((false, given, hint)) => {
            let reason = format!("{hint} was requested and {} returned", given.base);
            Ok(Capability::no(Feature::FixedAddress, Evidence::Trial, reason))
        }
        tried => {
            let note = |(_, given, _): (bool, AddressRange, Address)| {
                format!(
                    "{} was requested and returned; a hint that is taken yields another address",
                    given.base
                )
            };
            Capability::tried(Feature::FixedAddress, tried.map(note))
        }
    }
}

fn read_only(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    match probe::read_only(driver, device) {
        Ok(other) if other != Access::Read => {
            let reason = format!("access was set to read, but the driver reports {other}");
            Ok(Capability::no(Feature::ReadOnlyAccess, Evidence::Trial, reason))
        }
        tried => {
            let note = "set and read back; a write faults in the hardware and ends the process";
            Capability::tried(Feature::ReadOnlyAccess, tried.map(|_| note))
        }
    }
}

fn peers(driver: &Driver, device: &Device) -> Result<Capability> {
    let others = driver.devices().iter().map(|other| other.id).filter(|other| *other != device.id);
    let mut reachable = Vec::new();
    for other in others {
        if driver.can_access(device.id, other)? {
            reachable.push(other);
        }
    }
    Ok(Capability::peer_access(&reachable, driver.devices().len() - 1))
}

fn descriptor(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    cfg_if::cfg_if! {
        if #[cfg(unix)] {
            use crate::quirks::ImportForm;
            let exported = probe::export(driver, device);
            if exported.is_ok() && driver.quirks.import_form == ImportForm::Unknown {
                let reason = "export works; how this version imports is unknown, and a wrong guess crashes";
                return Ok(Capability::no(Feature::FileDescriptor, Evidence::Version, reason));
            }
            Capability::tried(Feature::FileDescriptor, exported.map(|()| "created and exported"))
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::FILE_DESCRIPTOR.missing_here().unwrap_or_default();
            Ok(Capability::no(Feature::FileDescriptor, Evidence::Design, reason))
        }
    }
}

fn win32_handle(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    cfg_if::cfg_if! {
        if #[cfg(windows)] {
            let works = crate::win32::works(gpu_vmm_core::Operation::QueryCapabilities, driver, device.id);
            let note = works.map(|handle_type| format!("created as type {}, exported and imported", handle_type.0));
            Capability::tried(Feature::Win32Handle, note)
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::WIN32.missing_here().unwrap_or_default();
            Ok(Capability::no(Feature::Win32Handle, Evidence::Design, reason))
        }
    }
}

fn dma_buf(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    cfg_if::cfg_if! {
        if #[cfg(unix)] {
            let note = probe::dma_buf(driver, device).map(|()| "exports one mapping per dma-buf");
            Capability::tried(Feature::DmaBuf, note)
        } else {
            let _ = (driver, device);
            let reason = HandleTypes::FILE_DESCRIPTOR.missing_here().unwrap_or_default();
            Ok(Capability::no(Feature::DmaBuf, Evidence::Design, reason))
        }
    }
}
