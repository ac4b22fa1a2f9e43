//! Memory types: [`Properties`] as `CUmemAllocationProp`, the types that are unavailable, and the granularity of each.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::error::{answer, failed};
use crate::ffi::{
    ALLOCATION_PINNED, COMPRESSION_GENERIC, CuResult, Functions, GRANULARITY_MINIMUM,
    GRANULARITY_RECOMMENDED, LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_INVISIBLE,
    MemAllocationFlags, MemAllocationProp, MemLocation,
};
use crate::imex;
use gpu_vmm_core::extend::missing_numa_node;
use gpu_vmm_core::{
    Bytes, Detail, DeviceId, DriverError, Error, Granularity, HandleTypes, Location, Operation, Properties,
    Result,
};
use std::ffi::c_int;
use std::fmt;

/// The first drivers with host locations and with fabric handles, as `cuDriverGetVersion` numbers.
const HOST_SINCE: u32 = 12_020;
const FABRIC_SINCE: u32 = 12_030;

/// Returns the location of a device's memory.
pub(crate) const fn device_location(device: DeviceId) -> MemLocation {
    MemLocation { kind: LOCATION_DEVICE, id: device.0 as c_int }
}

/// Returns the location of memory with these properties.
pub(crate) const fn location(properties: &Properties) -> MemLocation {
    match properties.location {
        Location::Device => device_location(properties.device),
        Location::Host => MemLocation { kind: LOCATION_HOST, id: 0 },
        Location::HostNode(node) => MemLocation { kind: LOCATION_HOST_NUMA, id: node as c_int },
    }
}

/// Returns the device whose free memory such an allocation uses: [`DeviceId::HOST`] for host memory.
pub(crate) const fn owner(properties: &Properties) -> DeviceId {
    if properties.location.is_host() { DeviceId::HOST } else { properties.device }
}

