//! Properties of physical memory and access levels, as C passes them.

use crate::status::{CallResult, Failure};
use gpu_vmm::{Access, DeviceId, HandleTypes, Location, Properties as Memory};

/// For `location` of gpu_vmm_properties: the device's own memory.
pub const GPU_VMM_LOCATION_DEVICE: u32 = 0;
/// For `location` of gpu_vmm_properties: host memory on a NUMA node that the driver chooses.
pub const GPU_VMM_LOCATION_HOST: u32 = 1;
/// For `location` of gpu_vmm_properties: host memory on the NUMA node `node`.
pub const GPU_VMM_LOCATION_HOST_NODE: u32 = 2;

/// For `handle_types` of gpu_vmm_properties: file descriptors, for processes of one Linux machine.
pub const GPU_VMM_HANDLE_FD: u32 = 1;
/// For `handle_types` of gpu_vmm_properties: fabric handles, for machines whose GPUs share a fabric.
pub const GPU_VMM_HANDLE_FABRIC: u32 = 8;

/// No reads and no writes.
pub const GPU_VMM_ACCESS_NONE: u32 = 0;
/// Reads only.
pub const GPU_VMM_ACCESS_READ: u32 = 1;
/// Reads and writes.
pub const GPU_VMM_ACCESS_READ_WRITE: u32 = 3;

/// The CPU, in calls that set or query access. It is not a device.
pub const GPU_VMM_DEVICE_HOST: u32 = 127;

// The header's numbers are literals, because cbindgen does not evaluate them.
const _: () = {
    assert!(GPU_VMM_DEVICE_HOST == DeviceId::HOST.0);
    assert!(GPU_VMM_HANDLE_FD == HandleTypes::FILE_DESCRIPTOR.bits());
    assert!(GPU_VMM_HANDLE_FABRIC == HandleTypes::FABRIC.bits());
};

/// The properties of physical memory. All zeros, as after `= {0}`, is memory of device 0 that cannot be exported.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// The device that owns the memory. For host memory, the device that copies to and from it.
    pub device: u32,
    /// GPU_VMM_LOCATION_DEVICE, GPU_VMM_LOCATION_HOST or GPU_VMM_LOCATION_HOST_NODE.
    pub location: u32,
    /// The NUMA node for GPU_VMM_LOCATION_HOST_NODE, else zero.
    pub node: u32,
    /// The handles by which the memory can be exported, which the driver must know when it creates the memory:
    /// GPU_VMM_HANDLE_FD, GPU_VMM_HANDLE_FABRIC, both (CUDA only), or zero.
    pub handle_types: u32,
    /// Whether the driver may compress the memory. gpu_vmm_physical_properties returns whether it does.
    pub compressible: bool,
    /// Whether a network card can access the memory without the host.
    pub remote_dma: bool,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

impl Properties {
    /// Reads the properties; null means the default. Refuses values that this version does not know.
    pub(crate) fn read(what: &str, from: Option<&Self>) -> CallResult<Memory> {
        let Some(from) = from else { return Ok(Memory::on(DeviceId(0))) };
        check_reserved(what, from.reserved)?;
        let location = match from.location {
            GPU_VMM_LOCATION_DEVICE => Location::Device,
            GPU_VMM_LOCATION_HOST => Location::Host,
            GPU_VMM_LOCATION_HOST_NODE => Location::HostNode(from.node),
            other => {
                return Err(Failure::invalid(format!("{what}: location is {other}; expected 0, 1 or 2")));
            }
        };
        if from.node != 0 && !matches!(location, Location::HostNode(_)) {
            return Err(Failure::invalid(format!(
                "{what}: node is {}, and {location} has none; pass zero, or GPU_VMM_LOCATION_HOST_NODE",
                from.node
            )));
        }
        let types = HandleTypes::from_bits(from.handle_types).ok_or_else(|| {
            let known = HandleTypes::all().bits();
            Failure::invalid(format!(
                "{what}: handle_types is {:#x}; the known bits are {known:#x}",
                from.handle_types
            ))
        })?;
        let (device, compressible, remote_dma) = (DeviceId(from.device), from.compressible, from.remote_dma);
        Ok(Memory { device, location, handle_types: types, compressible, remote_dma })
    }

