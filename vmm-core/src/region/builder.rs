//! The builder of a region: its size, its place, and the settings for growth.

use super::guard::reserve_guarded;
use super::layout::Layout;
use super::observer::Observers;
use super::placement::{Placement, as_granularity, rounded};
use super::{Region, plain, restorable};
use crate::driver::Backend;
use crate::types::{
    Access, AccessMap, Alignment, Bytes, Detail, DeviceId, Error, ErrorKind, Grant, Granularity, Operation,
    Properties, Result,
};

/// The settings for growth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    /// The properties of the memory that growth creates.
    pub(super) memory: Properties,
    /// The access that the builder set. The owner of the memory has read and write access unless another is set.
    pub(super) access: AccessMap,
    pub(super) extend_by: Bytes,
    /// The unit of reservations.
    pub(super) unit: Granularity,
    /// The placement of reservations for which the caller names no address.
    pub(super) elsewhere: Placement,
    /// True if the units are those of every driver.
    pub(super) portable: bool,
    /// The bytes of addresses that are kept free on either side.
    pub(super) guard: Bytes,
    /// True if the region is mapped in units of the granularity that the driver recommends.
    pub(super) recommended: bool,
    /// True if the region is a plain allocation.
    pub(super) plain: bool,
}

impl Growing {
    /// The same properties for memory of another device.
    pub(super) fn memory_of(&self, device: DeviceId) -> Properties {
        Properties { device, ..self.memory }
    }

    /// The access to memory of a device. The owner has read and write access unless the builder set another.
    pub(super) fn access_to(&self, device: DeviceId) -> AccessMap {
        match self.access.get(device) {
            Access::None => self.access.with(device, Access::ReadWrite),
            _ => self.access,
        }
    }
}

/// Returns true if a driver that has refused a reservation may accept a smaller one.
fn is_too_large(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfAddressSpace | ErrorKind::Driver)
}

