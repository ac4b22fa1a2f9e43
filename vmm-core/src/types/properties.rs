//! What a piece of physical memory is to be: whose, where, and who can be given it.

use crate::types::{Detail, DeviceId, Error, Operation, Result};
use std::fmt;

bitflags::bitflags! {
    /// As what memory can leave the process that created it. CUDA: `CUmemAllocationHandleType`, HIP:
    /// `hipMemAllocationHandleType`; the numbers are theirs.
    ///
    /// CUDA takes several for one piece of memory, HIP one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HandleTypes: u32 {
        /// A file descriptor, for processes of one machine that runs Linux.
        const FILE_DESCRIPTOR = 1;
        /// A handle of Windows, for processes of one machine.
        const WIN32 = 2;
        /// 64 bytes, for machines whose GPUs share a fabric: [`FabricHandle`](crate::FabricHandle).
        const FABRIC = 8;
    }
}

impl HandleTypes {
    /// What processes of this machine share memory by: descriptors, on Windows handles.
    pub const NATIVE: Self = if cfg!(windows) { Self::WIN32 } else { Self::FILE_DESCRIPTOR };

    /// Why memory cannot be exported as one of these on this system, whoever's driver it is; nothing where it could be.
    #[must_use]
    pub const fn missing_here(self) -> Option<&'static str> {
        if cfg!(windows) && self.contains(Self::FILE_DESCRIPTOR) {
            Some("Windows has no file descriptors for memory; there it is exported as a Win32 handle")
        } else if !cfg!(windows) && self.contains(Self::WIN32) {
            Some("Win32 handles are of Windows alone; here memory is exported as a file descriptor")
        } else {
            None
        }
    }

    /// Refuses what [this system has not](HandleTypes::missing_here), before a driver is asked.
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

/// Where physical memory is. CUDA and HIP call it the location's type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Location {
    /// In the device's own memory.
    #[default]
    Device,
    /// In the host's memory, wherever the driver likes. CUDA: `CU_MEM_LOCATION_TYPE_HOST`; it cannot be shared between
    /// processes there.
    Host,
    /// In the memory of one NUMA node of the host. CUDA: `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
    HostNode(u32),
}

impl Location {
    /// True for memory of the host, of whichever node.
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

/// What a piece of physical memory is to be, or is. CUDA: `CUmemAllocationProp`, HIP: `hipMemAllocationProp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Properties {
    /// Whose memory. For memory of the host, the device that works on it: copies to and from it are that device's.
    pub device: DeviceId,
    /// Where it is.
    pub location: Location,
    /// As what it can be exported. CUDA and HIP must know when the memory is created.
    pub handle_types: HandleTypes,
    /// Whether the driver may compress it, in order to save bandwidth, not room. It is asked for; what came of it
    /// [`PhysicalMemory::properties`](crate::PhysicalMemory::properties) tells.
    pub compressible: bool,
    /// Whether a network card can reach it without the host (CUDA: `gpuDirectRDMACapable`).
    pub remote_dma: bool,
}

impl Properties {
    /// Memory of `device` that stays in this process.
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

    /// The same, to be shared with processes of this machine.
    #[must_use]
    pub const fn shareable(self) -> Self {
        self.exported_as(HandleTypes::NATIVE)
    }

    /// The same, to be exported in these ways too.
    #[must_use]
    pub const fn exported_as(mut self, types: HandleTypes) -> Self {
        self.handle_types = self.handle_types.union(types);
        self
    }

    /// The same in another place.
    #[must_use]
    pub const fn located(mut self, location: Location) -> Self {
        self.location = location;
        self
    }

    /// The same, which the driver may compress.
    #[must_use]
    pub const fn compressible(mut self) -> Self {
        self.compressible = true;
        self
    }

    /// The same, which network cards can reach.
    #[must_use]
    pub const fn remote_dma(mut self) -> Self {
        self.remote_dma = true;
        self
    }

    /// True for memory that can leave the process in any way.
    #[must_use]
    pub const fn is_shareable(&self) -> bool {
        !self.handle_types.is_empty()
    }
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.location, self.device)?;
        if self.is_shareable() {
            write!(f, ", to be exported as {}", self.handle_types)?;
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
