//! The move of a region's contents to another device's memory, at the same addresses.
//!
//! The new memory is complete before the old memory is touched. For the copy, both are mapped at further addresses that only this
//! call knows, with access only for the devices that copy. So no device gains or loses access at the region's own addresses. Then
//! the new memory replaces the old in a single transaction.
#![allow(unsafe_code)]

use super::layout::Layout;
use super::map::check_reach;
use super::reserve::reserve;
use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Region};
use super::{Placement, check_aligned};
use crate::driver::{Backend, WaitFor, check_same};
use crate::memory::{MemoryId, PhysicalMemory, Segment, StagingRing};
use crate::trace::span;
use crate::types::{
    Access, AccessMap, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Properties, Result,
};
use std::collections::HashMap;

/// The path of a copy from one device to another.
#[derive(Debug)]
pub enum MovePath<'a, B: Backend> {
    /// The fastest path: the new device reads the old device's memory if it can reach it. All other memory is copied through host
    /// memory, by this ring or by one that the call creates, which takes 10 ms and more.
    Fastest(Option<&'a StagingRing<B>>),
    /// Always through this ring, even if the devices can reach each other.
    Ring(&'a StagingRing<B>),
}

impl<B: Backend> Clone for MovePath<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for MovePath<'_, B> {}

/// The result of a move to another device: the number of bytes on each path. Memory that is mapped several times counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The bytes that the new device has copied directly from other devices' memory.
    pub by_peer: Bytes,
    /// The bytes that were copied through host memory.
    pub through_host: Bytes,
}

/// A piece of memory and its replacement.
#[derive(Debug)]
struct Pair<B: Backend> {
    old: PhysicalMemory<B>,
    new: PhysicalMemory<B>,
}

/// The changes of a move, after all checks.
#[derive(Debug)]
struct Plan<B: Backend> {
    /// Each piece of memory once.
    pairs: Vec<Pair<B>>,
    /// The new mappings.
    pieces: Vec<PlacedMapping<B>>,
}

impl<B: Backend> Region<B> {
    /// Moves the contents of the region to memory of `device`, at the same addresses.
    ///
    /// The call creates new memory on the device, copies the bytes, and maps the new memory in place of the old, which returns to
    /// its device. Memory of `device` stays as it is. From then on the region grows with memory of `device`. CUDA: `cuMemCreate`,
    /// `cuMemcpyDtoD`, `cuMemUnmap` and `cuMemMap`; HIP: `hipMemCreate`, `hipMemcpyDtoD`, `hipMemUnmap` and `hipMemMap`.
    ///
    /// The new owner receives the access of the old owner, and keeps its own access if that is higher. The old owner loses its
    /// access; [`Region::set_access`] sets its access as a peer. All other devices keep theirs. The access of memory that growth
    /// adds changes in the same way. Memory that is mapped several times is copied once and stays one piece. The new memory has
    /// the properties of the old one except for the device. Host memory is moved too, since the device in its properties makes
    /// the copies to and from it.
    ///
    /// Waits as `done` says before the copy begins. Until the copy ends, both devices hold the memory. On HIP 7.1 and 7.2 the old
    /// memory returns to its device only when the region's addresses are released.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`]; [`Detail::ForeignHandle`] for a ring of another backend; [`Detail::StillReferenced`] for memory
    /// that was exported or imported, or that a clone or another region holds, since the other holder would keep the old memory;
    /// [`Detail::PeerUnreachable`] if a device that has access, or that has access to memory that growth adds, cannot reach the
    /// new memory, and [`Detail::Unsupported`] if the host is that device; [`Detail::ExceedsDevice`] and [`Detail::OutOfMemory`];
    /// or the driver's error. The region is as before.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, DeviceId, WaitFor, Region, Result, MovePath};
    /// # fn example<B: Backend>(region: &mut Region<B>) -> Result<()> {
    /// let address = region.address();
    /// region.move_to_device(DeviceId(1), MovePath::Fastest(None), WaitFor::all_devices())?;
    /// assert_eq!(region.address(), address);
    /// # Ok(())
    /// # }
    /// ```
    pub fn move_to_device(
        &mut self,
        device: DeviceId,
        via: MovePath<'_, B>,
        done: WaitFor<'_>,
    ) -> Result<Moved> {
        let operation = Operation::MoveToDevice;
        self.backend.device(operation, device)?;
        if let MovePath::Fastest(Some(ring)) | MovePath::Ring(ring) = via {
            check_same(operation, ring.backend(), &self.backend)?;
        }
        self.check_usable(operation)?;
        let mut growing = self.growing;
        if growing.memory.device != device {
            let old = growing.memory.device;
            // Without a setting for either device the default stays: the owner has read and write access.
            let said = match growing.access.get(device) {
                Access::None => growing.access,
                _ => growing.access_to(old),
            };
            growing.access = handed_over(said, old, device);
            growing.memory.device = device;
            self.check_ways(operation, std::iter::once((growing.access, growing.memory)))?;
        }
        self.layout.table.check_not_held(operation, |mapping| mapping.memory.device() != device)?;
        self.check_place(operation, device)?;
        span!(MoveToDevice, address = %self.address(), bytes = self.mapped().0, device = device.0);
        let plan = self.plan(device)?;
        let mut moved = Moved::default();
        if !plan.pairs.is_empty() {
            let parts = OffsetRange::joined(plan.pieces.iter().map(PlacedMapping::part));
            let announced = self.announce(operation, BackingEffect::Replaced, || parts.clone())?;
            let waited = self.wait(&self.layout, Bytes::ZERO, self.reserved(), done);
            let exchanged = waited
                .and_then(|()| self.copy_over(operation, &plan.pairs, device, via))
                .and_then(|moved| self.layout.exchange(&parts, &plan.pieces).map(|()| moved));
            moved = announced.end(&self.layout, exchanged)?;
        }
        self.growing = growing;
        Ok(moved)
    }