/// The settings of a new [`Region`].
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
    recommended: bool,
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
            recommended: false,
            guard: Bytes::ZERO,
            tag: Box::default(),
        }
    }

    /// Sets the device whose memory growth adds. Default: device 0.
    #[must_use]
    pub fn on(mut self, device: DeviceId) -> Self {
        self.memory.device = device;
        self
    }

    /// Sets the properties of the memory that growth adds. Default: memory of device 0 that cannot be exported. A region that
    /// other processes share needs [shareable](Properties::shareable) memory.
    #[must_use]
    pub fn memory(mut self, properties: Properties) -> Self {
        self.memory = properties;
        self
    }

    /// Sets the number of bytes of addresses to reserve, rounded up to the driver's [unit](Backend::reservation_unit) of
    /// reservations.
    ///
    /// Default: the size of the device's memory, or less if the driver refuses that: half, a quarter, and so on. A size that is set is
    /// reserved as it is or not at all. Addresses use no memory: reserve the largest size that the region can ever need.
    #[must_use]
    pub fn reserve(mut self, size: Bytes) -> Self {
        self.size = Some(size);
        self
    }

    /// Sets the place of the region. Default: [`Placement::Anywhere`].
    #[must_use]
    pub fn at(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets the alignment of the first address beyond the granularity: a power of two, at most [`Alignment::MAX`].
    #[must_use]
    pub fn alignment(mut self, alignment: Bytes) -> Self {
        self.alignment = alignment;
        self
    }

    /// Sets the access of `device` to the memory that growth adds.
    ///
    /// Default: the device that owns the memory has read and write access. Each further device costs time at every step of
    /// growth: mapping 1 GiB for the owner and a peer took 3.6 ms on H100s, for the owner alone 0.2 ms. Growth chooses
    /// [handles that suit peers](Region::grow_to), so name all devices here. [`Region::set_access`] for memory that is one large
    /// handle takes 20 ms.
    #[must_use]
    pub fn access(mut self, device: DeviceId, access: Access) -> Self {
        self.access = self.access.with(device, access);
        self
    }

    /// Sets the size of the reservation that growth first tries to add behind a full one.
    ///
    /// If that size is too small or its addresses are taken, growth adds just what it needs.
    /// Default: as much as the region has, so that several steps of growth share one reservation.
    #[must_use]
    pub fn extend_by(mut self, size: Bytes) -> Self {
        self.extend_by = size;
        self
    }

    /// Makes the region portable: it begins, grows and ends in units that every driver supports.
    ///
    /// Memory is mapped in multiples of 2 MiB and addresses are reserved in multiples of 32 MiB, or more if this driver requires
    /// it. [`Region::granularity`] returns the unit.
    ///
    /// The contents of such a region can be restored at the same addresses with another driver, if the addresses are free there.
    /// [`Placement::Restorable`] implies this setting and chooses the addresses; set it alone for addresses that you choose. If
    /// the region has to move, it moves to a restorable place, or to one below the limit of [`Placement::Below`].
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// Makes the region begin, grow and end in units of the granularity that the driver recommends for its memory
    /// ([`Backend::recommended_granularity`]) instead of the minimum. [`Region::granularity`] returns the unit.
    ///
    /// Libraries that use the memory can need it: NCCL registers only ranges that are multiples of it. A snapshot does not keep this
    /// setting.
    #[must_use]
    pub fn recommended_granularity(mut self) -> Self {
        self.recommended = true;
        self
    }

    /// Guards the region with unmapped addresses on both sides, to find out-of-bounds accesses.
    ///
    /// An access beyond the region's ends faults and does not reach other memory. Memory that was in the region is filled with
    /// [`POISON`](crate::POISON) before it is freed.
    ///
    /// Memory that was exported or imported is not poisoned, because another process may still use it. Memory with a clone or
    /// another mapping is poisoned when the last of them is dropped. Poisoning maps the memory once more at an address of its
    /// own. If that fails, the error is in the [drop log](Backend::drop_log), and the memory is freed without the poison. The
    /// same applies to memory that is freed during a [known capture](crate::extend::Deferred).
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, ErrorKind, Region, Result};
    /// # fn example<B: Backend>(backend: &B) -> Result<()> {
    /// let mut region = Region::builder(backend).reserve(Bytes::mib(64)).guarded().build()?;
    /// region.grow_to(region.reserved())?;
    /// // A kernel that writes here ends with an error and overwrites nothing:
    /// let behind = region.range().end();
    /// assert!(!region.range().contains(behind));
    /// // Growth does not reach the guard either.
    /// let error = region.grow_to(region.reserved() + Bytes(1)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AddressTaken);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One [unit](Backend::reservation_unit) of addresses is kept free on either side: 32 MiB on CUDA, 2 MiB on HIP.
    /// [`guard`](RegionBuilder::guard) sets a larger size.
    #[must_use]
    pub fn guarded(self) -> Self {
        self.guard(Bytes(1))
    }

    /// Guards the region as [`guarded`](RegionBuilder::guarded) does, with at least `size` bytes of addresses on either side.
    ///
    /// The size is rounded up to the [unit](Backend::reservation_unit) of reservations and the region's alignment;
    /// [`Region::guard`] returns the result. Zero means no guard.
    ///
    /// The guard is reserved with the region, in one reservation, and does not count as a part of the region. A guarded region
    /// cannot be extended behind its end: reserve the largest size that it can ever need, or let it [move](Region::grow_or_move).
    #[must_use]
    pub fn guard(mut self, size: Bytes) -> Self {
        self.guard = size;
        self
    }

    /// Sets the caller's name for the region: [`Region::tag`].
    #[must_use]
    pub fn tag(mut self, tag: impl Into<Box<str>>) -> Self {
        self.tag = tag.into();
        self
    }

    /// Reserves the addresses and maps nothing. CUDA: `cuMemAddressReserve`; HIP: `hipMemAddressReserve`.
    ///
    /// On a device without virtual memory management, nothing is reserved, and the region is a [plain](Region::is_plain) one.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for settings that a plain region cannot have.
    /// [`Detail::ZeroSize`], [`Detail::BadAlignment`], [`Detail::Overflow`], [`Detail::ExceedsAddressSpace`],
    /// [`Detail::NoSuchDevice`]. [`Detail::Unaligned`] for a hint that is not a multiple of the alignment and the granularity.
    /// [`Detail::AddressTaken`] if [`Placement::Exact`] names addresses that are not free, and [`Detail::NotRestorable`] if
    /// [`Placement::Restorable`] finds no free place, [`Detail::NotBelow`] if [`Placement::Below`] finds none.
    pub fn build(self) -> Result<Region<B>> {
        let operation = Operation::Reserve;
        let backend = self.backend;
        let device = backend.device(operation, self.memory.device)?;
        for grant in self.access.grants() {
            super::map::check_reach(backend, operation, grant.device, &self.memory)?;
        }
        let is_plain = device.no_virtual_memory.is_some();
        let portable = self.portable || self.placement == Placement::Restorable;
        let mut memory = self.memory;
        if is_plain {
            // Compression is a wish in other regions too.
            memory.compressible = false;
            let own = Grant { device: memory.device, access: Access::ReadWrite };
            let others = self.access.grants().any(|grant| grant != own);
            let keeps = portable || !self.guard.is_zero();
            plain::check_settings(operation, &memory, others, self.placement, keeps)?;
        }
        let [least, least_unit] = if portable { restorable::UNITS } else { [Granularity::BYTE; 2] };
        let mut granularity =
            backend.granularity_of(operation, &memory)?.max(backend.granularity()).max(least);
        if self.recommended && !is_plain {
            granularity = granularity.max(backend.recommended_granularity(operation, &memory)?);
        }
        let unit = backend.reservation_unit().max(granularity).max(least_unit);
        let mut size = rounded(operation, self.size.unwrap_or(device.total_memory), unit)?;
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
        let layout = match is_plain {
            true => Layout::plain(backend, granularity, None),
            false => loop {
                let place = self.placement;
                match reserve_guarded(backend, operation, size, alignment, granularity, place, guard) {
                    // Drivers with few addresses: a limit of the process, virtual GPUs, WSL, Windows.
                    Err(error) if self.size.is_none() && size > unit.bytes() && is_too_large(&error) => {
                        size = rounded(operation, Bytes(size.0 / 2), unit)?;
                    }
                    answer => break answer?,
                }
            },
        };
        let elsewhere = match self.placement {
            Placement::Below(limit) => Placement::Below(limit),
            _ if portable => Placement::Restorable,
            _ => Placement::Anywhere,
        };
        layout.record().set_tag(&self.tag);
        Ok(Region {
            backend: backend.clone(),
            granularity,
            alignment,
            growing: Growing {
                memory,
                access: self.access,
                extend_by,
                unit,
                elsewhere,
                portable,
                guard,
                recommended: self.recommended,
                plain: is_plain,
            },
            tag: self.tag,
            suspended: None,
            observers: Observers::NONE,
            layout,
        })
    }
}
