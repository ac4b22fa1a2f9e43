//! Blocks at addresses that the caller chooses.
//!
//! Such a block lies in addresses of its tag. If the tag has none there, the pool reserves them, as a space of its own: no request
//! without an address takes a part of it.

use crate::Pool;
use crate::core::{Core, Request, Shortage};
use crate::error::Occupant;
use crate::mapping::Mapping;
use crate::obstacle::Obstacle;
use crate::pool::{AllocRequest, OPERATION};
use crate::space::{Group, RangeInfo, Space, Spot, UNIT};
use crate::stats::DriverCalls;
use crate::{Block, BlockInfo};
use gpu_vmm_core::extend::PORTABLE_UNIT;
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, Detail, Error, Granularity, OffsetRange, Placement, Region,
    Result, Stream,
};
use gpu_vmm_premap::sync::thread_number;

impl<B: Backend> Pool<B> {
    /// Allocates a block at an address.
    #[track_caller]
    pub(crate) fn alloc_at(
        &self,
        (address, size): (Address, Bytes),
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> Result<Block<B>> {
        self.check(size, alignment)?;
        let unit = Granularity::new(alignment.max(Bytes(UNIT))).unwrap_or(Granularity::BYTE);
        if !address.is_aligned_to(unit.bytes()) {
            let value = address.0;
            return Err(Error::new(
                OPERATION,
                Detail::Unaligned { what: "address", value, granularity: unit },
            ));
        }
        if address.0.checked_add(size.0).and_then(|end| end.checked_next_multiple_of(UNIT)).is_none() {
            return Err(Error::new(OPERATION, Detail::Overflow { base: address.0, length: size.0 }));
        }
        self.owner.inner.core(OPERATION)?.check_virtual(OPERATION)?;
        let wanted = AllocRequest {
            thread_cache: self.owner.thread_cache(thread_number()),
            size,
            alignment,
            stream,
            class: None,
            captures: !stream.is_default() && self.captures(stream),
            tentative: false,
            at: Some(address.0),
        };
        Ok(self.block(self.take(&wanted)?))
    }
}

impl<B: Backend> Core<B> {
    /// Finds the place at an address, if it is free for a request and its memory can be mapped now.
    pub(crate) fn find_at(&mut self, request: Request, address: u64) -> Option<(usize, Spot)> {
        let index = self.tags.spaces(request.tag).find(|space| {
            let space = &self.spaces[*space];
            space.has(address, request.size)
        })?;
        let Self { spaces, frames, streams, .. } = self;
        let space = &mut spaces[index];
        space.settle(frames, streams);
        let spot = space.spot_at_offset(frames, address - space.base, request.wanted())?;
        Some((index, spot))
    }

    /// Returns why there is no place for a request: no addresses are reserved for it, or those that it names are in use.
    pub(crate) fn no_place(&self, request: Request) -> Shortage {
        let Some(address) = request.at else { return Shortage::Space(request) };
        let range = AddressRange { base: Address(address), size: Bytes(request.size) };
        let Some(space) = self.space_in(range) else { return Shortage::Space(request) };
        if space.tag != request.tag || !space.has(address, request.size) {
            return self.reserved_for_another(range, space);
        }
        let offset = address - space.base;
        let freed = |range, tag| (Occupant::Freed { range, tag }, true);
        let tag = self.tags.get(space.tag).name.clone();
        let (occupant, may_end) = match space.first_in_the_way(offset, request.wanted()) {
            Some(seen) if seen.taken => match self.block_in(space, seen, range) {
                Some(block) => (
                    Occupant::Block {
                        range: AddressRange { base: block.base, size: block.capacity },
                        tag: block.tag,
                    },
                    false,
                ),
                None => freed(range_of(space, seen), tag),
            },
            Some(seen) => freed(range_of(space, seen), tag),
            // Work uses the rest of a page that must be unmapped first, or another thread overwrites it.
            None if !space.is_lost(offset, request.size) => freed(range, tag),
            None => {
                let cause = "the memory there is gone".to_owned();
                let range = OffsetRange { offset: Bytes(offset), length: range.size };
                return Shortage::Other(Error::new(OPERATION, Detail::Poisoned { range, cause }));
            }
        };
        Shortage::Taken(Box::new(Obstacle { range, occupant, may_end }))
    }

