//! Properties of physical memory: its device, its location and the ways to share it.

use crate::types::{Access, AccessMap, Detail, DeviceId, Error, Operation, Result};
use std::fmt;

bitflags::bitflags! {
    /// The handle types by which memory can be exported. CUDA: `CUmemAllocationHandleType`, HIP:
    /// `hipMemAllocationHandleType`; the values are the vendors'.
    ///
    /// CUDA accepts several types for one allocation, HIP only one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HandleTypes: u32 {
        /// A file descriptor, for processes of one Linux machine.
        const FILE_DESCRIPTOR = 1;
        /// A Windows handle, for processes of one machine.
        const WIN32 = 2;
        /// A [`FabricHandle`](crate::FabricHandle) of 64 bytes, for machines whose GPUs share a fabric.
        const FABRIC = 8;
    }
}

impl HandleTypes {
    /// The handle type for sharing between processes of this machine: Windows handles on Windows, else file descriptors.
    pub const NATIVE: Self = if cfg!(windows) { Self::WIN32 } else { Self::FILE_DESCRIPTOR };

    /// Returns why this operating system cannot export memory by these types, or `None` if it can. A driver may still refuse.
    #[must_use]
    pub const fn missing_here(self) -> Option<&'static str> {
        if cfg!(windows) && self.contains(Self::FILE_DESCRIPTOR) {
            Some("Windows has no file descriptors for memory; export it as a Win32 handle")
        } else if !cfg!(windows) && self.contains(Self::WIN32) {
            Some("Win32 handles exist only on Windows; export the memory as a file descriptor")
        } else {
            None
        }
    }

    /// Checks that [this operating system](HandleTypes::missing_here) has these types, before any driver call.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason.
    pub fn check_here(self, operation: Operation) -> Result<()> {
        match self.missing_here() {
            Some(reason) => Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() })),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::FILE_DESCRIPTOR, "file descriptor"),
            (Self::WIN32, "Win32 handle"),
            (Self::FABRIC, "fabric handle"),
        ];
        let known: Vec<_> =
            names.into_iter().filter(|(one, _)| self.contains(*one)).map(|(_, name)| name).collect();
        f.pad(&if known.is_empty() { "none".to_owned() } else { known.join(" and ") })
    }
}

/// The location of physical memory. CUDA: `CUmemLocationType`, HIP: `hipMemLocationType`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Location {
    /// The device's own memory.
    #[default]
    Device,
    /// Host memory on a NUMA node of the driver's choice. CUDA: `CU_MEM_LOCATION_TYPE_HOST`, which CUDA cannot share between
    /// processes.
    Host,
    /// Host memory on the given NUMA node. CUDA: `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
    HostNode(u32),
}

impl Location {
    /// Returns true for host memory of any node.
    #[must_use]
    pub const fn is_host(self) -> bool {
        !matches!(self, Self::Device)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.pad("device memory"),
            Self::Host => f.pad("host memory"),
            Self::HostNode(node) => f.pad(&format!("host memory of node {node}")),
        }
    }
}

/// The properties of physical memory. CUDA: `CUmemAllocationProp`, HIP: `hipMemAllocationProp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Properties {
    /// The device that owns the memory. For host memory, the device that performs copies to and from it.
    pub device: DeviceId,
    /// The location.
    pub location: Location,
    /// The handle types by which the memory can be exported. CUDA and HIP require them when the memory is created.
    pub handle_types: HandleTypes,
    /// Whether the driver may compress the memory, which saves bandwidth, not space. This is a request:
    /// [`PhysicalMemory::properties`](crate::PhysicalMemory::properties) reports whether the driver granted it.
    pub compressible: bool,
    /// Whether a network card can access the memory without the host (CUDA: `gpuDirectRDMACapable`).
    pub remote_dma: bool,
}

impl Properties {
    /// Returns the properties of memory on `device` that cannot be exported.
    #[must_use]
    pub const fn on(device: DeviceId) -> Self {
        Self {
            device,
            location: Location::Device,
            handle_types: HandleTypes::empty(),
            compressible: false,
            remote_dma: false,
        }
    }

    /// Adds the handle type for sharing with other processes of this machine ([`HandleTypes::NATIVE`]).
    #[must_use]
    pub const fn shareable(self) -> Self {
        self.exported_as(HandleTypes::NATIVE)
    }

    /// Adds handle types by which the memory can be exported.
    #[must_use]
    pub const fn exported_as(mut self, types: HandleTypes) -> Self {
        self.handle_types = self.handle_types.union(types);
        self
    }

