//! Replacing all mappings of a region at once, so that it becomes what another process has.
//!
//! Mappings that stay are not touched, and no device loses access to them for a moment. The rest is one transaction.

use super::map::{check_addresses, check_reach};
use super::placement::{ADDRESS_SPACE, Placement};
use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Region, check_aligned};
use crate::driver::{Backend, WaitFor};
use crate::memory::PhysicalMemory;
use crate::types::{AccessMap, Bytes, Detail, Error, OffsetRange, Operation, Properties, Result};

/// Physical memory at an offset of a region: a mapping to create.
#[derive(Debug)]
pub struct MappedMemory<B: Backend> {
    /// The offset at which the memory begins in the region.
    pub offset: Bytes,
    /// The memory, all of which is mapped.
    pub memory: PhysicalMemory<B>,
    /// The access of the devices. A mapping that exists already keeps its access.
    pub access: AccessMap,
}

impl<B: Backend> MappedMemory<B> {
    fn piece(&self) -> PlacedMapping<B> {
        PlacedMapping { offset: self.offset, mapping: Mapping::new(self.memory.clone(), self.access) }
    }
}

impl<B: Backend> Region<B> {
    /// Checks that the region's mappings can change: it is not suspended, no part of it is poisoned, and it is not
    /// [plain](Region::is_plain).
    ///
    /// # Errors
    ///
    /// [`Detail::Suspended`], [`Detail::Poisoned`], [`Detail::Unsupported`].
    pub fn check_usable(&self, operation: Operation) -> Result<()> {
        self.check_active(operation)?;
        self.check_virtual(operation)?;
        self.layout.check_in_use(operation)
    }

    /// Replaces the mappings of the region by `wanted`, in order of their offsets, at the address of the region.
    ///
    /// Mappings that exist already are not touched. If `wanted` goes beyond the reservation, the call reserves the addresses
    /// behind it. It waits as `done` says before it unmaps anything.
    ///
    /// # Errors
    ///
    /// [`Detail::AlreadyMapped`] for mappings that overlap or are out of order, [`Detail::ExceedsAddressSpace`],
    /// [`Detail::Unaligned`], [`Detail::ForeignHandle`], [`Detail::PeerUnreachable`], [`Detail::CrossesReservation`],
    /// [`Detail::Suspended`], [`Detail::AddressTaken`] if the addresses behind the reservation are not free, or the driver's
    /// error. The region is then as before.
    pub fn apply_layout(
        &mut self,
        operation: Operation,
        wanted: &[MappedMemory<B>],
        done: WaitFor<'_>,
    ) -> Result<()> {
        self.arrange(operation, wanted, false, done)
    }

    /// Does the same. With `restores`, the observers are also called if all of the memory comes where none is mapped.
    pub(super) fn arrange(
        &mut self,
        operation: Operation,
        wanted: &[MappedMemory<B>],
        restores: bool,
        done: WaitFor<'_>,
    ) -> Result<()> {
        self.check_active(operation)?;
        self.check_virtual(operation)?;
        check_order(operation, wanted)?;
        let gone = self.unwanted(wanted);
        for part in &gone {
            self.layout.table.check_whole(operation, part.offset, part.length)?;
        }
        let new: Vec<PlacedMapping<B>> =
            wanted.iter().filter(|one| self.kept(one).is_none()).map(MappedMemory::piece).collect();
        self.check_pieces(operation, &new)?;
        check_addresses(operation, self.address(), &new)?;
        let effect = match (gone.is_empty(), new.is_empty()) {
            (true, _) => BackingEffect::Restored,
            (false, true) => BackingEffect::Removed,
            (false, false) => BackingEffect::Replaced,
        };
        let parts = || match gone.is_empty() && !restores {
            true => Vec::new(),
            false => changed(&gone, &new),
        };
        let announced = self.announce(operation, effect, parts)?;
        let exchanged = self.extend_and_exchange(operation, end_of(wanted), &gone, &new, done);
        announced.end(&self.layout, exchanged)
    }

    fn extend_and_exchange(
        &mut self,
        operation: Operation,
        end: Bytes,
        gone: &[OffsetRange],
        new: &[PlacedMapping<B>],
        done: WaitFor<'_>,
    ) -> Result<()> {
        let reserved = self.reserved();
        if end > reserved {
            self.extend_by(operation, self.addresses(operation, end - reserved)?)?;
        }
        self.exchange(operation, gone, new, done).inspect_err(|_| self.take_back(reserved))
    }

    /// Does the same as [`apply_layout`](Self::apply_layout) at another address: in a range of at least twice the size with
    /// [`Placement::Anywhere`], or of the needed size at the place that `placement` names.
    ///
    /// It waits as `done` says for all devices that have access.
    ///
    /// # Errors
    ///
    /// Those of [`apply_layout`](Self::apply_layout), and [`Detail::Poisoned`].
    pub fn apply_layout_elsewhere(
        &mut self,
        operation: Operation,
        wanted: &[MappedMemory<B>],
        placement: Placement,
        done: WaitFor<'_>,
    ) -> Result<()> {
        self.check_usable(operation)?;
        check_order(operation, wanted)?;
        let pieces: Vec<PlacedMapping<B>> =
            wanted.iter().map(|one| self.kept(one).unwrap_or_else(|| one.piece())).collect();
        self.check_pieces(operation, &pieces)?;
        let target = end_of(wanted).max(Bytes(1));
        let layout = match placement {
            Placement::Anywhere => self.reserve_for_move(operation, target, &pieces)?,
            _ => self.reserve_elsewhere(operation, target, placement, &pieces)?,
        };
        self.move_to(operation, layout, &pieces, done)
    }

