//! Growth: more memory at the same address, without copying a byte.
//!
//! Growth tries three ways in order. **Within** the reservation: only memory is needed. **Extended**: another reservation exactly
//! at the end of the last one, if those addresses are free. **Remapped**: a larger range at another address, into which the same
//! physical memory is mapped, only if the caller allows another address.

use super::layout::Layout;
use super::map::{check_addresses, check_reach};
use super::placement::{Placement, rounded};
use super::reserve::reserve;
use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Region, below, check_aligned};
use crate::driver::{Backend, WaitFor};
use crate::memory::{PhysicalMemory, create_split, rounded_size};
use crate::trace::span;
use crate::types::{
    Address, AddressRange, Bytes, Detail, DeviceId, Error, ErrorKind, OffsetRange, Operation, Properties,
    Result,
};

/// The way in which a region grew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GrowthKind {
    /// Within the reservation. The address is the same.
    Within,
    /// By further reservations exactly at the end of the last one. The address is the same.
    Extended,
    /// At another address, where the same physical memory is mapped now.
    Remapped,
    /// At another address, where the contents were copied to: the region is [plain](Region::is_plain).
    Copied,
}

impl GrowthKind {
    /// Returns `within`, `extended`, `remapped` or `copied`, for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Extended => "extended",
            Self::Remapped => "remapped",
            Self::Copied => "copied",
        }
    }
}

/// The result of a step of growth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The way in which the region grew.
    pub how: GrowthKind,
    /// The first address of the region now.
    pub address: Address,
    /// The end of the region now: the requested size rounded up to the granularity, or the previous end if that is larger.
    pub end: Bytes,
    /// The size of the memory that was added.
    pub added: Bytes,
}

/// The result of shrinking. Handles are removed as wholes: a region of one handle keeps all of it, and `removed` is zero. So the
/// compiler warns if a program does not look at the result.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use gpu_vmm_core::{Backend, Bytes, Region, Result, WaitFor};
/// # fn example<B: Backend>(region: &mut Region<B>) -> Result<()> {
/// region.shrink_to(Bytes::mib(2), WaitFor::all_devices())?;
/// # Ok(())
/// # }
/// ```
///
/// ```
/// #![deny(unused_must_use)]
/// # use gpu_vmm_core::{Backend, Bytes, Region, Result, WaitFor};
/// # fn example<B: Backend>(region: &mut Region<B>) -> Result<()> {
/// let shrunk = region.shrink_to(Bytes::mib(2), WaitFor::all_devices())?;
/// println!("{} removed, {} left", shrunk.removed, shrunk.end);
/// # Ok(())
/// # }
/// ```
#[must_use = "handles are removed whole, so the region can end behind the size that was asked for"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shrunk {
    /// The end of the region now: the requested size or more.
    pub end: Bytes,
    /// The size of the memory that was removed from the region.
    pub removed: Bytes,
}

/// The largest handle that growth creates if a peer of the owner has access to it as well. Access for a peer to one handle of 1 GiB
/// took NVIDIA's driver 20 ms, to four of 256 MiB 3.6 ms, and to more and smaller ones longer again (two H100, driver 580.159.04,
/// 2026-11-26). Owners are not affected, so memory without peers is one handle.
const HANDLE_FOR_PEERS: Bytes = Bytes::mib(256);

impl<B: Backend> Region<B> {
    /// Grows to at least `size` bytes at the same address, with memory of the region's device.
    ///
    /// The new memory lies within the reservation, else in another reservation right behind it. The size is rounded up to the
    /// granularity. The new memory is one handle per reservation that it lies in, or several of at most 256 MiB if a
    /// [peer](super::RegionBuilder::access) has access to it, which takes drivers less time, or smaller ones if the driver refuses a
    /// large handle although enough memory is free; [`Region::mappings`] lists them. A region that is large enough already stays as
    /// it is.
    ///
    /// The contents of the new part are undefined: drivers return zeros, but memory that was mapped before keeps its bytes.
    ///
    /// A [plain](Region::is_plain) region moves to another address: the call waits for the devices and copies the contents.
    ///
    /// # Errors
    ///
    /// [`Detail::OutgrewReservation`] if the region would exceed its reservation and the addresses behind it are taken;
    /// [`Detail::Guarded`] if they are the region's own guard; [`Detail::OutOfMemory`]; [`Detail::ExceedsAddressSpace`]. The
    /// region is as before.
    pub fn grow_to(&mut self, size: Bytes) -> Result<Growth> {
        self.grow_to_on(self.growing.memory.device, size)
    }