/// Returns the driver's structure for these properties.
pub(crate) const fn allocation_prop(properties: &Properties) -> MemAllocationProp {
    MemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: properties.handle_types.bits(),
        location: location(properties),
        win32_handle_meta_data: std::ptr::null_mut(),
        flags: MemAllocationFlags {
            // Compression is a request, which the driver treats as an error for host memory.
            compression_type: if properties.compressible && !properties.location.is_host() {
                COMPRESSION_GENERIC
            } else {
                0
            },
            gpu_direct_rdma_capable: properties.remote_dma as u8,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub(crate) const fn is_compressible(reported: &MemAllocationProp) -> bool {
    reported.flags.compression_type == COMPRESSION_GENERIC
}

pub(crate) const fn is_remote_dma(reported: &MemAllocationProp) -> bool {
    reported.flags.gpu_direct_rdma_capable != 0
}

/// Returns the properties that the driver reports for memory of other code. Device 0 copies to and from host memory.
///
/// # Errors
///
/// The reason why this process cannot name the location.
pub(crate) fn properties_of(reported: &MemAllocationProp) -> Result<Properties, String> {
    let MemLocation { kind, id } = reported.location;
    let first = Properties::on(DeviceId(0));
    let number = u32::try_from(id);
    let properties = match (kind, number) {
        (LOCATION_DEVICE, Ok(device)) => Properties::on(DeviceId(device)),
        (LOCATION_HOST, _) => first.located(Location::Host),
        (LOCATION_HOST_NUMA, Ok(node)) => first.located(Location::HostNode(node)),
        _ => return Err(format!("the memory is in {}", Reported(reported.location))),
    };
    Ok(Properties {
        handle_types: HandleTypes::from_bits_truncate(reported.requested_handle_types),
        compressible: is_compressible(reported),
        remote_dma: is_remote_dma(reported),
        ..properties
    })
}

/// Returns whether the properties describe plain device memory.
fn is_plain(properties: &Properties) -> bool {
    *properties == Properties::on(properties.device)
}

/// Queries the granularity of such memory: [`GRANULARITY_MINIMUM`] or [`GRANULARITY_RECOMMENDED`].
pub(crate) fn granularity_bytes(
    functions: &Functions,
    prop: &MemAllocationProp,
    option: u32,
) -> Result<Bytes, DriverError> {
    let mut bytes = 0usize;
    // SAFETY: both pointers are valid for their types.
    match unsafe { (functions.mem_get_allocation_granularity)(&raw mut bytes, prop, option) } {
        CuResult::SUCCESS => Ok(Bytes(bytes as u64)),
        result => Err(answer(functions, "cuMemGetAllocationGranularity", result)),
    }
}

/// Describes a granularity that is not a power of two.
pub(crate) fn no_power_of_two(bytes: Bytes) -> String {
    format!("it reports a granularity of {} bytes, which is not a power of two", bytes.0)
}

impl Opened {
    /// Returns the driver's structure for these properties, or an error if such memory is known to be unavailable.
    pub(crate) fn prop(&self, operation: Operation, properties: &Properties) -> Result<MemAllocationProp> {
        if !is_plain(properties)
            && let Some(reason) = self.why_none(properties)
        {
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        Ok(allocation_prop(properties))
    }

    /// Returns why no driver of this version can create such memory, as far as that is known without calling the driver.
    pub(crate) fn why_none(&self, properties: &Properties) -> Option<String> {
        let Properties { location, handle_types, .. } = *properties;
        let version = &self.driver.loaded.info;
        let since = |first: u32, what: &str, named: &str| {
            (version.version_number < first)
                .then(|| format!("{what} came with CUDA {named}, and the driver is of {}", version.version))
        };
        let unknown = handle_types.bits() & !HandleTypes::all().bits();
        if unknown != 0 {
            return Some(format!("kinds of handle {unknown:#x} are not known here"));
        }
        if let Some(reason) = handle_types.missing_here() {
            return Some(reason.to_owned());
        }
        if handle_types.contains(HandleTypes::FABRIC)
            && let Some(reason) = since(FABRIC_SINCE, "fabric handles", "12.3")
        {
            return Some(reason);
        }
        if !location.is_host() {
            return None;
        }
        if let Some(reason) = since(HOST_SINCE, "memory of the host", "12.2") {
            return Some(reason);
        }
        if properties.remote_dma {
            return Some(
                "CUDA has no remote DMA flag for host memory; network cards can access it without one"
                    .to_owned(),
            );
        }
        match location {
            Location::Host if properties.is_shareable() => Some(format!(
                "CUDA exports host memory of a NUMA node only; choose a node, or request no {handle_types}"
            )),
            Location::HostNode(node) if c_int::try_from(node).is_err() => {
                Some(format!("{node} is more than the number of a NUMA node can be"))
            }
            Location::HostNode(node) => missing_numa_node(node),
            _ => None,
        }
    }

    /// Returns the unit in which such memory is created and mapped. It is known for plain device memory; for any other the driver
    /// is asked.
    pub(crate) fn granularity_of_kind(
        &self,
        operation: Operation,
        properties: &Properties,
    ) -> Result<Granularity> {
        let device = self.device(operation, properties.device)?;
        if is_plain(properties) {
            return Ok(device.granularity);
        }
        self.ask_granularity(operation, properties, GRANULARITY_MINIMUM)
    }

    /// Returns the granularity that the driver recommends for such memory.
    pub(crate) fn recommended_granularity(
        &self,
        operation: Operation,
        properties: &Properties,
    ) -> Result<Granularity> {
        let least = self.granularity_of_kind(operation, properties)?;
        Ok(self.ask_granularity(operation, properties, GRANULARITY_RECOMMENDED)?.max(least))
    }

    fn ask_granularity(
        &self,
        operation: Operation,
        properties: &Properties,
        option: u32,
    ) -> Result<Granularity> {
        let prop = self.prop(operation, properties)?;
        self.here(operation)?;
        let bytes = granularity_bytes(self.functions(), &prop, option)
            .map_err(|source| self.not_had(operation, source, properties, properties.to_string()))?;
        Granularity::new(bytes).ok_or_else(|| {
            Error::new(operation, Detail::DriverContractViolated { what: no_power_of_two(bytes) })
        })
    }

    /// Checks the result of a call that creates or imports such memory.
    pub(crate) fn check_kind(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        size: Bytes,
        properties: &Properties,
    ) -> Result<()> {
        match result {
            CuResult::SUCCESS => Ok(()),
            CuResult::OUT_OF_MEMORY => self.check_memory(operation, call, result, owner(properties), size),
            _ => {
                let source = answer(self.functions(), call, result);
                Err(self.not_had(operation, source, properties, format!("{size} of {properties}")))
            }
        }
    }

    /// Returns the error for memory of a type that not every machine has: [`Detail::Unsupported`] if the driver refused the type.
    #[cold]
    fn not_had(
        &self,
        operation: Operation,
        source: DriverError,
        properties: &Properties,
        context: String,
    ) -> Error {
        let is_refusal = [CuResult::NOT_PERMITTED, CuResult::NOT_SUPPORTED]
            .map(|code| i64::from(code.0))
            .contains(&source.code);
        if !is_refusal || is_plain(properties) {
            return failed(operation, source, context);
        }
        let fabric = properties.handle_types.contains(HandleTypes::FABRIC);
        let channels = if fabric { format!("; {}", imex::channels()) } else { String::new() };
        Error::new(operation, Detail::Unsupported { reason: format!("{properties}: {source}{channels}") })
    }
}

/// Formats a location that the driver reported.
pub(crate) struct Reported(pub(crate) MemLocation);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemLocation { kind, id } = self.0;
        match kind {
            LOCATION_DEVICE => write!(f, "memory of device {id}"),
            LOCATION_HOST => f.write_str("memory of the host"),
            LOCATION_HOST_NUMA => write!(f, "memory of the host's node {id}"),
            LOCATION_INVISIBLE => f.write_str("memory of a device that this process does not see"),
            _ => write!(f, "memory in a place of type {kind}, number {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_location_has_its_words() {
        let rows = [
            (LOCATION_DEVICE, "memory of device 7"),
            (LOCATION_HOST, "memory of the host"),
            (LOCATION_HOST_NUMA, "memory of the host's node 7"),
            (LOCATION_INVISIBLE, "memory of a device that this process does not see"),
            (99, "memory in a place of type 99, number 7"),
        ];
        for (kind, words) in rows {
            assert_eq!(Reported(MemLocation { kind, id: 7 }).to_string(), words);
        }
    }
}
