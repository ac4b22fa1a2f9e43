//! Optional features, whether a device has them, and the evidence for that.

use std::fmt;

/// A feature that not every driver, version or device has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Feature {
    /// Virtual memory management: reserving, creating, mapping and setting access.
    VirtualMemory,
    /// Reservations at a free address of the caller's choice.
    FixedAddress,
    /// Mappings that a device can read but not write.
    ReadOnlyAccess,
    /// Access to another device's memory.
    PeerAccess,
    /// Sharing memory between processes of one machine by file descriptors.
    FileDescriptor,
    /// Sharing memory between processes of one machine by Windows handles.
    Win32Handle,
    /// Sharing memory between machines by fabric handles of 64 bytes.
    FabricHandle,
    /// Multicast objects: one address that writes to several devices.
    Multicast,
    /// Reads and writes of a device's mapped memory by the CPU.
    HostAccess,
    /// Physical memory of the host that devices can map.
    HostMemory,
    /// Physical memory of a chosen NUMA node of the host.
    HostNodeMemory,
    /// Memory that the driver may compress.
    Compression,
    /// Memory that a network card can access without the host.
    RemoteDma,
    /// Export of a range of mapped memory as one dma-buf descriptor.
    DmaBuf,
}

impl Feature {
    /// Returns the feature's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VirtualMemory => "virtual memory",
            Self::FixedAddress => "fixed address",
            Self::ReadOnlyAccess => "read-only access",
            Self::PeerAccess => "peer access",
            Self::FileDescriptor => "file descriptor",
            Self::Win32Handle => "Win32 handle",
            Self::FabricHandle => "fabric handle",
            Self::Multicast => "multicast",
            Self::HostAccess => "host access",
            Self::HostMemory => "host memory",
            Self::HostNodeMemory => "host node memory",
            Self::Compression => "compression",
            Self::RemoteDma => "remote DMA",
            Self::DmaBuf => "dma-buf",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The evidence for a capability. Attributes are known to be wrong on some drivers; a trial is not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// An attribute that the driver reports.
    Attribute,
    /// A trial on one granule of memory.
    Trial,
    /// The version or the symbols of the driver's library.
    Version,
    /// The design of the backend.
    Design,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Attribute => "asked the driver",
            Self::Trial => "tried",
            Self::Version => "by version",
            Self::Design => "by design",
        })
    }
}

/// A feature, whether a device has it, and the evidence.
#[derive(Clone, Debug)]
pub struct Capability {
    /// The feature.
    pub feature: Feature,
    /// Whether the device has it.
    pub available: bool,
    /// The evidence.
    pub found_by: Evidence,
    /// The reason why the feature is missing, or a limitation of an available one. Can be empty.
    pub note: String,
}

impl Capability {
    /// Creates the capability of a device that has the feature.
    #[must_use]
    pub fn yes(feature: Feature, found_by: Evidence, note: impl Into<String>) -> Self {
        Self { feature, available: true, found_by, note: note.into() }
    }

    /// Creates the capability of a device that does not have the feature, with the reason.
    #[must_use]
    pub fn no(feature: Feature, found_by: Evidence, reason: impl Into<String>) -> Self {
        Self { feature, available: false, found_by, note: reason.into() }
    }
}