    /// Grows as [`Region::grow_to`] does, with memory of another device. One region can hold memory of several devices.
    ///
    /// # Errors
    ///
    /// Those of [`Region::grow_to`], [`Detail::NoSuchDevice`], and [`Detail::PeerUnreachable`] if a device with access to new
    /// memory cannot reach the memory of `device`.
    pub fn grow_to_on(&mut self, device: DeviceId, size: Bytes) -> Result<Growth> {
        let operation = Operation::Grow;
        if self.is_plain() {
            return self.grow_plain(device, size, WaitFor::all_devices());
        }
        let Some(target) = self.target(operation, device, size)? else { return Ok(self.unchanged()) };
        span!(Grow, address = %self.address(), to = target.0);
        let reserved = self.reserved();
        if target <= reserved {
            return self.fill_up_to(target, device, GrowthKind::Within);
        }
        self.extend(operation, target)?;
        self.fill_up_to(target, device, GrowthKind::Extended).inspect_err(|_| self.take_back(reserved))
    }

    /// Grows at the same address with memory of the caller.
    ///
    /// The call maps the pieces one behind the other from the [end](Region::end) on, with the access that new memory of the
    /// region has. The pieces keep their bytes. It reserves further addresses as [`Region::grow_to`] does.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, PhysicalMemory, Region, Result};
    /// # fn example<B: Backend>(sequence: &mut Region<B>, free: &mut Vec<PhysicalMemory<B>>) -> Result<()> {
    /// if let Some(block) = free.pop() {
    ///     sequence.grow_with(&[block])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Region::map`] and [`Region::grow_to`]. [`Detail::CrossesReservation`] if a piece would lie on both sides of the
    /// reservation's end: pieces are mapped as wholes. Nothing is mapped after an error, unless the rollback failed too
    /// ([`Detail::RollbackFailed`]). A piece that [`mappings`](Region::mappings) then returns is still mapped.
    pub fn grow_with(&mut self, memory: &[PhysicalMemory<B>]) -> Result<Growth> {
        let operation = Operation::Grow;
        self.check_active(operation)?;
        self.check_virtual(operation)?;
        let (end, reserved) = (self.end(), self.reserved());
        let mut pieces = Vec::with_capacity(memory.len());
        let mut target = end;
        for piece in memory {
            piece.check_belongs_to(operation, &self.backend)?;
            check_aligned(operation, "size", piece.size().0, self.granularity)?;
            self.check_reached(operation, &piece.properties())?;
            let access = self.growing.access_to(piece.device());
            pieces.push(PlacedMapping { offset: target, mapping: Mapping::new(piece.clone(), access) });
            let overflow =
                || Error::new(operation, Detail::Overflow { base: target.0, length: piece.size().0 });
            target = target.checked_add(piece.size()).ok_or_else(overflow)?;
        }
        check_addresses(operation, self.address(), &pieces)?;
        // The end of the reservation is a border too, even if no reservation lies behind it yet.
        for piece in &pieces {
            self.check_crosses_reservation(operation, piece.offset, piece.mapping.length())?;
        }
        span!(Grow, address = %self.address(), to = target.0);
        let how = if target > reserved {
            self.extend(operation, target)?;
            GrowthKind::Extended
        } else {
            GrowthKind::Within
        };
        self.layout.place(&pieces).inspect_err(|_| self.take_back(reserved))?;
        Ok(Growth { how, address: self.address(), end: target, added: target - end })
    }

    /// Grows to at least `size` bytes, at another address if necessary.
    ///
    /// To move, it reserves a range of at least twice the size, maps the same physical memory there with the same access, waits
    /// as `done` says, and releases the old addresses. Pointers into the old range are then invalid; the result contains the new
    /// address. A guarded region is guarded at the new address as well.
    ///
    /// # Errors
    ///
    /// Those of [`Region::grow_to`] except [`Detail::OutgrewReservation`] and [`Detail::Guarded`]. [`Detail::Unaligned`] if
    /// memory with a larger granularity than the region's is mapped at an offset that is not a multiple of that granularity: then
    /// no aligned address suits it. The region is as before, at its old address.
    pub fn grow_or_move(&mut self, size: Bytes, done: WaitFor<'_>) -> Result<Growth> {
        if self.is_plain() {
            return self.grow_plain(self.growing.memory.device, size, done);
        }
        match self.grow_to(size) {
            Err(error) if error.kind() == ErrorKind::AddressTaken => self.remap(size, done),
            other => other,
        }
    }

