//! The kinds of memory beside a device's own, and who else than devices can be given access: what HIP has of it here, and
//! why not.
//!
//! Each answer is a capability. Its note is the reason of the error that whoever asks for such memory gets, too.

use crate::device::{attribute, granularity};
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::hipDeviceAttribute_t;
use crate::probe;
use gpu_vmm_core::{
    Capability, Detail, Device, DeviceId, Error, Evidence, Feature, Granularity, HandleTypes, Location,
    Operation, Properties, Result,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Why nothing is compressed.
pub(crate) const NO_COMPRESSION: &str = "HIP ignores the flag, and memory is as it is without it";

/// An attribute of HIP's, where yes is anything but 0.
struct Question {
    attribute: hipDeviceAttribute_t,
    name: &'static str,
    /// The first version that knows it.
    since: &'static str,
}

const LARGE_BAR: Question = Question {
    attribute: hipDeviceAttribute_t::hipDeviceAttributeIsLargeBar,
    name: "hipDeviceAttributeIsLargeBar",
    since: "5.4 or before",
};

// The headers from which this crate's bindings are made do not have these two.
const REMOTE_DMA: Question = Question {
    attribute: hipDeviceAttribute_t(94),
    name: "hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported",
    since: "7.14",
};
const FABRIC: Question = Question {
    attribute: hipDeviceAttribute_t(95),
    name: "hipDeviceAttributeHandleTypeFabricSupported",
    since: "7.14",
};

/// What was tried on a device, once.
#[derive(Default)]
pub(crate) struct Kinds {
    host_access: OnceLock<Capability>,
    host_memory: OnceLock<Capability>,
    host_node_memory: OnceLock<Capability>,
}

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

/// What memory that is asked for so comes out as: HIP takes flags that it ignores.
pub(crate) fn given(driver: &Driver, properties: &Properties) -> Properties {
    let remote_dma = properties.remote_dma && remote_dma(driver, properties.device).available;
    Properties { compressible: false, remote_dma, ..*properties }
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
    let known = &driver.devices_state(device.id)?.kinds.host_access;
    let note = "the CPU reads and writes over the bus, and HIP does not tell afterwards what it may do";
    Ok(tried(known, FEATURE, note, || probe::host_access(driver, device)))
}

/// Whether there is memory of the host, wherever the driver likes.
pub(crate) fn host_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.kinds.host_memory;
    Ok(memory_at(driver, device, Location::Host, Feature::HostMemory, known))
}

/// Whether there is memory of one of the host's NUMA nodes.
pub(crate) fn host_node_memory(driver: &Arc<Driver>, device: &Device) -> Result<Capability> {
    let known = &driver.devices_state(device.id)?.kinds.host_node_memory;
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

/// Whether memory of a device can be reached by a network card, as far as HIP tells.
pub(crate) fn remote_dma(driver: &Driver, device: DeviceId) -> Capability {
    const BY_DMA_BUF: &str =
        "what a network card takes is a dma-buf of the memory, whether this was asked for or not";
    match says(driver, device, &REMOTE_DMA) {
        Ok(()) => Capability::yes(Feature::RemoteDma, Evidence::Attribute, BY_DMA_BUF),
        Err(reason) => {
            Capability::no(Feature::RemoteDma, Evidence::Attribute, format!("{reason}; {BY_DMA_BUF}"))
        }
    }
}

/// Why there are no fabric handles.
pub(crate) fn fabric(driver: &Driver, device: DeviceId) -> Capability {
    const NOT_USED: &str =
        "HIP says that it has them; they are not used here, as there was no machine to try them on";
    let reason = says(driver, device, &FABRIC).err().unwrap_or_else(|| NOT_USED.to_owned());
    Capability::no(Feature::FabricHandle, Evidence::Attribute, reason)
}

/// The error of whoever wants a fabric handle.
pub(crate) fn no_fabric(driver: &Driver, operation: Operation, device: DeviceId) -> Error {
    Error::new(operation, Detail::Unsupported { reason: fabric(driver, device).note })
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

/// Whether the answer to a question about a device is yes; if not, what the answer was.
fn says(driver: &Driver, device: DeviceId, question: &Question) -> Result<(), String> {
    let Question { attribute: number, name, since } = question;
    match attribute(driver, Operation::QueryCapabilities, device, *number) {
        Ok(0) => Err(format!("{name} ({}) is 0", number.0)),
        Ok(_) => Ok(()),
        Err(error) if is_invalid_value(&error) => {
            let version = driver.info().version;
            Err(format!("HIP {version} does not know {name} ({}), which came with {since}", number.0))
        }
        Err(error) => Err(error.to_string()),
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
