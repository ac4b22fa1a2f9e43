//! Memory types other than device memory, and host access: whether this HIP supports them, and why not.
//!
//! Each answer is a capability. Its note is also the reason in the error for a request of such memory.

use crate::attributes::{self, LARGE_BAR, says};
use crate::device::{MINIMUM, RECOMMENDED, granularity};
use crate::driver::Driver;
use crate::ffi::hipMemAllocationGranularity_flags;
use crate::probe;
use gpu_vmm_core::extend::missing_numa_node;
use gpu_vmm_core::{
    Capability, Detail, Device, DeviceId, Error, Evidence, Feature, Granularity, HandleTypes, Location,
    Operation, Properties, Result,
};
use std::sync::{Arc, OnceLock};

/// Why memory is never compressed.
pub(crate) const NO_COMPRESSION: &str = "HIP ignores the flag and creates ordinary memory";

/// Refuses memory types that HIP does not support.
pub(crate) fn check(driver: &Arc<Driver>, operation: Operation, properties: &Properties) -> Result<()> {
    let device = driver.device(operation, properties.device)?;
    check_handle_types(driver, operation, device, properties.handle_types)?;
    match properties.location {
        Location::Device => Ok(()),
        Location::Host => required(operation, host_memory(driver, device)?),
        Location::HostNode(node) => {
            required(operation, host_node_memory(driver, device)?)?;
            match missing_numa_node(node) {
                None => Ok(()),
                Some(reason) => Err(Error::new(operation, Detail::Unsupported { reason })),
            }
        }
    }
}

/// Returns the granularity for memory of these properties: [`Device::granularity`] for device memory, the same or more
/// for host memory.
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
    Ok(reported(driver, operation, properties, MINIMUM)?.max(device.granularity))
}

/// Returns the granularity that HIP recommends for memory of these properties.
pub(crate) fn recommended_granularity(
    driver: &Arc<Driver>,
    operation: Operation,
    device: &Device,
    properties: &Properties,
) -> Result<Granularity> {
    let least = granularity_of(driver, operation, device, properties)?;
    Ok(reported(driver, operation, properties, RECOMMENDED)?.max(least))
}

fn reported(
    driver: &Driver,
    operation: Operation,
    properties: &Properties,
    option: hipMemAllocationGranularity_flags,
) -> Result<Granularity> {
    let bytes = granularity(driver, operation, properties, option)?;
    Granularity::new(bytes).ok_or_else(|| {
        let what = format!("hipMemGetAllocationGranularity returned {bytes}, not a power of two");
        Error::new(operation, Detail::DriverContractViolated { what })
    })
}

/// Refuses host access if HIP does not support it. The host always has access to its own memory, if that type is
/// supported.
pub(crate) fn check_host_access(
    driver: &Arc<Driver>,
    operation: Operation,
    properties: &Properties,
) -> Result<()> {
    if properties.location.is_host() {
        return check(driver, operation, properties);
    }
    required(operation, host_access(driver, driver.device(operation, properties.device)?)?)
}

/// Whether the host can be given access to mapped memory of a device.
pub(crate) fn host_access(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    const FEATURE: Feature = Feature::HostAccess;
    if driver.quirks.no_host_access {
        let reason = format!("HIP {} cannot give the host access; 7.2 and later can", driver.info().version);
        return Ok(Capability::no(FEATURE, Evidence::Version, reason));
    }
    if let Err(reason) = says(driver, device.id, &LARGE_BAR) {
        return Ok(Capability::no(FEATURE, Evidence::Attribute, reason));
    }
    let known = &driver.devices_state(device.id)?.tried.host_access;
    let note = "the CPU reads and writes over the bus; HIP does not report the host's access";
    tried(known, FEATURE, note, || probe::host_access(driver, device))
}

/// Whether HIP supports host memory on a node of the driver's choice.
pub(crate) fn host_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.tried.host_memory;
    memory_at(driver, device, Location::Host, Feature::HostMemory, known)
}

/// Whether HIP supports memory of one of the host's NUMA nodes.
pub(crate) fn host_node_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.tried.host_node_memory;
    memory_at(driver, device, Location::HostNode(0), Feature::HostNodeMemory, known)
}

fn memory_at(
    driver: &Arc<Driver>,
    device: &Device,
    location: Location,
    feature: Feature,
    known: &OnceLock<Capability>,
) -> Result<Capability> {
    if driver.quirks.no_host_memory {
        let reason = format!(
            "HIP {} has none: 6.x refuses it, 7.0 to 7.14 allocate device memory instead, 7.15 and later support it",
            driver.info().version
        );
        return Ok(Capability::no(feature, Evidence::Version, reason));
    }
    tried(known, feature, "mapped for the device and for the host", || {
        probe::host_memory(driver, device, location)
    })
}

/// Whether memory can be exported as a fabric handle.
pub(crate) fn fabric(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    const FEATURE: Feature = Feature::FabricHandle;
    if let Err(reason) = attributes::fabric(driver, device.id) {
        return Ok(Capability::no(FEATURE, Evidence::Attribute, reason));
    }
    let known = &driver.devices_state(device.id)?.tried.fabric;
    let note = "created and exported; gpu-vmm has never run on a machine with a fabric of AMD's GPUs";
    tried(known, FEATURE, note, || probe::fabric(driver, device))
}

/// Refuses fabric handles if the device does not support them.
pub(crate) fn check_fabric(driver: &Arc<Driver>, operation: Operation, device: DeviceId) -> Result<()> {
    required(operation, fabric(driver, driver.device(operation, device)?)?)
}

fn check_handle_types(
    driver: &Arc<Driver>,
    operation: Operation,
    device: &Device,
    types: HandleTypes,
) -> Result<()> {
    if types.bits().count_ones() > 1 {
        let reason = format!("HIP exports memory as one handle type only; {types} were requested");
        return Err(Error::new(operation, Detail::Unsupported { reason }));
    }
    if types.contains(HandleTypes::FABRIC) {
        return check_fabric(driver, operation, device.id);
    }
    types.check_here(operation)
}

fn required(operation: Operation, found: Capability) -> Result<()> {
    if found.available {
        Ok(())
    } else {
        Err(Error::new(operation, Detail::Unsupported { reason: found.note }))
    }
}

/// Returns the result of a probe, which runs once. A probe that decides nothing is repeated at the next call.
fn tried(
    known: &OnceLock<Capability>,
    feature: Feature,
    note: &str,
    trial: impl FnOnce() -> Result<()>,
) -> Result<Capability> {
    if let Some(found) = known.get() {
        return Ok(found.clone());
    }
    let found = Capability::tried(feature, trial().map(|()| note))?;
    Ok(known.get_or_init(|| found).clone())
}