    /// Returns the lowest live block in a taken range and in requested addresses; of a slab, any of its blocks if none is there.
    fn block_in(&self, space: &Space<B>, seen: RangeInfo, requested: AddressRange) -> Option<BlockInfo> {
        let AddressRange { base, size } = range_of(space, seen);
        let Some(slab) = self.slabs.in_range(space.index, seen.range) else { return self.find_block(base) };
        let slots = (0..size.0 / slab.slot_size()).map(|slot| base + Bytes(slot * slab.slot_size()));
        let mut blocks = slots.filter_map(|address| self.find_block(address)).peekable();
        let first = blocks.peek().cloned();
        blocks
            .find(|block| block.base < requested.end() && block.base + block.capacity > requested.base)
            .or(first)
    }

    fn reserved_for_another(&self, range: AddressRange, space: &Space<B>) -> Shortage {
        let (reserved, tag) = (space.range(), self.tags.get(space.tag).name.clone());
        let occupant = Occupant::Reservation { range: reserved, tag };
        Shortage::Taken(Box::new(Obstacle { range, occupant, may_end: false }))
    }

    /// Returns a space with some of these addresses, unless it is empty and can be released.
    fn space_in(&self, range: AddressRange) -> Option<&Space<B>> {
        let mut spaces = (0..self.spaces.len()).filter(|space| !self.can_go(*space));
        spaces.find_map(|space| Some(&self.spaces[space]).filter(|space| space.overlaps(range)))
    }

    /// Returns the addresses to reserve around those that a request names.
    fn around(&self, address: u64, size: u64) -> Option<AddressRange> {
        let portable = if self.settings.restorable { PORTABLE_UNIT.bytes().0 } else { 0 };
        let unit = self.page.max(self.backend.reservation_unit().bytes().0).max(portable);
        let base = address / unit * unit;
        let size = (address + size).checked_next_multiple_of(unit)? - base;
        Some(AddressRange { base: Address(base), size: Bytes(size) })
    }
}

impl<B: Backend> Mapping<'_, B> {
    /// Reserves a space at the address that a request names.
    pub(crate) fn add_space_at(&self, request: Request, address: u64) -> Result<(), Shortage> {
        let core = self.core()?;
        let overflow = || Error::new(OPERATION, Detail::Overflow { base: address, length: request.size });
        let range = core.around(address, request.size).ok_or_else(overflow)?;
        // Empty spaces of earlier requests go: otherwise a program that names ever new addresses would keep all of them.
        let is_over = |space: &Space<B>| space.is_of_chosen(request.tag) || space.overlaps(range);
        let (core, _) = self.release_spaces(core, is_over)?;
        if let Some(space) = core.space_in(range) {
            let requested = AddressRange { base: Address(address), size: Bytes(request.size) };
            return Err(core.reserved_for_another(requested, space));
        }
        if range.size.0 > core.settings.addresses.0.saturating_sub(core.reserved()) {
            return Err(core.shortage_of_addresses(request));
        }
        core.space_index(core.vacant_space())?;
        let (backend, page, memory) = (core.backend.clone(), core.page, core.settings.memory);
        let (name, restorable) = (core.tags.get(request.tag).name.clone(), core.settings.restorable);
        drop(core);
        let builder = Region::builder(&backend).memory(memory).tag(&*name).alignment(Bytes(page));
        let builder = if restorable { builder.portable() } else { builder };
        let region = builder.reserve(range.size).at(Placement::Exact(range.base)).build();
        let mut core = self.core()?;
        core.calls.add(DriverCalls { other: 1, ..DriverCalls::default() });
        let region = region.map_err(|error| match error.detail() {
            Detail::AddressTaken { .. } => {
                let range = AddressRange { base: Address(address), size: Bytes(request.size) };
                let occupant = Occupant::OutsidePool(error);
                // Memory that a destructor had to keep may be there.
                Shortage::Taken(Box::new(Obstacle { range, occupant, may_end: true }))
            }
            _ => Shortage::Other(error),
        })?;
        self.inner.add_space(&mut core, region, request.tag, Group::CHOSEN)?;
        Ok(())
    }
}

fn range_of<B: Backend>(space: &Space<B>, seen: RangeInfo) -> AddressRange {
    AddressRange { base: Address(space.base + seen.offset), size: Bytes(seen.size) }
}
