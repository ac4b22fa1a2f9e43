//! The serialized form of memory properties, for snapshot files and for messages between processes.

use crate::types::{DeviceId, HandleTypes, Location, Properties};
use serde::{Deserialize, Serialize};

/// The [`Properties`] of physical memory without the device, which files and other processes identify in different ways.
///
/// Snapshots and messages between processes contain it member for member. A change of this type needs a new version of the
/// snapshot format (`docs/guide/snapshot-format.md`). A change of [`Properties`] does not affect the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryKind {
    /// `None` for device memory, `Some(None)` for host memory, `Some(Some(node))` for host memory of a NUMA node.
    pub host: Option<Option<u32>>,
    /// The bits of [`HandleTypes`].
    pub handle_types: u32,
    /// See [`Properties`].
    pub compressible: bool,
    /// See [`Properties`].
    pub remote_dma: bool,
}

impl From<Properties> for MemoryKind {
    fn from(properties: Properties) -> Self {
        Self {
            host: match properties.location {
                Location::Device => None,
                Location::Host => Some(None),
                Location::HostNode(node) => Some(Some(node)),
            },
            handle_types: properties.handle_types.bits(),
            compressible: properties.compressible,
            remote_dma: properties.remote_dma,
        }
    }
}

impl MemoryKind {
    /// Returns the properties of memory of this kind on `device`.
    ///
    /// # Errors
    ///
    /// A description of the unknown handle types, if [`handle_types`](Self::handle_types) has bits that [`HandleTypes`] does not.
    pub fn of_device(self, device: DeviceId) -> Result<Properties, String> {
        Ok(Properties {
            device,
            location: match self.host {
                None => Location::Device,
                Some(None) => Location::Host,
                Some(Some(node)) => Location::HostNode(node),
            },
            handle_types: HandleTypes::from_bits(self.handle_types)
                .ok_or_else(|| format!("unknown handle types {:#x}", self.handle_types))?,
            compressible: self.compressible,
            remote_dma: self.remote_dma,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_property_comes_back() {
        let plain = Properties::on(DeviceId(3));
        let all = [
            plain,
            Properties { location: Location::Host, ..plain },
            Properties { location: Location::HostNode(2), ..plain },
            Properties { handle_types: HandleTypes::FILE_DESCRIPTOR, ..plain },
            Properties { handle_types: HandleTypes::all(), ..plain },
            Properties { compressible: true, ..plain },
            Properties { remote_dma: true, ..plain },
        ];
        for properties in all {
            assert_eq!(MemoryKind::from(properties).of_device(DeviceId(3)), Ok(properties));
        }
        let unknown = MemoryKind { handle_types: 1 << 31, ..MemoryKind::from(plain) };
        assert_eq!(unknown.of_device(DeviceId(0)).unwrap_err(), "unknown handle types 0x80000000");
    }
}
