//! The kinds of memory beside a device's own, and who else than devices can be given access: what HIP has of it here, and
//! why not.
//!
//! Each answer is a capability. Its note is the reason of the error that whoever asks for such memory gets, too.

use crate::attributes::{LARGE_BAR, no_fabric, says};
use crate::device::granularity;
use crate::driver::Driver;
use crate::probe;
use gpu_vmm_core::{
    Capability, Detail, Device, DeviceId, Error, Evidence, Feature, Granularity, HandleTypes, Location,
    Operation, Properties, Result,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Why nothing is compressed.
pub(crate) const NO_COMPRESSION: &str = "HIP ignores the flag, and memory is as it is without it";

/// Refuses memory that HIP does not have.
pub(crate) fn check(driver: &Arc<Driver>, operation: Operation, properties: &Properties) -> Result<()> {
    let device = known(driver, operation, properties.device)?;
    check_handle_types(driver, operation, device, properties.handle_types)?;
    match properties.location {
        Location::Device => Ok(()),
        Location::Host => required(operation, host_memory(driver, device)?),
        Location::HostNode(node) => {
            required(operation, host_node_memory(driver, device)?)?;
            if is_node(node) {
                return Ok(());
            }
            let reason = format!("this machine has no NUMA node {node}");
            Err(Error::new(operation, Detail::Unsupported { reason }))
        }
    }
}

/// What such memory is created in: a device's as [`Device::granularity`] says, the host's in that or more.
pub(crate) fn granularity_of(
    driver: &Arc<Driver>,
    operation: Operation,
    device: &Device,
    properties: &Properties,
) -> Result<Granularity> {
    if !properties.location.is_host() {
        return Ok(device.granularity);
    }
    check(driver, operation, properties)?;
    let reported = granularity(driver, operation, properties)?;
    let granularity = Granularity::new(reported).ok_or_else(|| {
        let what = format!("hipMemGetAllocationGranularity says {reported}, which is no power of two");
        Error::new(operation, Detail::DriverContractViolated { what })
    })?;
    Ok(granularity.max(device.granularity))
}

/// Refuses access for the host where HIP does not give it. To the host's own memory it has it wherever there is such.
pub(crate) fn check_host_access(
    driver: &Arc<Driver>,
    operation: Operation,
    properties: &Properties,
) -> Result<()> {
    if properties.location.is_host() {
        return check(driver, operation, properties);
    }
    required(operation, host_access(driver, known(driver, operation, properties.device)?)?)
}

/// Whether the CPU can be given access to mapped memory of a device.
pub(crate) fn host_access(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    const FEATURE: Feature = Feature::HostAccess;
    if driver.quirks.no_host_access {
        let reason =
            format!("HIP {} gives the host no access; 7.2 was the first to do it", driver.info().version);
        return Ok(Capability::no(FEATURE, Evidence::Version, reason));
    }
    if let Err(reason) = says(driver, device.id, &LARGE_BAR) {
        return Ok(Capability::no(FEATURE, Evidence::Attribute, reason));
    }
    let known = &driver.devices_state(device.id)?.tried.host_access;
    let note = "the CPU reads and writes over the bus, and HIP does not tell afterwards what it may do";
    Ok(tried(known, FEATURE, note, || probe::host_access(driver, device)))
}

/// Whether there is memory of the host, wherever the driver likes.
pub(crate) fn host_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.tried.host_memory;
    Ok(memory_at(driver, device, Location::Host, Feature::HostMemory, known))
}

/// Whether there is memory of one of the host's NUMA nodes.
pub(crate) fn host_node_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.tried.host_node_memory;
    Ok(memory_at(driver, device, Location::HostNode(0), Feature::HostNodeMemory, known))
}

fn memory_at(
    driver: &Arc<Driver>,
    device: &Device,
    location: Location,
    feature: Feature,
    known: &OnceLock<Capability>,
) -> Capability {
    if driver.quirks.no_host_memory {
        let reason = format!(
            "HIP {} has none: 6.x refuses, 7.0 to 7.14 take the device's memory for it, and 7.15 was the first to have it",
            driver.info().version
        );
        return Capability::no(feature, Evidence::Version, reason);
    }
    tried(known, feature, "mapped for the device and for the host", || {
        probe::host_memory(driver, device, location)
    })
}

fn check_handle_types(
    driver: &Driver,
    operation: Operation,
    device: &Device,
    types: HandleTypes,
) -> Result<()> {
    if types.bits().count_ones() > 1 {
        let reason = format!("HIP exports a piece of memory in one way, and {types} were asked for");
        return Err(Error::new(operation, Detail::Unsupported { reason }));
    }
    if types.contains(HandleTypes::FABRIC) {
        return Err(no_fabric(driver, operation, device.id));
    }
    types.check_here(operation)
}

/// A device that the caller has checked, as far as the books of this backend are concerned.
fn known(driver: &Driver, operation: Operation, device: DeviceId) -> Result<&Device> {
    driver.devices().get(device.0 as usize).ok_or_else(|| driver.no_such_device(operation, device))
}

fn required(operation: Operation, found: Capability) -> Result<()> {
    if found.available {
        Ok(())
    } else {
        Err(Error::new(operation, Detail::Unsupported { reason: found.note }))
    }
}

/// What a trial says, which is made once; memory that is short says nothing.
fn tried(
    known: &OnceLock<Capability>,
    feature: Feature,
    note: &str,
    trial: impl FnOnce() -> Result<()>,
) -> Capability {
    if let Some(found) = known.get() {
        return found.clone();
    }
    match trial() {
        Ok(()) => known.get_or_init(|| Capability::yes(feature, Evidence::Trial, note)).clone(),
        Err(error) => {
            let found = Capability::no(feature, Evidence::Trial, error.to_string());
            if error.is_out_of_memory() { found } else { known.get_or_init(|| found).clone() }
        }
    }
}

/// Whether the kernel knows the node. Without the folder it knows no nodes, which is one.
fn is_node(node: u32) -> bool {
    let nodes = Path::new("/sys/devices/system/node");
    node == 0 || nodes.join(format!("node{node}")).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_of_the_kernel() {
        assert!(is_node(0) && !is_node(u32::MAX));
    }
}