    /// Refuses mappings that [`apply_layout`](Self::apply_layout) would refuse, without changing anything.
    pub(crate) fn check_wanted(&self, operation: Operation, wanted: &[MappedMemory<B>]) -> Result<()> {
        let pieces: Vec<PlacedMapping<B>> = wanted.iter().map(MappedMemory::piece).collect();
        self.check_pieces(operation, &pieces)?;
        check_addresses(operation, self.address(), &pieces)
    }

    /// The existing mapping of the same memory at the same offset.
    fn kept(&self, wanted: &MappedMemory<B>) -> Option<PlacedMapping<B>> {
        let (offset, mapping) = self.layout.table.at(wanted.offset)?;
        let is_it = offset == wanted.offset && mapping.memory.is_same_as(&wanted.memory);
        is_it.then(|| PlacedMapping { offset, mapping: mapping.clone() })
    }

    /// The mapped ranges that are not in `wanted`, joined into runs without a hole.
    fn unwanted(&self, wanted: &[MappedMemory<B>]) -> Vec<OffsetRange> {
        let gone = self.layout.table.iter().filter(|(offset, mapping)| {
            let place = wanted.binary_search_by_key(offset, |one| one.offset);
            !place.is_ok_and(|place| wanted[place].memory.is_same_as(&mapping.memory))
        });
        OffsetRange::joined(gone.map(|(offset, mapping)| OffsetRange { offset, length: mapping.length() }))
    }

    /// Refuses memory of another backend, unaligned offsets, and access for devices that cannot reach the memory.
    fn check_pieces(&self, operation: Operation, pieces: &[PlacedMapping<B>]) -> Result<()> {
        for PlacedMapping { offset, mapping } in pieces {
            let memory = &mapping.memory;
            memory.check_belongs_to(operation, &self.backend)?;
            check_aligned(operation, "offset", offset.0, self.granularity)?;
            check_aligned(operation, "length", memory.size().0, self.granularity)?;
        }
        let ways =
            pieces.iter().map(|PlacedMapping { mapping, .. }| (mapping.access, mapping.memory.properties()));
        self.check_ways(operation, ways)
    }

    /// Refuses access for devices that cannot reach the memory.
    pub(super) fn check_ways(
        &self,
        operation: Operation,
        ways: impl Iterator<Item = (AccessMap, Properties)>,
    ) -> Result<()> {
        let mut reached = None;
        for way in ways {
            if reached.replace(way) != Some(way) {
                for grant in way.0.grants() {
                    check_reach(&self.backend, operation, grant.device, &way.1)?;
                }
            }
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        operation: Operation,
        gone: &[OffsetRange],
        new: &[PlacedMapping<B>],
        done: WaitFor<'_>,
    ) -> Result<()> {
        for piece in new {
            self.check_crosses_reservation(operation, piece.offset, piece.mapping.length())?;
        }
        if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
            self.wait(&self.layout, first.offset, last.end() - first.offset, done)?;
        }
        self.layout.exchange(gone, new)
    }
}

/// Refuses mappings that overlap, are out of order, or end beyond the address space of a process.
fn check_order<B: Backend>(operation: Operation, wanted: &[MappedMemory<B>]) -> Result<()> {
    let mut before: Option<(Bytes, Bytes)> = None;
    for MappedMemory { offset, memory, .. } in wanted {
        let (offset, length) = (*offset, memory.size());
        let end = Bytes(offset.0.saturating_add(length.0));
        if end > ADDRESS_SPACE {
            return Err(Error::new(
                operation,
                Detail::ExceedsAddressSpace { size: end, limit: ADDRESS_SPACE },
            ));
        }
        if let Some((mapped_offset, mapped_length)) =
            before.filter(|(begin, length)| *begin + *length > offset)
        {
            return Err(Error::new(
                operation,
                Detail::AlreadyMapped {
                    range: OffsetRange { offset, length },
                    mapping: OffsetRange { offset: mapped_offset, length: mapped_length },
                },
            ));
        }
        before = Some((offset, length));
    }
    Ok(())
}

/// The ranges that are mapped before or after an exchange and change, without overlaps.
fn changed<B: Backend>(gone: &[OffsetRange], new: &[PlacedMapping<B>]) -> Vec<OffsetRange> {
    let mut all: Vec<OffsetRange> = gone.iter().copied().chain(new.iter().map(PlacedMapping::part)).collect();
    all.sort_unstable_by_key(|part| part.offset);
    let mut changed: Vec<OffsetRange> = Vec::new();
    for part in all {
        match changed.last_mut() {
            Some(last) if part.offset <= last.end() => {
                last.length = last.end().max(part.end()) - last.offset;
            }
            _ => changed.push(part),
        }
    }
    changed
}

/// The offset at which the last mapping ends.
fn end_of<B: Backend>(wanted: &[MappedMemory<B>]) -> Bytes {
    wanted.last().map_or(Bytes::ZERO, |one| one.offset + one.memory.size())
}
