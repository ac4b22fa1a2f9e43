//! The description as bytes. The records are separate from the library's types: a change here changes the format's version, and a
//! change elsewhere in the library does not change the file.

use crate::format::{LIMITS, MAX_HEAD, POOLS, REGIONS};
use crate::pool::Table;
use crate::{
    Description, DeviceRecord, EarlierSnapshot, MappingRecord, MemoryRecord, RegionRecord, SnapshotId,
};
use gpu_vmm_core::MemoryKind;
use gpu_vmm_core::{
    Access, AccessMap, Address, Alignment, Bytes, DeviceId, DeviceUuid, Grant, Granularity, Properties,
};
use serde::{Deserialize, Serialize};

/// The description and the list of needed files, which precede the entries.
#[derive(Serialize, Deserialize)]
struct HeadRecord {
    block: u64,
    id: [u8; 16],
    parent: Option<FileRecord>,
    created: u64,
    library: String,
    vendor: String,
    driver: String,
    devices: Vec<Device>,
    regions: Vec<Region>,
    memories: Vec<Memory>,
    needed: Vec<FileRecord>,
    // A table of a pool's blocks follows in version 2. In version 3 the table, if there is one, and the limits of the regions follow.
}

#[derive(Serialize, Deserialize)]
struct FileRecord {
    id: [u8; 16],
    file: String,
}

#[derive(Serialize, Deserialize)]
struct Device {
    ordinal: u32,
    name: String,
    uuid: Option<[u8; 16]>,
    granularity: u64,
    total: u64,
}

#[derive(Serialize, Deserialize)]
struct Region {
    tag: String,
    address: u64,
    reservations: Vec<u64>,
    granularity: u64,
    alignment: u64,
    memory: Kind,
    access: Vec<Allowed>,
    extend_by: u64,
    guard: u64,
    portable: bool,
    mappings: Vec<Mapping>,
}

#[derive(Serialize, Deserialize)]
struct Mapping {
    offset: u64,
    memory: u32,
    access: Vec<Allowed>,
}

/// A device's access: reading, and whether writing too.
#[derive(Serialize, Deserialize)]
struct Allowed {
    device: u32,
    write: bool,
}

#[derive(Serialize, Deserialize)]
struct Memory {
    size: u64,
    granularity: u64,
    kind: Kind,
}

#[derive(Serialize, Deserialize)]
struct Kind {
    device: u32,
    rest: MemoryKind,
}

/// The head of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) block: Bytes,
    pub(crate) description: Description,
    /// The other files that hold blocks.
    pub(crate) needed: Vec<EarlierSnapshot>,
}

impl Head {
    /// # Errors
    ///
    /// Why the head is too long.
    pub(crate) fn write(&self) -> Result<Vec<u8>, String> {
        let wrong = |error: postcard::Error| error.to_string();
        let mut bytes = postcard::to_allocvec(&HeadRecord::from(self)).map_err(wrong)?;
        let Description { pool, regions, .. } = &self.description;
        let table = pool.as_ref().map(Table::from);
        if self.version() >= LIMITS {
            let limits: Vec<_> = regions.iter().map(|region| region.below.map(|limit| limit.0)).collect();
            bytes = postcard::to_extend(&(table, limits), bytes).map_err(wrong)?;
        } else if let Some(table) = table {
            bytes = postcard::to_extend(&table, bytes).map_err(wrong)?;
        }
        if bytes.len() as u64 > MAX_HEAD {
            return Err(format!("a description of {} bytes exceeds the limit of {MAX_HEAD}", bytes.len()));
        }
        Ok(bytes)
    }

