//! The description of a snapshot's regions, without their contents.

use crate::PoolRecord;
use gpu_vmm_core::{
    AccessMap, Address, Alignment, Backend, Bytes, Detail, DeviceId, DeviceUuid, Error, Granularity,
    Operation, Properties, Result,
};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The identifier of a snapshot, independent of its file name: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub [u8; 16]);

impl SnapshotId {
    /// Creates a new identifier.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the system provides no random bytes.
    pub fn new() -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| {
            Error::new(
                Operation::TakeSnapshot,
                Detail::Unsupported { reason: format!("the system provides no random bytes: {error}") },
            )
        })?;
        Ok(Self(id))
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A reference to another snapshot, in a file of the same folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlierSnapshot {
    /// The identifier of the snapshot.
    pub id: SnapshotId,
    /// The name of its file, without a folder.
    pub file: String,
}

/// The description of a snapshot, without the contents of the memory. The process that wrote it has chosen all numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The identifier of the snapshot.
    pub id: SnapshotId,
    /// The snapshot that this one is relative to, or `None` if this file is complete by itself.
    /// [`SnapshotWriter::create`](super::SnapshotWriter::create) sets it.
    pub parent: Option<EarlierSnapshot>,
    /// The time at which writing began, in seconds since the beginning of 1970 (UTC).
    pub created: u64,
    /// The version of gpu-vmm that wrote it.
    pub library: String,
    /// [`Vendor::name`](gpu_vmm_core::Vendor::name).
    pub vendor: String,
    /// The driver's version.
    pub driver: String,
    /// The devices of the backend.
    pub devices: Vec<DeviceRecord>,
    /// The regions.
    pub regions: Vec<RegionRecord>,
    /// The memory that is mapped in the regions. Memory that is mapped several times is listed once.
    pub memories: Vec<MemoryRecord>,
    /// The blocks of the pool that the regions belong to, in a snapshot of a pool.
    pub pool: Option<PoolRecord>,
}

/// A device as it was when the snapshot was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceRecord {
    /// Its ordinal in the writing process.
    pub id: DeviceId,
    /// The driver's name of the device.
    pub name: String,
    /// The UUID, by which other processes identify the device.
    pub uuid: Option<DeviceUuid>,
    /// The unit in which its memory is created and mapped.
    pub granularity: Granularity,
    /// The size of its memory.
    pub total_memory: Bytes,
}

/// A region as it was when the snapshot was written: its addresses, its settings and its mappings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionRecord {
    /// [`Region::tag`](gpu_vmm_core::Region::tag).
    pub tag: String,
    /// The first address.
    pub address: Address,
    /// The size of each of its reservations, in order.
    pub reservations: Vec<Bytes>,
    /// The unit of its offsets.
    pub granularity: Granularity,
    /// The alignment of its address.
    pub alignment: Alignment,
    /// The properties of memory that growth creates.
    pub memory: Properties,
    /// The access granted on it, in addition to the device's own read and write access.
    pub access: AccessMap,
    /// The size of the reservation that growth first tries to add; zero for as much as the region has.
    pub extend_by: Bytes,
    /// The size of the address range kept free before and after it; zero without a guard.
    pub guard: Bytes,
    /// Whether it grows and moves only in ways that every driver supports:
    /// [`Region::is_portable`](gpu_vmm_core::Region::is_portable).
    pub portable: bool,
    /// The limit of [`Placement::Below`](gpu_vmm_core::Placement::Below), if it has one.
    pub below: Option<Address>,
    /// The mappings, in order of their offsets.
    pub mappings: Vec<MappingRecord>,
}

impl RegionRecord {
    /// Returns the size of all its reservations.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        self.reservations.iter().copied().sum()
    }

    /// Returns a region of one reservation, without mappings, in which every byte is a granule.
    #[cfg(test)]
    pub(crate) fn in_bytes(address: Address, size: Bytes) -> Self {
        Self {
            tag: String::new(),
            address,
            reservations: vec![size],
            granularity: Granularity::BYTE,
            alignment: Granularity::BYTE.into(),
            memory: Properties::on(DeviceId(0)),
            access: AccessMap::NONE,
            extend_by: Bytes::ZERO,
            guard: Bytes::ZERO,
            portable: false,
            below: None,
            mappings: Vec::new(),
        }
    }
}

/// One mapping of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingRecord {
    /// The offset in the region.
    pub offset: Bytes,
    /// The mapped memory, always whole: its index in [`Description::memories`].
    pub memory: usize,
    /// The access of each device.
    pub access: AccessMap,
}

/// A piece of physical memory that the snapshot contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRecord {
    /// The size in bytes.
    pub size: Bytes,
    /// The unit of its size and its addresses.
    pub granularity: Granularity,
    /// The properties that it was created with, as far as the driver granted them.
    pub properties: Properties,
}

impl Description {
    /// Creates a description of a backend, dated now and without regions.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the system provides no random bytes.
    pub fn of<B: Backend>(backend: &B) -> Result<Self> {
        let device = |device: &gpu_vmm_core::Device| DeviceRecord {
            id: device.id,
            name: device.name.clone(),
            uuid: device.uuid,
            granularity: device.granularity,
            total_memory: device.total_memory,
        };
        Ok(Self {
            id: SnapshotId::new()?,
            parent: None,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            library: env!("CARGO_PKG_VERSION").to_owned(),
            vendor: backend.vendor().name().to_owned(),
            driver: backend.driver().version,
            devices: backend.devices().iter().map(device).collect(),
            regions: Vec::new(),
            memories: Vec::new(),
            pool: None,
        })
    }

    /// Returns whether a region has or gets memory of a device, or gives the device access.
    pub(crate) fn uses(&self, device: DeviceId) -> bool {
        let reaches = |access: AccessMap| access.grants().any(|grant| grant.device == device);
        let mut maps = self.regions.iter().flat_map(|region| &region.mappings);
        self.memories.iter().any(|memory| memory.properties.device == device)
            || self.regions.iter().any(|region| region.memory.device == device || reaches(region.access))
            || maps.any(|mapping| reaches(mapping.access))
    }

    /// Returns the size of all memory in the description.
    #[must_use]
    pub fn contents(&self) -> Bytes {
        self.memories.iter().map(|memory| memory.size).sum()
    }
}
