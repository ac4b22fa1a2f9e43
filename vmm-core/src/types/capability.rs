//! What a device can do, how that was found out, and why not where it cannot.

use std::fmt;

/// Something that not every driver, version or device has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Feature {
    /// Reserving, creating, mapping and protecting at all.
    VirtualMemory,
    /// Reservations at an address of the caller's choice, where that is free.
    FixedAddress,
    /// Mappings that a device can read and not write.
    ReadOnlyAccess,
    /// Access to another device's memory.
    PeerAccess,
    /// Handles as file descriptors, to be shared between processes of one machine.
    FileDescriptor,
    /// Handles of Windows, to be shared between processes of one machine.
    Win32Handle,
    /// Handles as 64 bytes, to be shared between machines.
    FabricHandle,
    /// One address that writes to several devices.
    Multicast,
    /// The CPU reading and writing a device's mapped memory.
    HostAccess,
    /// Physical memory of the host, mapped for devices.
    HostMemory,
    /// The same of a NUMA node of choice.
    HostNodeMemory,
    /// Memory that the driver may compress.
    Compression,
    /// Memory that a network card can reach without the host.
    RemoteDma,
    /// One descriptor (dma-buf) for a range of mapped memory.
    DmaBuf,
}

impl Feature {
    /// The feature's name in reports.
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

/// How a capability was found out. Attributes are known to lie; a trial does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// The driver was asked.
    Attribute,
    /// It was tried on a granule of memory.
    Trial,
    /// The library's version or symbols tell.
    Version,
    /// The backend is made that way.
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

/// Whether a device has a feature.
#[derive(Clone, Debug)]
pub struct Capability {
    /// Which feature.
    pub feature: Feature,
    /// Whether the device has it.
    pub available: bool,
    /// How that was found out.
    pub found_by: Evidence,
    /// Why it is missing, or what is to be known of it; empty where there is nothing to say.
    pub note: String,
}

impl Capability {
    /// A feature that is there.
    #[must_use]
    pub fn yes(feature: Feature, found_by: Evidence, note: impl Into<String>) -> Self {
        Self { feature, available: true, found_by, note: note.into() }
    }

    /// A feature that is missing, and why.
    #[must_use]
    pub fn no(feature: Feature, found_by: Evidence, reason: impl Into<String>) -> Self {
        Self { feature, available: false, found_by, note: reason.into() }
    }
}