    /// A forged length allocates no excess memory: postcard makes serde reserve nothing if fewer bytes are left than elements are
    /// announced, and serde reserves at most 1 MiB.
    ///
    /// # Errors
    ///
    /// Why the bytes are not a valid head.
    pub(crate) fn read(bytes: &[u8], version: u32) -> Result<Self, String> {
        let wrong = |error: postcard::Error| error.to_string();
        let (record, mut rest) = postcard::take_from_bytes::<HeadRecord>(bytes).map_err(wrong)?;
        let mut head = record.head()?;
        if version >= LIMITS {
            let (table, limits);
            ((table, limits), rest) =
                postcard::take_from_bytes::<(Option<Table>, Vec<Option<u64>>)>(rest).map_err(wrong)?;
            head.description.pool = table.map(Table::into);
            let regions = &mut head.description.regions;
            if limits.len() != regions.len() {
                return Err(format!("{} limits for {} regions", limits.len(), regions.len()));
            }
            for (region, limit) in regions.iter_mut().zip(limits) {
                region.below = limit.map(Address);
            }
        } else if version == POOLS {
            let table;
            (table, rest) = postcard::take_from_bytes::<Table>(rest).map_err(wrong)?;
            head.description.pool = Some(table.into());
        }
        if rest.is_empty() { Ok(head) } else { Err(format!("{} bytes follow its end", rest.len())) }
    }

    /// Returns the version of the format that it needs.
    pub(crate) fn version(&self) -> u32 {
        let Description { pool, regions, .. } = &self.description;
        match regions.iter().any(|region| region.below.is_some()) {
            true => LIMITS,
            false if pool.is_some() => POOLS,
            false => REGIONS,
        }
    }
}

impl From<&Head> for HeadRecord {
    fn from(head: &Head) -> Self {
        let Head { block, description, needed } = head;
        Self {
            block: block.0,
            id: description.id.0,
            parent: description.parent.as_ref().map(FileRecord::from),
            created: description.created,
            library: description.library.clone(),
            vendor: description.vendor.clone(),
            driver: description.driver.clone(),
            devices: description.devices.iter().map(Device::from).collect(),
            regions: description.regions.iter().map(Region::from).collect(),
            memories: description.memories.iter().map(Memory::from).collect(),
            needed: needed.iter().map(FileRecord::from).collect(),
        }
    }
}

impl HeadRecord {
    fn head(self) -> Result<Head, String> {
        let description = Description {
            id: SnapshotId(self.id),
            parent: self.parent.map(EarlierSnapshot::from),
            created: self.created,
            library: self.library,
            vendor: self.vendor,
            driver: self.driver,
            devices: self.devices.into_iter().map(Device::record).collect::<Result<_, _>>()?,
            regions: self.regions.into_iter().map(Region::record).collect::<Result<_, _>>()?,
            memories: self.memories.into_iter().map(Memory::record).collect::<Result<_, _>>()?,
            pool: None,
        };
        let needed = self.needed.into_iter().map(EarlierSnapshot::from).collect();
        Ok(Head { block: Bytes(self.block), description, needed })
    }
}

impl From<&EarlierSnapshot> for FileRecord {
    fn from(earlier: &EarlierSnapshot) -> Self {
        Self { id: earlier.id.0, file: earlier.file.clone() }
    }
}

impl From<FileRecord> for EarlierSnapshot {
    fn from(record: FileRecord) -> Self {
        Self { id: SnapshotId(record.id), file: record.file }
    }
}

fn granularity(bytes: u64) -> Result<Granularity, String> {
    Granularity::new(Bytes(bytes)).ok_or_else(|| format!("a granularity of {bytes}"))
}

impl From<&DeviceRecord> for Device {
    fn from(device: &DeviceRecord) -> Self {
        Self {
            ordinal: device.id.0,
            name: device.name.clone(),
            uuid: device.uuid.map(|uuid| uuid.0),
            granularity: device.granularity.bytes().0,
            total: device.total_memory.0,
        }
    }
}

impl Device {
    fn record(self) -> Result<DeviceRecord, String> {
        Ok(DeviceRecord {
            id: DeviceId(self.ordinal),
            name: self.name,
            uuid: self.uuid.map(DeviceUuid),
            granularity: granularity(self.granularity)?,
            total_memory: Bytes(self.total),
        })
    }
}

impl From<&RegionRecord> for Region {
    fn from(region: &RegionRecord) -> Self {
        Self {
            tag: region.tag.clone(),
            address: region.address.0,
            reservations: region.reservations.iter().map(|size| size.0).collect(),
            granularity: region.granularity.bytes().0,
            alignment: region.alignment.bytes().0,
            memory: region.memory.into(),
            access: allowed(region.access),
            extend_by: region.extend_by.0,
            guard: region.guard.0,
            portable: region.portable,
            mappings: region.mappings.iter().map(Mapping::from).collect(),
        }
    }
}