    /// Unmaps memory from the end, down to `size` bytes, and releases it.
    ///
    /// Handles are released as wholes: a mapping that contains the offset `size` stays, and the result contains the new end. The
    /// addresses stay reserved. A [plain](Region::is_plain) region is copied into memory of the new size, at another address.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for a size larger than the region's end; the errors of waiting and of the driver. The region is as
    /// before.
    pub fn shrink_to(&mut self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        let operation = Operation::Shrink;
        self.check_active(operation)?;
        let end = self.end();
        if size > end {
            return Err(Error::new(
                operation,
                Detail::OutOfRange { range: OffsetRange { offset: Bytes::ZERO, length: size }, limit: end },
            ));
        }
        span!(Shrink, address = %self.address(), to = size.0);
        if self.is_plain() {
            return self.shrink_plain(size, done);
        }
        let before = self.mapped();
        // Looks at the mappings that go alone, however many stay.
        let touching = self.layout.table.touching(size, end - size);
        let tail: Vec<OffsetRange> = touching
            .map(|(offset, mapping)| OffsetRange { offset, length: mapping.length() })
            .filter(|mapping| mapping.offset >= size)
            .collect();
        for mapping in &tail {
            self.layout.table.check_whole(operation, mapping.offset, mapping.length)?;
        }
        let parts = OffsetRange::joined(tail.into_iter());
        let announced = self.announce(operation, BackingEffect::Removed, || parts.clone())?;
        let waited = match parts.first() {
            Some(first) => self.wait(&self.layout, first.offset, end - first.offset, done),
            None => Ok(()),
        };
        let removed = waited.and_then(|()| self.layout.remove(&parts));
        announced.end(&self.layout, removed)?;
        Ok(Shrunk { end: self.end(), removed: before - self.mapped() })
    }

    /// The end that the region must reach, or `None` if it reaches it already.
    fn target(&self, operation: Operation, device: DeviceId, size: Bytes) -> Result<Option<Bytes>> {
        self.check_active(operation)?;
        let target = rounded(operation, size, self.granularity)?;
        let end = self.end();
        if target <= end {
            return Ok(None);
        }
        let memory = self.growing.memory_of(device);
        let (_, granularity) = rounded_size(&self.backend, operation, target - end, &memory)?;
        // Memory of another device can have a larger granularity than the region.
        check_aligned(operation, "granularity", self.granularity.bytes().0, granularity)?;
        self.check_reached(operation, &memory)?;
        Ok(Some(target))
    }

    /// Refuses memory that a device with access to new memory cannot reach.
    fn check_reached(&self, operation: Operation, memory: &Properties) -> Result<()> {
        let mut grants = self.growing.access.grants();
        grants.try_for_each(|grant| check_reach(&self.backend, operation, grant.device, memory))
    }

    fn unchanged(&self) -> Growth {
        Growth { how: GrowthKind::Within, address: self.address(), end: self.end(), added: Bytes::ZERO }
    }

    /// Adds a reservation at exactly the end of the last one, so that the region reaches `target`.
    fn extend(&mut self, operation: Operation, target: Bytes) -> Result<()> {
        let reserved = self.reserved();
        let needed = self.addresses(operation, target - reserved)?;
        let generous = match self.growing.extend_by {
            Bytes::ZERO => reserved,
            some => some,
        };
        if needed < generous && self.extend_by(operation, generous).is_ok() {
            return Ok(());
        }
        self.extend_by(operation, needed).map_err(|error| match *error.detail() {
            Detail::AddressTaken { wanted, offered } => Error::new(
                operation,
                Detail::OutgrewReservation { requested: target, reserved, wanted, offered },
            ),
            _ => error,
        })
    }

    /// Rounds a number of addresses up to the driver's unit of reservations.
    pub(super) fn addresses(&self, operation: Operation, size: Bytes) -> Result<Bytes> {
        rounded(operation, size, self.growing.unit)
    }

    /// Adds a reservation of `size` [addresses](Self::addresses) exactly at the end of the last one.
    pub(super) fn extend_by(&mut self, operation: Operation, size: Bytes) -> Result<()> {
        let wanted = self.address() + self.reserved();
        let guard = self.guard();
        if !guard.is_zero() {
            return Err(Error::new(operation, Detail::Guarded { end: wanted, guard }));
        }
        if let Placement::Below(limit) = self.growing.elsewhere {
            below::check(operation, AddressRange { base: wanted, size }, limit)?;
        }
        let place = Placement::Exact(wanted);
        let alignment = self.granularity.into();
        let reservation = reserve(&self.backend, operation, size, alignment, self.granularity, place)?;
        self.layout.extend(reservation);
        Ok(())
    }

    /// Releases the reservation that growth added behind `reserved` addresses, if any. It stays if a failed rollback has left a
    /// mapping in it.
    pub(super) fn take_back(&mut self, reserved: Bytes) {
        if self.reserved() > reserved && self.layout.table.end() <= reserved {
            self.layout.spans.pop();
        }
    }

