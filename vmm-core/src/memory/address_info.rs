//! The region, the mapping and the block that contain an address.

use super::MemoryId;
use crate::types::{AccessMap, Address, AddressRange, InstanceId, Properties, Vendor};
use std::fmt;

/// The region, the mapping and the block that contain an address, as [`at`](crate::at) returns them. Prints as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressInfo {
    /// The address.
    pub address: Address,
    /// The vendor of the region's backend.
    pub vendor: Vendor,
    /// The instance of the region's backend.
    pub instance: InstanceId,
    /// The reservation that contains the address, with the guards of a [guarded](crate::RegionBuilder::guarded) region.
    pub reservation: AddressRange,
    /// The part of the region that lies in this reservation. A region that was extended has several.
    pub region: AddressRange,
    /// True if the address lies in a guard, where nothing is ever mapped.
    pub is_guard: bool,
    /// The [tag](crate::Region::tag) of the region. Regions of a pool have the name of the tag whose blocks they hold.
    pub tag: Box<str>,
    /// True if the region belongs to a pool.
    pub is_pool: bool,
    /// True if the region is [suspended](crate::Region::suspend), or the tag of the pool: its memory is away until the resume.
    pub suspended: bool,
    /// The mapping that contains the address.
    pub mapping: Option<MappingAt>,
    /// The allocated block of a pool that contains the address.
    pub block: Option<BlockAt>,
}

/// A mapping in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingAt {
    /// The addresses of the mapping. It is mapped, unmapped and protected as a whole.
    pub range: AddressRange,
    /// The identifier of the memory: [`PhysicalMemory::id`](crate::PhysicalMemory::id).
    pub memory: MemoryId,
    /// The properties of the memory.
    pub properties: Properties,
    /// The access of each device.
    pub access: AccessMap,
    /// True if the state of the mapping is [unknown](crate::MappingInfo::poisoned).
    pub poisoned: bool,
}

/// An allocated block of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// The addresses of the block.
    pub range: AddressRange,
    /// The name of the block's tag.
    pub tag: Box<str>,
    /// True if the tag is suspended.
    pub suspended: bool,
}

impl fmt::Display for AddressInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_pool { "a pool's region" } else { "region" };
        write!(
            f,
            "{} is in {what} {:?} of the {} backend, {}",
            self.address, self.tag, self.vendor, self.region
        )?;
        if self.is_guard {
            return f.write_str(": in its guard, where nothing is mapped");
        }
        if let Some(BlockAt { range, tag, .. }) = &self.block {
            write!(f, "; block {range} of tag {tag:?}")?;
        }
        match &self.mapping {
            None if self.suspended => f.write_str("; suspended, so nothing is mapped"),
            None => f.write_str("; nothing is mapped there"),
            Some(mapping) => {
                write!(f, "; mapping {} of {}", mapping.range, mapping.properties)?;
                if mapping.access.is_none() {
                    f.write_str(", no device has access")?;
                }
                for grant in mapping.access.grants() {
                    write!(f, ", {}: {}", grant.device, grant.access)?;
                }
                if mapping.poisoned { f.write_str(", in an unknown state") } else { Ok(()) }
            }
        }
    }
}
