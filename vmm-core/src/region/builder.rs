//! How a region comes to be: how many addresses, where, and what growth will do.

use super::guard::reserve_guarded;
use super::placement::{Placement, as_granularity, rounded};
use super::{Region, restorable};
use crate::driver::Backend;
use crate::types::{
    Access, AccessMap, Alignment, Bytes, Detail, DeviceId, Error, Granularity, Operation, Properties, Result,
};

/// What a region needs to know in order to grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    /// What memory growth brings.
    pub(super) memory: Properties,
    /// Beside the device's own read and write access.
    pub(super) access: AccessMap,
    pub(super) extend_by: Bytes,
    /// What a reservation takes a multiple of.
    pub(super) unit: Granularity,
    /// Where a range is reserved that may be anywhere.
    pub(super) elsewhere: Placement,
    /// How many addresses are kept free on either side.
    pub(super) guard: Bytes,
}

impl Growing {
    /// The same memory of a device.
    pub(super) fn memory_of(&self, device: DeviceId) -> Properties {
        Properties { device, ..self.memory }
    }

    /// The access to memory of a device: its own to read and write, if nothing else was said.
    pub(super) fn access_to(&self, device: DeviceId) -> AccessMap {
        match self.access.get(device) {
            Access::None => self.access.with(device, Access::ReadWrite),
            _ => self.access,
        }
    }
}

/// Makes a [`Region`].
#[derive(Debug, Clone)]
pub struct RegionBuilder<'a, B: Backend> {
    backend: &'a B,
    memory: Properties,
    access: AccessMap,
    size: Option<Bytes>,
    placement: Placement,
    alignment: Bytes,
    extend_by: Bytes,
    portable: bool,
    guard: Bytes,
    tag: Box<str>,
}

impl<'a, B: Backend> RegionBuilder<'a, B> {
    pub(super) fn new(backend: &'a B) -> Self {
        Self {
            backend,
            memory: Properties::on(DeviceId(0)),
            access: AccessMap::NONE,
            size: None,
            placement: Placement::Anywhere,
            alignment: Bytes(1),
            extend_by: Bytes::ZERO,
            portable: false,
            guard: Bytes::ZERO,
            tag: Box::default(),
        }
    }

    /// Whose memory the region grows with; device 0 if nothing is said.
    #[must_use]
    pub fn on(mut self, device: DeviceId) -> Self {
        self.memory.device = device;
        self
    }

    /// What the memory is to be that the region grows with; memory of device 0 that stays in this process if nothing
    /// is said. A region that is to be shared with other processes needs [shareable](Properties::shareable) memory.
    #[must_use]
    pub fn memory(mut self, properties: Properties) -> Self {
        self.memory = properties;
        self
    }

    /// How many bytes of addresses to reserve, rounded up to the [unit](Backend::reservation_unit) in which the
    /// driver hands them out; as much as the device has memory if
    /// nothing is said. Addresses cost nothing: reserve what the region could ever need.
    #[must_use]
    pub fn reserve(mut self, size: Bytes) -> Self {
        self.size = Some(size);
        self
    }