    pub(crate) fn of(memory: &Memory) -> Self {
        let (location, node) = match memory.location {
            Location::Device => (GPU_VMM_LOCATION_DEVICE, 0),
            Location::Host => (GPU_VMM_LOCATION_HOST, 0),
            Location::HostNode(node) => (GPU_VMM_LOCATION_HOST_NODE, node),
        };
        Self {
            device: memory.device.0,
            location,
            node,
            handle_types: memory.handle_types.bits(),
            compressible: memory.compressible,
            remote_dma: memory.remote_dma,
            reserved: [0; 4],
        }
    }
}

/// Refuses settings of a later version.
pub(crate) fn check_reserved(what: &str, reserved: [u64; 4]) -> CallResult {
    if reserved == [0; 4] {
        return Ok(());
    }
    Err(Failure::invalid(format!("{what}: reserved is not zero; this version knows no setting there")))
}

/// Reads an access level.
pub(crate) fn access(level: u32) -> CallResult<Access> {
    match level {
        GPU_VMM_ACCESS_NONE => Ok(Access::None),
        GPU_VMM_ACCESS_READ => Ok(Access::Read),
        GPU_VMM_ACCESS_READ_WRITE => Ok(Access::ReadWrite),
        other => Err(Failure::invalid(format!(
            "access is {other}; expected GPU_VMM_ACCESS_NONE (0), GPU_VMM_ACCESS_READ (1) or GPU_VMM_ACCESS_READ_WRITE (3)"
        ))),
    }
}

/// The number of an access level.
pub(crate) fn level(access: Access) -> u32 {
    match access {
        Access::None => GPU_VMM_ACCESS_NONE,
        Access::Read => GPU_VMM_ACCESS_READ,
        Access::ReadWrite => GPU_VMM_ACCESS_READ_WRITE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::status::GPU_VMM_INVALID_ARGUMENT;
    use crate::tests::of_device;

    #[test]
    fn each_property_is_the_callers() {
        let from = Properties {
            device: 1,
            location: GPU_VMM_LOCATION_HOST_NODE,
            node: 2,
            handle_types: GPU_VMM_HANDLE_FD,
            compressible: false,
            remote_dma: true,
            reserved: [0; 4],
        };
        let read = Properties::read("test", Some(&from)).unwrap();
        assert_eq!((read.device, read.location), (DeviceId(1), Location::HostNode(2)));
        assert_eq!(read.handle_types, HandleTypes::FILE_DESCRIPTOR);
        assert!(!read.compressible && read.remote_dma);
        let other = Properties { compressible: true, remote_dma: false, ..from };
        let read = Properties::read("test", Some(&other)).unwrap();
        assert!(read.compressible && !read.remote_dma);
    }

    /// Exportable device memory.
    fn plain() -> Properties {
        Properties { handle_types: GPU_VMM_HANDLE_FD, ..of_device(1) }
    }

    #[test]
    fn a_node_is_refused_where_none_is() {
        for location in [GPU_VMM_LOCATION_DEVICE, GPU_VMM_LOCATION_HOST] {
            let failure =
                Properties::read("test", Some(&Properties { location, node: 3, ..plain() })).unwrap_err();
            assert_eq!(failure.status, GPU_VMM_INVALID_ARGUMENT);
            assert!(failure.text.starts_with("test: node is 3, and "), "{}", failure.text);
        }
    }

    #[test]
    fn properties_are_returned_as_they_were_read() {
        for wanted in [
            Properties { compressible: true, ..plain() },
            Properties { remote_dma: true, ..plain() },
            Properties { location: GPU_VMM_LOCATION_HOST, ..plain() },
            Properties { location: GPU_VMM_LOCATION_HOST_NODE, node: 2, ..plain() },
        ] {
            let read = Properties::read("test", Some(&wanted)).unwrap();
            assert_eq!(format!("{:?}", Properties::of(&read)), format!("{wanted:?}"));
        }
    }

    #[test]
    fn unknown_handle_type_error_has_known_bits() {
        let unknown = Properties { handle_types: 1 << 31, ..plain() };
        let known = HandleTypes::all();
        assert_ne!(known, HandleTypes::FILE_DESCRIPTOR);
        assert_eq!(
            Properties::read("test", Some(&unknown)).unwrap_err().text,
            format!("test: handle_types is 0x80000000; the known bits are {:#x}", known.bits())
        );
    }
}