    /// Returns `access`, extended for a copy from the host into this memory: the memory's device gets write access, and so does the host
    /// if it can read this memory of the host.
    ///
    /// CUDA's driver performs that copy with the CPU if the CPU can read the memory: if it cannot write, the process ends.
    #[must_use]
    pub const fn access_for_copies(&self, access: AccessMap) -> AccessMap {
        let map = access.with(self.device, Access::ReadWrite);
        match access.get(DeviceId::HOST) {
            Access::Read if self.location.is_host() => map.with(DeviceId::HOST, Access::ReadWrite),
            _ => map,
        }
    }

    /// Sets the location.
    #[must_use]
    pub const fn located(mut self, location: Location) -> Self {
        self.location = location;
        self
    }

    /// Requests memory that the driver may compress.
    #[must_use]
    pub const fn compressible(mut self) -> Self {
        self.compressible = true;
        self
    }

    /// Requests memory that network cards can access.
    #[must_use]
    pub const fn remote_dma(mut self) -> Self {
        self.remote_dma = true;
        self
    }

    /// Returns true if the memory can be exported by any handle type.
    #[must_use]
    pub const fn is_shareable(&self) -> bool {
        !self.handle_types.is_empty()
    }
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.location, self.device)?;
        if self.is_shareable() {
            write!(f, ", exportable as {}", self.handle_types)?;
        }
        if self.compressible {
            f.write_str(", compressible")?;
        }
        if self.remote_dma {
            f.write_str(", for remote DMA")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_is_set_alone_and_named() {
        let plain = Properties::on(DeviceId(3));
        let both = HandleTypes::FILE_DESCRIPTOR | HandleTypes::FABRIC;
        let rows = [
            (plain, Properties { ..plain }, "device memory of device 3"),
            (
                plain.exported_as(HandleTypes::FILE_DESCRIPTOR).exported_as(HandleTypes::FABRIC),
                Properties { handle_types: both, ..plain },
                "device memory of device 3, exportable as file descriptor and fabric handle",
            ),
            (
                plain.located(Location::Host).compressible(),
                Properties { location: Location::Host, compressible: true, ..plain },
                "host memory of device 3, compressible",
            ),
            (
                plain.located(Location::HostNode(2)).remote_dma(),
                Properties { location: Location::HostNode(2), remote_dma: true, ..plain },
                "host memory of node 2 of device 3, for remote DMA",
            ),
        ];
        for (properties, fields, text) in rows {
            assert_eq!((properties, &*properties.to_string()), (fields, text));
            assert_eq!(properties.is_shareable(), properties.handle_types == both);
            assert_eq!(properties.location.is_host(), text.starts_with("host"));
        }
        assert_eq!(plain.shareable().handle_types, HandleTypes::NATIVE);
        assert_eq!(HandleTypes::empty().to_string(), "none");
    }

    #[test]
    fn host_copies_need_the_cpus_access() {
        let (owner, device) = (DeviceId(1), Properties::on(DeviceId(1)));
        let host = device.located(Location::Host);
        let maps = [Access::None, Access::Read, Access::ReadWrite]
            .map(|access| AccessMap::NONE.with(DeviceId::HOST, access));
        let cpu =
            |properties: Properties| maps.map(|map| properties.access_for_copies(map).get(DeviceId::HOST));
        assert_eq!(cpu(host), [Access::None, Access::ReadWrite, Access::ReadWrite]);
        assert_eq!(cpu(device), [Access::None, Access::Read, Access::ReadWrite]);
        assert!(maps.iter().all(|map| host.access_for_copies(*map).get(owner) == Access::ReadWrite));
    }

    #[test]
    fn foreign_handle_type_error_names_ours() {
        let (other, text) = match cfg!(windows) {
            true => (
                HandleTypes::FILE_DESCRIPTOR,
                "Windows has no file descriptors for memory; export it as a Win32 handle",
            ),
            false => (
                HandleTypes::WIN32,
                "Win32 handles exist only on Windows; export the memory as a file descriptor",
            ),
        };
        let error = (other | HandleTypes::FABRIC).check_here(Operation::Reserve).unwrap_err();
        assert_eq!(error.to_string(), format!("reserve: not supported: {text}"));
        for here in [HandleTypes::empty(), HandleTypes::NATIVE, HandleTypes::NATIVE | HandleTypes::FABRIC] {
            assert!(here.check_here(Operation::Reserve).is_ok(), "{here}");
        }
    }
}