    /// Where the region is to be.
    #[must_use]
    pub fn at(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// What the first address is to be a multiple of, beyond the granularity: a power of two, at most
    /// [`Alignment::MAX`].
    #[must_use]
    pub fn alignment(mut self, alignment: Bytes) -> Self {
        self.alignment = alignment;
        self
    }

    /// What `device` may do with the memory that growth brings; the device that owns it may read and write if
    /// nothing else is said. Each peer that is named costs time at every step: granting 1 GiB to a peer took 17 ms
    /// on an H200, to the owner 0.05 ms.
    #[must_use]
    pub fn access(mut self, device: DeviceId, access: Access) -> Self {
        self.access = self.access.with(device, access);
        self
    }

    /// The least size of a reservation that is added behind a full one. If nothing is said, as much as the region
    /// already has is tried first, so that steps of growth share a reservation.
    #[must_use]
    pub fn extend_by(mut self, size: Bytes) -> Self {
        self.extend_by = size;
        self
    }

    /// Lets the region begin, grow and end in units that every driver has, whatever this one's are: memory in multiples
    /// of 2 MiB and addresses in multiples of 32 MiB, or more where this driver needs it. [`Region::granularity`] says
    /// so. What is in such a region can be had at the same addresses with another driver, if they are free there:
    /// [`Placement::Restorable`], which implies this, chooses them so, and this is for addresses that are given. Where the
    /// region has to move, it goes to a restorable place.
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// For finding stray accesses: keeps addresses before and behind the region in which nothing is ever mapped, so that
    /// whoever goes beyond its ends faults and reaches nobody else's memory; and lets memory that is freed after it was
    /// in the region be filled with [`POISON`](crate::POISON) before.
    ///
    /// Memory that is exported, or imported, is not poisoned: another process may go on with it. Memory of which there is
    /// a clone, or another mapping, is poisoned when the last of them is gone. It is mapped once more for that, at a
    /// place of its own; what fails there is in the [drop log](Backend::drop_log), and the memory is freed as it is. So is
    /// memory that is freed while a [known capture](crate::extend::Deferred) lasts.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, ErrorKind, Region, Result};
    /// # fn example<B: Backend>(backend: &B) -> Result<()> {
    /// let mut region = Region::builder(backend).reserve(Bytes::mib(64)).guarded().build()?;
    /// region.grow_to(region.reserved())?;
    /// // A kernel that writes here ends with an error, and overwrites nothing:
    /// let stray = region.range().end();
    /// assert!(!region.range().contains(stray));
    /// // No growth gets there either.
    /// let error = region.grow_to(region.reserved() + Bytes(1)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AddressTaken);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One [unit](Backend::reservation_unit) of addresses is kept free on either side, 32 MiB on CUDA and 2 MiB on HIP;
    /// [`guard`](RegionBuilder::guard) keeps more.
    #[must_use]
    pub fn guarded(self) -> Self {
        self.guard(Bytes(1))
    }

    /// The same with at least so many addresses on either side, for accesses that go astray further; rounded up to the
    /// [unit](Backend::reservation_unit) of addresses and the region's alignment. [`Region::guard`] tells. Zero is no
    /// guard.
    ///
    /// The guard is reserved with the region, in one piece, and does not count as the region's. A guarded region cannot
    /// be extended behind its end: reserve what it could ever need, or let it [move](Region::grow_or_move).
    #[must_use]
    pub fn guard(mut self, size: Bytes) -> Self {
        self.guard = size;
        self
    }

    /// What the region belongs to: [`Region::tag`].
    #[must_use]
    pub fn tag(mut self, tag: impl Into<Box<str>>) -> Self {
        self.tag = tag.into();
        self
    }

    /// Reserves the addresses; nothing is mapped yet. CUDA: `cuMemAddressReserve`, HIP: `hipMemAddressReserve`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::BadAlignment`], [`Detail::Unaligned`] for a hint that is no multiple of the
    /// alignment and the granularity, [`Detail::Overflow`], [`Detail::AddressSpaceExhausted`], [`Detail::NoSuchDevice`],
    /// [`Detail::AddressTaken`] where [`Placement::Exact`] could not be had, and [`Detail::NotRestorable`] where
    /// [`Placement::Restorable`] could not.
    pub fn build(self) -> Result<Region<B>> {
        let operation = Operation::Reserve;
        let backend = self.backend;
        let device = backend.device(operation, self.memory.device)?;
        for grant in self.access.grants() {
            super::map::check_reach(backend, operation, grant.device, &self.memory)?;
        }
        let portable = self.portable || self.placement == Placement::Restorable;
        let [least, least_unit] = if portable { restorable::UNITS } else { [Granularity::BYTE; 2] };
        let granularity =
            backend.granularity_of(operation, &self.memory)?.max(backend.granularity()).max(least);
        let unit = backend.reservation_unit().max(granularity).max(least_unit);
        let size = rounded(operation, self.size.unwrap_or(device.total_memory), unit)?;
        let extend_by = match self.extend_by {
            Bytes::ZERO => Bytes::ZERO,
            some => rounded(operation, some, unit)?,
        };
        let bad = || Error::new(operation, Detail::BadAlignment { alignment: self.alignment });
        let alignment = Alignment::new(self.alignment).ok_or_else(bad)?.max(granularity.into());
        let guard = match self.guard {
            Bytes::ZERO => Bytes::ZERO,
            some => rounded(operation, some, unit.max(as_granularity(alignment)))?,
        };
        let elsewhere = if portable { Placement::Restorable } else { Placement::Anywhere };
        Ok(Region {
            backend: backend.clone(),
            granularity,
            alignment,
            growing: Growing { memory: self.memory, access: self.access, extend_by, unit, elsewhere, guard },
            tag: self.tag,
            suspended: None,
            layout: reserve_guarded(backend, operation, size, alignment, granularity, self.placement, guard)?,
        })
    }
}