impl Region {
    fn record(self) -> Result<RegionRecord, String> {
        Ok(RegionRecord {
            tag: self.tag,
            address: Address(self.address),
            reservations: self.reservations.into_iter().map(Bytes).collect(),
            granularity: granularity(self.granularity)?,
            alignment: Alignment::new(Bytes(self.alignment))
                .ok_or_else(|| format!("an alignment of {}", self.alignment))?,
            memory: self.memory.properties()?,
            access: access_map(&self.access)?,
            extend_by: Bytes(self.extend_by),
            guard: Bytes(self.guard),
            portable: self.portable,
            below: None,
            mappings: self.mappings.into_iter().map(Mapping::record).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&MappingRecord> for Mapping {
    fn from(mapping: &MappingRecord) -> Self {
        // The check that precedes writing refuses larger numbers.
        let memory = u32::try_from(mapping.memory).unwrap_or(u32::MAX);
        Self { offset: mapping.offset.0, memory, access: allowed(mapping.access) }
    }
}

impl Mapping {
    fn record(self) -> Result<MappingRecord, String> {
        Ok(MappingRecord {
            offset: Bytes(self.offset),
            memory: self.memory as usize,
            access: access_map(&self.access)?,
        })
    }
}

fn allowed(access: AccessMap) -> Vec<Allowed> {
    let one = |grant: Grant| Allowed { device: grant.device.0, write: grant.access == Access::ReadWrite };
    access.grants().map(one).collect()
}

/// Reads access that is ordered by device without duplicates, as it is written.
fn access_map(list: &[Allowed]) -> Result<AccessMap, String> {
    if !list.is_sorted_by(|one, next| one.device < next.device) {
        return Err("access that is not ordered by device".to_owned());
    }
    match list.iter().find(|one| one.device > DeviceId::LIMIT) {
        Some(one) => Err(format!("access for device {}", one.device)),
        None => Ok(list
            .iter()
            .map(|one| Grant {
                device: DeviceId(one.device),
                access: if one.write { Access::ReadWrite } else { Access::Read },
            })
            .collect()),
    }
}

impl From<&MemoryRecord> for Memory {
    fn from(memory: &MemoryRecord) -> Self {
        let granularity = memory.granularity.bytes().0;
        Self { size: memory.size.0, granularity, kind: memory.properties.into() }
    }
}

impl Memory {
    fn record(self) -> Result<MemoryRecord, String> {
        let granularity = granularity(self.granularity)?;
        Ok(MemoryRecord { size: Bytes(self.size), granularity, properties: self.kind.properties()? })
    }
}

impl From<Properties> for Kind {
    fn from(properties: Properties) -> Self {
        Self { device: properties.device.0, rest: properties.into() }
    }
}

impl Kind {
    fn properties(self) -> Result<Properties, String> {
        self.rest.of_device(DeviceId(self.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No description has such records, but a forged file can.
    #[test]
    fn records_that_no_description_has_are_refused() {
        let access = |devices: &[u32]| {
            let list: Vec<_> =
                devices.iter().map(|device| Allowed { device: *device, write: true }).collect();
            access_map(&list)
        };
        assert_eq!(access(&[0, 2, DeviceId::HOST.0]).unwrap().grants().count(), 3);
        for devices in [[2, 1], [1, 1]] {
            assert_eq!(access(&devices), Err("access that is not ordered by device".to_owned()));
        }
        assert!(access(&[DeviceId::HOST.0 + 1]).unwrap_err().contains("access for device"));
        for bytes in [0, 3] {
            assert_eq!(granularity(bytes), Err(format!("a granularity of {bytes}")));
        }
        let mut region = Region::from(&RegionRecord::in_bytes(Address(0), Bytes(1)));
        region.alignment = 3;
        assert_eq!(region.record().map(drop), Err("an alignment of 3".to_owned()));
    }
}
