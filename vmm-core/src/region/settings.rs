//! The settings of a region, and a new region with the same settings at the same addresses.

use super::{MappedMemory, Placement, Region, RegionBuilder, below};
use crate::driver::Backend;
use crate::types::{
    AccessMap, Address, AddressRange, Bytes, DeviceId, OffsetRange, Operation, Properties, Result,
};

/// The settings that a [`RegionBuilder`] was given: everything except the addresses and the mappings.
#[derive(Clone, Debug)]
pub struct RegionSettings {
    /// As in [`RegionBuilder::tag`].
    pub tag: Box<str>,
    /// The alignment of the region's address beyond the granularity.
    pub alignment: Bytes,
    /// The properties of the memory that growth adds.
    pub memory: Properties,
    /// The access that the builder set. The owner of the memory has read and write access unless another is set.
    pub access: AccessMap,
    /// The size of the reservation that growth first tries to add; zero for as much as the region has.
    pub extend_by: Bytes,
    /// The bytes of addresses that are kept free on either side.
    pub guard: Bytes,
    /// As in [`RegionBuilder::portable`].
    pub portable: bool,
    /// As in [`RegionBuilder::recommended_granularity`].
    pub recommended: bool,
    /// The limit of [`Placement::Below`]: the region grows and moves below it.
    pub below: Option<Address>,
}

impl<B: Backend> Region<B> {
    /// Returns the settings that the region was built with.
    #[must_use]
    pub fn settings(&self) -> RegionSettings {
        RegionSettings {
            tag: self.tag.clone(),
            alignment: self.alignment.bytes(),
            memory: self.growing.memory,
            access: self.growing.access,
            extend_by: self.growing.extend_by,
            guard: self.guard(),
            portable: self.is_portable(),
            recommended: self.growing.recommended,
            below: match self.growing.elsewhere {
                Placement::Below(limit) => Some(limit),
                _ => None,
            },
        }
    }

    /// Returns the mappings in order of their offsets, each with its memory and access, as [`apply_layout`](Self::apply_layout)
    /// expects them. A suspended region has none.
    pub fn layout(&self) -> impl Iterator<Item = MappedMemory<B>> {
        self.layout.table.iter().map(|(offset, mapping)| MappedMemory {
            offset,
            memory: mapping.memory.clone(),
            access: mapping.access,
        })
    }

    /// Reserves a region without mappings. Its reservations have the given sizes, each a multiple of the [reservation
    /// unit](Backend::reservation_unit), and follow each other from the placement on. If the settings have a limit, a placement without an
    /// address is one below it.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`]. [`Detail::NotBelow`](crate::Detail::NotBelow) for a placement with an address that is not below
    /// the limit of the settings.
    pub fn with_settings(
        operation: Operation,
        backend: &B,
        traits: &RegionSettings,
        placement: Placement,
        reservations: &[Bytes],
    ) -> Result<Self> {
        let placement = match (placement, traits.below) {
            (Placement::Anywhere | Placement::Restorable, Some(limit)) => Placement::Below(limit),
            _ => placement,
        };
        let (first, others) = reservations.split_first().unwrap_or((&Bytes::ZERO, &[]));
        let mut builder: RegionBuilder<'_, B> = Self::builder(backend)
            .at(placement)
            .reserve(*first)
            .alignment(traits.alignment)
            .memory(traits.memory)
            .extend_by(traits.extend_by)
            .guard(traits.guard)
            .tag(traits.tag.clone());
        if traits.portable {
            builder = builder.portable();
        }
        if traits.recommended {
            builder = builder.recommended_granularity();
        }
        for grant in traits.access.grants() {
            builder = builder.access(grant.device, grant.access);
        }
        let mut region = builder.build()?;
        if let Some(limit) = traits.below {
            let size = region.reserved() + region.guard();
            below::check(operation, AddressRange { base: region.address(), size }, limit)?;
            region.growing.elsewhere = Placement::Below(limit);
        }
        for size in others {
            // A border must not lie inside a granule, whatever sizes a snapshot contains.
            let size = region.addresses(operation, *size)?;
            region.extend_by(operation, size)?;
        }
        Ok(region)
    }

    /// Sets the access of every device to whole mappings that follow each other, without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`Region::set_access`].
    ///
    /// # Safety
    ///
    /// No work uses the part.
    #[allow(unsafe_code)]
    pub unsafe fn set_access_at_once(
        &mut self,
        offset: Bytes,
        length: Bytes,
        access: AccessMap,
    ) -> Result<()> {
        let operation = Operation::SetAccess;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        for (_, mapping) in self.layout.table.touching(offset, length) {
            self.check_ways(operation, std::iter::once((access, mapping.memory.properties())))?;
        }
        let part = OffsetRange { offset, length };
        let now = self.layout.table.at(offset).map_or(AccessMap::NONE, |(_, mapping)| mapping.access);
        let changes: Vec<(DeviceId, _)> =
            now.changes(access).map(|grant| (grant.device, grant.access)).collect();
        changes.into_iter().try_for_each(|(device, access)| self.layout.set_access(part, device, access))
    }

    /// Unmaps everything and releases the addresses, without waiting. What cannot be released stays until the process ends.
    ///
    /// # Errors
    ///
    /// The first error of the driver; everything else is still released.
    ///
    /// # Safety
    ///
    /// No work uses the region.
    #[allow(unsafe_code)]
    pub unsafe fn discard(mut self) -> Result<()> {
        // The destructor would wait, and could not return the error.
        self.announce_end();
        let mut layout = self.layout.take();
        let released = layout.give_up();
        self.observers.ended(&layout);
        released
    }
}