    /// The mappings of memory that `device` does not own.
    fn elsewhere(&self, device: DeviceId) -> impl Iterator<Item = (Bytes, &Mapping<B>)> {
        self.layout.table.iter().filter(move |(_, mapping)| mapping.memory.device() != device)
    }

    /// Refuses a move if the new memory could not be mapped in the place of the old, or if a device with access could not reach
    /// it.
    fn check_place(&self, operation: Operation, device: DeviceId) -> Result<()> {
        for (offset, Mapping { memory, .. }) in self.elsewhere(device) {
            let granularity = self.backend.granularity_of(operation, &there(memory, device))?;
            check_aligned(operation, "address", (self.address() + offset).0, granularity)?;
            check_aligned(operation, "length", memory.size().0, granularity)?;
        }
        let ways = self.elsewhere(device).map(|(_, Mapping { memory, access, .. })| {
            (handed_over(*access, memory.device(), device), there(memory, device))
        });
        self.check_ways(operation, ways)
    }

    /// Creates the new memory, one piece for each piece of the old.
    fn plan(&self, device: DeviceId) -> Result<Plan<B>> {
        let mut plan = Plan { pairs: Vec::new(), pieces: Vec::new() };
        let mut places: HashMap<MemoryId, usize> = HashMap::new();
        for (offset, Mapping { memory: old, access, .. }) in self.elsewhere(device) {
            let place = match places.get(&old.id()) {
                Some(place) => *place,
                None => {
                    let new = PhysicalMemory::create(&self.backend, old.size(), there(old, device))?;
                    places.insert(old.id(), plan.pairs.len());
                    plan.pairs.push(Pair { old: old.clone(), new });
                    plan.pairs.len() - 1
                }
            };
            let new = plan.pairs[place].new.clone();
            let access = handed_over(*access, old.device(), device);
            plan.pieces.push(PlacedMapping { offset, mapping: Mapping::new(new, access) });
        }
        Ok(plan)
    }

