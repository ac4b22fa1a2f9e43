//! The options of an import: access, address and reservation.

use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{
    Access, AccessMap, Address, Backend, Bytes, DeviceId, Grant, Operation, PhysicalMemory, Placement,
    Region, Result, WaitFor,
};

/// Options for importing another process's region.
///
/// By default, the device that owns a piece of memory reads and writes it, the driver chooses the address, and no more
/// addresses are reserved than the region needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    access: AccessMap,
    read_only: bool,
    place: ImportAddress,
    reserve: Bytes,
}

/// The address of an imported region.
#[derive(Clone, Copy, Debug)]
enum ImportAddress {
    Chosen(Placement),
    AsExported,
}

impl Default for ImportAddress {
    fn default() -> Self {
        Self::Chosen(Placement::Anywhere)
    }
}

impl ImportOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `device` access to all of the memory, besides the devices that own it. [`DeviceId::HOST`] stands for the CPU.
    #[must_use]
    pub fn access(mut self, device: DeviceId, access: Access) -> Self {
        self.access = self.access.with(device, access);
        self
    }

    /// Prevents writes: the owners and the devices that [`access`](Self::access) names may only read.
    ///
    /// This prevents mistakes, not malice: a process that has the memory can map it to write.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Chooses the address of the region.
    #[must_use]
    pub fn at(mut self, placement: Placement) -> Self {
        self.place = ImportAddress::Chosen(placement);
        self
    }

    /// Maps the region at exactly the exporter's address, so that pointers into it are valid in both processes. If these
    /// addresses are not free, importing fails. If the exporter's region moves, `ImportedRegion::apply_or_move` moves this one
    /// too.
    #[must_use]
    pub fn same_address(mut self) -> Self {
        self.place = ImportAddress::AsExported;
        self
    }

    /// Reserves at least `size` bytes of addresses, so that the region can grow with the exporter's.
    #[must_use]
    pub fn reserve(mut self, size: Bytes) -> Self {
        self.reserve = size;
        self
    }

    /// Returns true if the region must be at the exporter's address.
    #[cfg(target_os = "linux")]
    pub(crate) const fn is_as_exported(&self) -> bool {
        matches!(self.place, ImportAddress::AsExported)
    }

    /// Returns a mapping with the access of these options.
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

    /// Creates a region of these mappings, which the exporter has at `base`.
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
            ImportAddress::Chosen(placement) => placement,
            ImportAddress::AsExported => Placement::Exact(base),
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