    /// Maps new memory from the end up to `target`, which is reserved: one handle for each reservation, or several smaller ones, as
    /// [`Region::grow_to`] says.
    fn fill_up_to(&mut self, target: Bytes, device: DeviceId, how: GrowthKind) -> Result<Growth> {
        let end = self.end();
        let pieces = self.new_pieces(&self.layout, end, target, device)?;
        self.layout.place(&pieces)?;
        Ok(Growth { how, address: self.address(), end: target, added: target - end })
    }

    /// Creates memory for a part of a layout, cut at the borders of its reservations, and into handles that suit peers if there are
    /// any.
    fn new_pieces(
        &self,
        layout: &Layout<B>,
        from: Bytes,
        to: Bytes,
        device: DeviceId,
    ) -> Result<Vec<PlacedMapping<B>>> {
        let access = self.growing.access_to(device);
        let is_for_peers =
            access.grants().any(|grant| grant.device != device && grant.device != DeviceId::HOST);
        let unit = self.granularity().bytes().0;
        let most = if is_for_peers { Bytes((HANDLE_FOR_PEERS.0 / unit).max(1) * unit) } else { to - from };
        let mut pieces = Vec::new();
        for cut in layout.spans.cut(from, to - from) {
            let mut offset = cut.range.offset;
            while offset < cut.range.end() {
                let length = most.min(cut.range.end() - offset);
                let properties = self.growing.memory_of(device);
                for memory in create_split(&self.backend, length, properties, self.granularity())? {
                    let size = memory.size();
                    pieces.push(PlacedMapping { offset, mapping: Mapping::new(memory, access) });
                    offset += size;
                }
            }
        }
        Ok(pieces)
    }

    /// Moves to a larger range. The new range is complete before the old one is changed.
    fn remap(&mut self, size: Bytes, done: WaitFor<'_>) -> Result<Growth> {
        let (operation, device) = (Operation::Grow, self.growing.memory.device);
        let Some(target) = self.target(operation, device, size)? else { return Ok(self.unchanged()) };
        span!(Grow, address = %self.address(), to = target.0);
        let end = self.end();
        let mut moved = self.pieces_for_move(operation)?;
        let layout = self.reserve_for_move(operation, target, &moved)?;
        moved.extend(self.new_pieces(&layout, end, target, device)?);
        self.move_to(operation, layout, &moved, done)?;
        Ok(Growth { how: GrowthKind::Remapped, address: self.address(), end: target, added: target - end })
    }

    /// Maps pieces in an empty layout, which then replaces the old one.
    pub(super) fn move_to(
        &mut self,
        operation: Operation,
        layout: Layout<B>,
        moved: &[PlacedMapping<B>],
        done: WaitFor<'_>,
    ) -> Result<()> {
        let effect = BackingEffect::Moved { to: layout.spans.base() };
        let announced = self.announce(operation, effect, || self.layout.parts())?;
        let replaced = self.replace_by(layout, moved, done);
        announced.end(&self.layout, replaced)
    }

    fn replace_by(
        &mut self,
        mut layout: Layout<B>,
        moved: &[PlacedMapping<B>],
        done: WaitFor<'_>,
    ) -> Result<()> {
        layout.place(moved)?;
        let emptied = self
            .wait(&self.layout, Bytes::ZERO, self.reserved(), done)
            .and_then(|()| self.layout.remove(&self.layout.parts()));
        if let Err(error) = emptied {
            // No device knows the new addresses, so there is nothing to wait for.
            return Err(match layout.clear() {
                Ok(()) => error,
                Err(undo) => error.rollback_failed(undo),
            });
        }
        layout.record().continue_from(self.layout.record());
        self.layout = layout;
        Ok(())
    }

    /// All mappings, if none of them is poisoned.
    fn pieces_for_move(&self, operation: Operation) -> Result<Vec<PlacedMapping<B>>> {
        self.check_usable(operation)?;
        Ok(self.layout.pieces(OffsetRange { offset: Bytes::ZERO, length: self.reserved() }))
    }

    /// Reserves twice the addresses for pieces that move, or only the needed size if that fails.
    pub(super) fn reserve_for_move(
        &self,
        operation: Operation,
        target: Bytes,
        pieces: &[PlacedMapping<B>],
    ) -> Result<Layout<B>> {
        let attempt = |size| self.reserve_elsewhere(operation, size, self.growing.elsewhere, pieces);
        attempt(target + target).or_else(|_| attempt(target))
    }
}