    /// Copies all old memory to the new memory.
    fn copy_over(
        &self,
        operation: Operation,
        pairs: &[Pair<B>],
        device: DeviceId,
        via: MovePath<'_, B>,
    ) -> Result<Moved> {
        let reading = |pair: &Pair<B>| {
            let own = AccessMap::NONE.with(pair.old.device(), Access::Read);
            let reach = match via {
                MovePath::Ring(_) => Access::None,
                MovePath::Fastest(_) => {
                    match check_reach(&self.backend, operation, device, &pair.old.properties()) {
                        Ok(()) => Access::Read,
                        Err(error) if matches!(error.detail(), Detail::PeerUnreachable { .. }) => {
                            Access::None
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            Ok((pair.old.clone(), own.with(device, reach)))
        };
        let writing = |pair: &Pair<B>| (pair.new.clone(), AccessMap::NONE.with(device, Access::ReadWrite));
        let mut from = self.beside(operation, pairs.iter().map(reading).collect::<Result<_>>()?)?;
        let mut to = match self.beside(operation, pairs.iter().map(writing).collect()) {
            Ok(to) => to,
            Err(error) => return cleared(&mut [&mut from], Err(error)),
        };
        let copied = self.copy_all(&from, &to, device, via);
        cleared(&mut [&mut from, &mut to], copied)
    }

    /// Maps memory at further addresses, one piece behind the other.
    fn beside(
        &self,
        operation: Operation,
        memories: Vec<(PhysicalMemory<B>, AccessMap)>,
    ) -> Result<Layout<B>> {
        let mut pieces = Vec::new();
        let (mut end, mut unit) = (Bytes::ZERO, self.granularity);
        for (memory, access) in memories {
            let granularity = memory.granularity().max(self.granularity);
            let overflow =
                || Error::new(operation, Detail::Overflow { base: end.0, length: memory.size().0 });
            let offset = granularity.round_up(end).ok_or_else(overflow)?;
            end = offset.checked_add(memory.size()).ok_or_else(overflow)?;
            unit = unit.max(granularity);
            pieces.push(PlacedMapping { offset, mapping: Mapping::new(memory, access) });
        }
        let size = self.addresses(operation, end)?;
        let reservation =
            reserve(&self.backend, operation, size, unit.into(), self.granularity, Placement::Anywhere)?;
        let mut layout = Layout::new(&self.backend, reservation, self.granularity, Bytes::ZERO);
        layout.place(&pieces)?;
        Ok(layout)
    }

    fn copy_all(
        &self,
        from: &Layout<B>,
        to: &Layout<B>,
        device: DeviceId,
        via: MovePath<'_, B>,
    ) -> Result<Moved> {
        let mut moved = Moved::default();
        let (mut fetched, mut sent) = (Vec::new(), Vec::new());
        for ((source, old), (target, new)) in from.table.iter().zip(to.table.iter()) {
            let length = old.length();
            let (source, target) = (from.spans.base() + source, to.spans.base() + target);
            if old.access.get(device) == Access::None {
                fetched.push(Segment { address: source, length, device: old.memory.device() });
                sent.push(Segment { address: target, length, device });
                moved.through_host += length;
            } else {
                // SAFETY: both sides are mapped, each in one reservation; the device owns the destination, may write it, and may
                // read the source. No address is in both.
                unsafe { self.backend.copy(device, target, source, new.length()) }?;
                moved.by_peer += length;
            }
        }
        match via {
            _ if fetched.is_empty() => {}
            MovePath::Fastest(Some(ring)) | MovePath::Ring(ring) => ring.pass(&fetched, &sent)?,
            MovePath::Fastest(None) => {
                let chunk = StagingRing::<B>::CHUNK.min(moved.through_host);
                StagingRing::new(&self.backend, 2, chunk)?.pass(&fetched, &sent)?;
            }
        }
        Ok(moved)
    }
}

/// The properties of the replacement for some memory.
fn there<B: Backend>(memory: &PhysicalMemory<B>, device: DeviceId) -> Properties {
    Properties { device, ..memory.properties() }
}

/// The access after a move: the new owner has the higher of the old owner's access and its own.
fn handed_over(access: AccessMap, from: DeviceId, to: DeviceId) -> AccessMap {
    access.with(from, Access::None).with(to, access.get(from).max(access.get(to)))
}

/// Removes the mappings that were made for the copy, whose addresses no other code knows. A mapping that cannot be removed is
/// tried a second time.
fn cleared<B: Backend>(layouts: &mut [&mut Layout<B>], result: Result<Moved>) -> Result<Moved> {
    let mut clear = || layouts.iter_mut().map(|layout| layout.clear()).fold(Ok(()), Result::and);
    let error = match (clear(), result) {
        (Ok(()), result) => return result,
        (Err(undo), Ok(_)) => undo,
        (Err(_), Err(error)) => error,
    };
    match clear() {
        Ok(()) => Err(error),
        Err(undo) => Err(error.rollback_failed(undo)),
    }
}
