//! What memory is, in the words of files and of messages between processes.

use crate::types::{DeviceId, HandleTypes, Location, Properties};
use serde::{Deserialize, Serialize};

/// What a piece of memory was made as, whosever it is: [`Properties`] without the device, which a file knows by another name
/// than another process does.
///
/// It is what stands in a snapshot, member for member, and in the messages of an exchange: what changes here changes the
/// version of the snapshot's file (`docs/guide/snapshot-format.md`), and what changes in [`Properties`] changes nothing here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryKind {
    /// Where it is: nothing for the device's own memory, else the host's, with the node where one was asked for.
    pub host: Option<Option<u32>>,
    /// The bits of [`HandleTypes`].
    pub handle_types: u32,
    /// As in [`Properties`].
    pub compressible: bool,
    /// As in [`Properties`].
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
    /// Memory of this kind that is a device's.
    ///
    /// # Errors
    ///
    /// What no memory has.
    pub fn of_device(self, device: DeviceId) -> Result<Properties, String> {
        Ok(Properties {
            device,
            location: match self.host {
                None => Location::Device,
                Some(None) => Location::Host,
                Some(Some(node)) => Location::HostNode(node),
            },
            handle_types: HandleTypes::from_bits(self.handle_types)
                .ok_or_else(|| format!("kinds of handle {:#x}", self.handle_types))?,
            compressible: self.compressible,
            remote_dma: self.remote_dma,
        })
    }
}
