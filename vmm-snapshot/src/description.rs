//! What a snapshot says of the regions in it: all but the contents.

use gpu_vmm_core::{
    AccessMap, Address, Alignment, Backend, Bytes, Detail, DeviceId, DeviceUuid, Error, Granularity,
    Operation, Properties, Result,
};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// By what a snapshot is known, whatever its file is called: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub [u8; 16]);

impl SnapshotId {
    /// Another one than all before.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the system gives no random bytes.
    pub fn new() -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| {
            Error::new(
                Operation::TakeSnapshot,
                Detail::Unsupported { reason: format!("the system gives no random bytes: {error}") },
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

/// Another snapshot, in a file of the same folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Earlier {
    /// Which one it is.
    pub id: SnapshotId,
    /// The name of its file, without a folder.
    pub file: String,
}

/// What is in a snapshot, without the contents of the memory. The numbers are those of the process that wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// By what it is known.
    pub id: SnapshotId,
    /// Since which snapshot it was written; its own file is enough where this is none.
    /// [`SnapshotWriter::create`](super::SnapshotWriter::create) sets it.
    pub parent: Option<Earlier>,
    /// When it was begun, in seconds since the beginning of 1970 (UTC).
    pub created: u64,
    /// The version of gpu-vmm that wrote it.
    pub library: String,
    /// [`Vendor::name`](gpu_vmm_core::Vendor::name).
    pub vendor: String,
    /// The driver's version.
    pub driver: String,
    /// The devices that there were.
    pub devices: Vec<DeviceRecord>,
    /// The regions.
    pub regions: Vec<RegionRecord>,
    /// The memory that is mapped in them. What is mapped several times is here once.
    pub memories: Vec<MemoryRecord>,
}

/// A device as it was when the snapshot was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceRecord {
    /// Its ordinal there.
    pub id: DeviceId,
    /// The name that the driver gives it.
    pub name: String,
    /// By what another process knows it again.
    pub uuid: Option<DeviceUuid>,
    /// The unit in which its memory is created and mapped.
    pub granularity: Granularity,
    /// All of its memory.
    pub total_memory: Bytes,
}

/// A region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionRecord {
    /// [`Region::tag`](gpu_vmm_core::Region::tag).
    pub tag: String,
    /// Where it begins.
    pub address: Address,
    /// The size of each of its reservations, in order.
    pub reservations: Vec<Bytes>,
    /// What its offsets are a multiple of.
    pub granularity: Granularity,
    /// What its address is a multiple of.
    pub alignment: Alignment,
    /// What memory growth brings.
    pub memory: Properties,
    /// What is granted on it, beside the device's own read and write access.
    pub access: AccessMap,
    /// The least size of a reservation that growth adds; zero where nothing was said.
    pub extend_by: Bytes,
    /// How many addresses are kept free before and behind it; zero without a guard.
    pub guard: Bytes,
    /// Whether it grows and moves so that every driver could have it: [`Region::is_portable`](gpu_vmm_core::Region::is_portable).
    pub portable: bool,
    /// What is mapped, in order of the offsets.
    pub mappings: Vec<MappingRecord>,
}

impl RegionRecord {
    /// How many addresses it has.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        self.reservations.iter().copied().sum()
    }
}

/// One mapping of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingRecord {
    /// Where in the region it begins.
    pub offset: Bytes,
    /// What is mapped, whole: its place in [`Description::memories`].
    pub memory: usize,
    /// What each device may do with it.
    pub access: AccessMap,
}

/// A piece of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRecord {
    /// How many bytes.
    pub size: Bytes,
    /// What its size and its addresses are a multiple of.
    pub granularity: Granularity,
    /// What it was made as, or what came of that.
    pub properties: Properties,
}

impl Description {
    /// A snapshot of a backend that begins now, with no region in it yet.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the system gives no random bytes.
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
        })
    }

    /// The bytes of all memory that is described.
    #[must_use]
    pub fn contents(&self) -> Bytes {
        self.memories.iter().map(|memory| memory.size).sum()
    }
}
