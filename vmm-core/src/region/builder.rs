//! How a region comes to be: how many addresses, where, and what growth will do.
#![allow(unsafe_code)]

use super::layout::Layout;
use super::{Region, check_aligned};
use crate::{
    Access, AccessMap, Address, Alignment, Backend, Bytes, DeviceId, Error, Granularity, Properties,
    Reservation, Result,
};

/// The most addresses that a process can have on any platform that GPUs run on: 47 bits.
pub(crate) const ADDRESS_SPACE: Bytes = Bytes(1 << 47);

/// Where a region is to be. A hint is a wish to a driver: it may answer success with another address, so the answer
/// is always compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Wherever the driver likes.
    #[default]
    Anywhere,
    /// Here if it is free, else wherever the driver likes; [`Region::address`] tells.
    Prefer(Address),
    /// Here or nowhere.
    Exact(Address),
}

/// What a region needs to know in order to grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    /// What memory growth brings.
    pub(super) memory: Properties,
    /// Beside the device's own read and write access.
    pub(super) access: AccessMap,
    pub(super) extend_by: Bytes,
}

impl Growing {
    /// The same memory of a device.
    pub(super) fn memory_of(&self, device: DeviceId) -> Properties {
        Properties { device, ..self.memory }
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
    /// [`Error::ZeroSize`], [`Error::BadAlignment`], [`Error::Unaligned`] for a hint that is no multiple of the
    /// alignment and the granularity, [`Error::Overflow`], [`Error::TooManyAddresses`], [`Error::NoSuchDevice`], and
    /// [`Error::AddressTaken`] where [`Placement::Exact`] could not be had.
    pub fn build(self) -> Result<Region<B>> {
        let operation = "reserve";
        let backend = self.backend;
        let device = backend.device(operation, self.memory.device)?;
        for grant in self.access.grants() {
            super::map::check_reach(backend, operation, grant.device, &self.memory)?;
        }
        let granularity = backend.granularity().max(backend.granularity_of(operation, &self.memory)?);
        let unit = backend.reservation_unit().max(granularity);
        let size = rounded(operation, self.size.unwrap_or(device.total_memory), unit)?;
        let extend_by = match self.extend_by {
            Bytes::ZERO => Bytes::ZERO,
            some => rounded(operation, some, unit)?,
        };
        let alignment = Alignment::new(self.alignment)?.max(granularity.into());
        let reservation = reserve(backend, operation, size, alignment, granularity, self.placement)?;
        Ok(Region {
            backend: backend.clone(),
            granularity,
            alignment,
            growing: Growing { memory: self.memory, access: self.access, extend_by },
            tag: self.tag,
            layout: Layout::new(backend, reservation),
        })
    }
}

/// A number of addresses, rounded up, if a process can have that many.
pub(crate) fn rounded(operation: &'static str, size: Bytes, granularity: Granularity) -> Result<Bytes> {
    if size.is_zero() {
        return Err(Error::ZeroSize { operation });
    }
    match granularity.round_up(size) {
        Some(rounded) if rounded <= ADDRESS_SPACE => Ok(rounded),
        _ => Err(Error::TooManyAddresses { operation, size, limit: ADDRESS_SPACE }),
    }
}

/// Reserves addresses and holds the driver's answer against what was asked. What does not fit is given back.
pub(crate) fn reserve<B: Backend>(
    backend: &B,
    operation: &'static str,
    size: Bytes,
    alignment: Alignment,
    granularity: Granularity,
    placement: Placement,
) -> Result<B::Reservation> {
    let hint = match placement {
        Placement::Anywhere => None,
        Placement::Prefer(address) | Placement::Exact(address) => {
            let unit = Granularity::new(alignment.bytes()).unwrap_or(granularity);
            check_aligned(operation, "address", address.0, unit)?;
            if address.checked_add(size).is_none() {
                return Err(Error::Overflow { operation, base: address.0, length: size.0 });
            }
            Some(address)
        }
    };
    // SAFETY: the size is a multiple of the reservation unit and not zero, the hint one of the granularity.
    let reservation = unsafe { backend.reserve(size, alignment, hint) }?;
    let range = reservation.range();
    if let Placement::Exact(wanted) = placement
        && range.base != wanted
    {
        return Err(Error::AddressTaken { operation, wanted, offered: range.base });
    }
    if range.size != size || !range.base.is_aligned_to(alignment.bytes()) {
        let what =
            format!("{size} with an alignment of {} were asked for, and {range} came", alignment.bytes());
        return Err(Error::DriverBroke { operation, what });
    }
    Ok(reservation)
}
