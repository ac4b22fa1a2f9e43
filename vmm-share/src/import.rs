//! What an importer wants: who may use the memory, where it is to be, how much is to be reserved.

use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{
    Access, AccessMap, Address, Backend, Bytes, DeviceId, Grant, Operation, PhysicalMemory, Placement,
    Region, Result, WaitFor,
};

/// How another process's region is to be taken in.
///
/// If nothing is said, the device that owns a piece may read and write it, the region is wherever the driver likes, and
/// just the addresses are reserved that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    access: AccessMap,
    read_only: bool,
    place: Place,
    reserve: Bytes,
}

/// Where a region is to be.
#[derive(Clone, Copy, Debug)]
enum Place {
    Chosen(Placement),
    AsExported,
}

impl Default for Place {
    fn default() -> Self {
        Self::Chosen(Placement::Anywhere)
    }
}

impl ImportOptions {
    /// What is described above.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What `device` may do with the memory, beside the devices that own it.
    #[must_use]
    pub fn access(mut self, device: DeviceId, access: Access) -> Self {
        self.access = self.access.with(device, access);
        self
    }

    /// No device may write: the owners may read, and so may those that are named.
    ///
    /// This keeps mistakes away, and not a process that wants to: with the memory it has the right to write it.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Where the region is to be.
    #[must_use]
    pub fn at(mut self, placement: Placement) -> Self {
        self.place = Place::Chosen(placement);
        self
    }

    /// The region is to be exactly where the exporter has it, so that pointers into it are good in both processes; where
    /// these addresses are not free, it is an error. Where the exporter's region moves, this one goes after it.
    #[must_use]
    pub fn same_address(mut self) -> Self {
        self.place = Place::AsExported;
        self
    }

    /// How many bytes of addresses to reserve at least, so that there is room for the exporter's region to grow; just what
    /// is needed if nothing is said.
    #[must_use]
    pub fn reserve(mut self, size: Bytes) -> Self {
        self.reserve = size;
        self
    }

    /// True where the region is to be where the exporter has it.
    #[cfg(target_os = "linux")]
    pub(crate) const fn is_as_exported(&self) -> bool {
        matches!(self.place, Place::AsExported)
    }

    /// A mapping with the access that is wanted.
    pub(crate) fn wanted<B: Backend>(&self, offset: Bytes, memory: PhysicalMemory<B>) -> MappedMemory<B> {
        let owner = memory.device();
        let mut access = self.access;
        if access.get(owner) == Access::None {
            access = access.with(owner, Access::ReadWrite);
        }
        if self.read_only {
            access = access.grants().map(|grant| Grant { access: Access::Read, ..grant }).collect();
        }
        MappedMemory { offset, memory, access }
    }

    /// A region of these mappings, which the exporter has at `base`.
    pub(crate) fn region<B: Backend>(
        &self,
        operation: Operation,
        backend: &B,
        base: Address,
        wanted: &[MappedMemory<B>],
    ) -> Result<Region<B>> {
        let end = wanted.last().map_or(Bytes::ZERO, |one| one.offset + one.memory.size());
        let unit = wanted.iter().map(|one| one.memory.granularity()).max();
        let placement = match self.place {
            Place::Chosen(placement) => placement,
            Place::AsExported => Placement::Exact(base),
        };
        let mut builder = Region::builder(backend).at(placement).reserve(self.reserve.max(end).max(Bytes(1)));
        if let Some(unit) = unit {
            builder = builder.alignment(unit.bytes());
        }
        if let Some(first) = wanted.first() {
            builder = builder.memory(first.memory.properties());
        }
        for grant in self.access.grants() {
            builder = builder.access(grant.device, grant.access);
        }
        let mut region = builder.build()?;
        region.apply_layout(operation, wanted, WaitFor::all_devices())?;
        Ok(region)
    }
}
