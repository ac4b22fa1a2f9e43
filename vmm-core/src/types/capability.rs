//! Optional features, whether a device has them, and the evidence for that.

use crate::types::{Detail, DeviceId, ErrorKind, Result};
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
    /// All features.
    pub const ALL: &'static [Self] = &[
        Self::VirtualMemory,
        Self::FixedAddress,
        Self::ReadOnlyAccess,
        Self::PeerAccess,
        Self::FileDescriptor,
        Self::Win32Handle,
        Self::FabricHandle,
        Self::Multicast,
        Self::HostAccess,
        Self::HostMemory,
        Self::HostNodeMemory,
        Self::Compression,
        Self::RemoteDma,
        Self::DmaBuf,
    ];

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

    /// Creates the capability that a trial on one granule has shown: the device has the feature, with the trial's note, or the
    /// driver refused the trial.
    ///
    /// # Errors
    ///
    /// The trial's error if it shows nothing about the feature: memory, addresses or descriptors are short, a stream captures, the device is
    /// lost, or the process is a forked child or exits.
    pub fn tried(feature: Feature, trial: Result<impl Into<String>>) -> Result<Self> {
        let error = match trial {
            Ok(note) => return Ok(Self::yes(feature, Evidence::Trial, note)),
            Err(error) => error,
        };
        match (error.kind(), error.detail()) {
            (
                ErrorKind::OutOfMemory
                | ErrorKind::OutOfAddressSpace
                | ErrorKind::OutOfDescriptors
                | ErrorKind::Busy
                | ErrorKind::DeviceLost
                | ErrorKind::Forked
                | ErrorKind::Exiting,
                _,
            ) => Err(error),
            (_, Detail::Driver { source, .. }) => Ok(Self::no(feature, Evidence::Trial, source.to_string())),
            (_, Detail::Unsupported { reason }) => Ok(Self::no(feature, Evidence::Trial, reason)),
            _ => Ok(Self::no(feature, Evidence::Trial, error.to_string())),
        }
    }

    /// Creates the capability of access to other devices' memory, from the devices that the driver reports as reachable and the
    /// number of other devices.
    #[must_use]
    pub fn peer_access(reachable: &[DeviceId], others: usize) -> Self {
        const FEATURE: Feature = Feature::PeerAccess;
        match (reachable, others) {
            (_, 0) => Self::no(FEATURE, Evidence::Attribute, "there is no other device"),
            ([], _) => Self::no(FEATURE, Evidence::Attribute, "no other device can be reached"),
            (reachable, _) => {
                let names: Vec<_> = reachable.iter().map(ToString::to_string).collect();
                Self::yes(FEATURE, Evidence::Attribute, format!("to {}", names.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Bytes, DriverError, Error, Operation};

    #[test]
    fn only_an_error_about_the_feature_decides() {
        let source = DriverError { call: "call", code: 801, name: "REFUSED".into(), description: "".into() };
        let tried = |detail| {
            let trial: Result<&str> = Err(Error::new(Operation::CreateMemory, detail));
            Capability::tried(Feature::Compression, trial)
        };
        let refused = tried(Detail::Driver { source: source.clone(), context: "2 MiB".to_owned() }).unwrap();
        assert!(!refused.available && refused.note == source.to_string(), "{refused:?}");
        assert_eq!(tried(Detail::Unsupported { reason: "why".to_owned() }).unwrap().note, "why");
        assert_eq!(
            tried(Detail::ZeroSize).unwrap().note,
            Error::new(Operation::CreateMemory, Detail::ZeroSize).to_string()
        );
        let short = Detail::OutOfMemory {
            device: DeviceId(0),
            requested: Bytes::mib(2),
            free: Bytes(0),
            total: Bytes::gib(1),
            source: source.clone(),
        };
        let full = Detail::ExceedsAddressSpace { size: Bytes::mib(2), limit: Bytes::mib(1) };
        for undecided in [
            short,
            full,
            Detail::DeviceLost { source },
            Detail::Forked,
            Detail::Exiting,
            Detail::Capturing { source: None },
        ] {
            let kind = tried(undecided).unwrap_err().kind();
            assert_ne!(kind, ErrorKind::Unsupported, "{kind}");
        }
        let found = Capability::tried(Feature::Compression, Ok("note")).unwrap();
        assert_eq!(
            (found.feature, found.found_by, &*found.note),
            (Feature::Compression, Evidence::Trial, "note")
        );
        assert!(found.available);
    }

    #[test]
    fn evidence_and_features_are_printed() {
        let all = [Evidence::Attribute, Evidence::Trial, Evidence::Version, Evidence::Design];
        let texts = all.map(|evidence| evidence.to_string());
        assert_eq!(texts, ["asked the driver", "tried", "by version", "by design"]);
        for (feature, text) in [
            (Feature::VirtualMemory, "virtual memory"),
            (Feature::FixedAddress, "fixed address"),
            (Feature::ReadOnlyAccess, "read-only access"),
            (Feature::PeerAccess, "peer access"),
            (Feature::FileDescriptor, "file descriptor"),
            (Feature::Win32Handle, "Win32 handle"),
            (Feature::FabricHandle, "fabric handle"),
            (Feature::Multicast, "multicast"),
            (Feature::HostAccess, "host access"),
            (Feature::HostMemory, "host memory"),
            (Feature::HostNodeMemory, "host node memory"),
            (Feature::Compression, "compression"),
            (Feature::RemoteDma, "remote DMA"),
            (Feature::DmaBuf, "dma-buf"),
        ] {
            assert_eq!(format!("{feature:>17}"), format!("{text:>17}"));
        }
    }

    #[test]
    fn peers_are_named() {
        let note = |reachable: &[u32], others| {
            let reachable: Vec<_> = reachable.iter().map(|device| DeviceId(*device)).collect();
            let found = Capability::peer_access(&reachable, others);
            (found.available, found.note)
        };
        assert_eq!(note(&[], 0), (false, "there is no other device".to_owned()));
        assert_eq!(note(&[], 2), (false, "no other device can be reached".to_owned()));
        assert_eq!(note(&[1, 3], 3), (true, "to device 1, device 3".to_owned()));
    }
}
