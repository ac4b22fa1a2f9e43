//! Another device's memory behind the same addresses, with the same bytes in it.
//!
//! The new memory is complete before the old one is touched: both are mapped for the copy at addresses that nobody else
//! knows, where just the devices that copy have access, so that nobody gains or loses any at the region's own. Then the
//! one takes the other's place in a single transaction.
#![allow(unsafe_code)]

use super::Region;
use super::layout::Layout;
use super::map::check_reach;
use super::reserve::reserve;
use super::table::{Mapping, Piece};
use super::{Placement, check_aligned};
use crate::driver::{Backend, WaitFor, check_same};
use crate::memory::{MemoryId, PhysicalMemory, Segment, StagingRing};
use crate::types::{
    Access, AccessMap, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Properties, Result,
};
use std::collections::HashMap;

/// Which way contents go from one device to another.
#[derive(Debug)]
pub enum MovePath<'a, B: Backend> {
    /// The fastest: the new device copies out of the old one's memory where it can reach it. What it cannot reach goes
    /// through the host's memory: through this ring, or one that is made for the call, which takes 10 ms and more.
    Fastest(Option<&'a StagingRing<B>>),
    /// Through this ring, whether the devices can reach each other or not.
    Ring(&'a StagingRing<B>),
}

impl<B: Backend> Clone for MovePath<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for MovePath<'_, B> {}

/// What a move to another device did: how many bytes went which way. Memory that is mapped several times counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// What the new device has copied out of the other devices' memory.
    pub by_peer: Bytes,
    /// What went through the host's memory.
    pub through_host: Bytes,
}

/// A piece of memory with what is to take its place.
#[derive(Debug)]
struct Pair<B: Backend> {
    old: PhysicalMemory<B>,
    new: PhysicalMemory<B>,
}

/// What is to happen, when all has been checked.
#[derive(Debug)]
struct Plan<B: Backend> {
    /// Each piece of memory once.
    pairs: Vec<Pair<B>>,
    /// What is to be mapped.
    pieces: Vec<Piece<B>>,
}

impl<B: Backend> Region<B> {
    /// Moves what is in the region to a device's memory, at the same addresses: creates new memory there, copies the
    /// bytes, and maps it in the place of the old memory, which goes back to its device. What is the device's already
    /// stays. From then on the region grows with this device's memory. CUDA: `cuMemCreate`, `cuMemcpyDtoD`, `cuMemUnmap`
    /// and `cuMemMap`; HIP: `hipMemCreate`, `hipMemcpyDtoD`, `hipMemUnmap` and `hipMemMap`.
    ///
    /// The new owner takes over the access that the old owner had, who keeps none: what access it is to have as a peer,
    /// [`Region::set_access`] says. All others keep theirs, and the new owner what it had already, if that is more. Growth
    /// gives access in the same way. Memory that is mapped several times is copied once and stays one piece. The new
    /// memory is as the old one is in everything but the device; memory of the host is moved too, since copies to and
    /// from it are its device's work.
    ///
    /// Waits as `done` says before the copy begins. Until it is over, both devices have the memory. On HIP 7.1 and 7.2 the
    /// old memory does not return before the region's addresses do.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`]; [`Detail::ForeignHandle`] for a ring of another backend; [`Detail::StillReferenced`] for memory that
    /// has been exported or imported, or is held or mapped outside of this region, since it would be another one there
    /// than here; [`Detail::PeerUnreachable`] where a device that has access, or is to have it to what growth brings,
    /// cannot reach the new memory, and [`Detail::Unsupported`] where that is the host; [`Detail::ExceedsDevice`] and
    /// [`Detail::OutOfMemory`]; or what the driver answers. The region is as before.
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
            // Where nothing was said of either, nothing is: the owner may read and write.
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
        let plan = self.plan(device)?;
        let mut moved = Moved::default();
        if !plan.pairs.is_empty() {
            self.wait(&self.layout, Bytes::ZERO, self.reserved(), done)?;
            moved = self.copy_over(operation, &plan.pairs, device, via)?;
            self.layout.exchange(&OffsetRange::joined(plan.pieces.iter().map(Piece::part)), &plan.pieces)?;
        }
        self.growing = growing;
        Ok(moved)
    }

    /// The mappings of memory that is not the device's.
    fn elsewhere(&self, device: DeviceId) -> impl Iterator<Item = (Bytes, &Mapping<B>)> {
        self.layout.table.iter().filter(move |(_, mapping)| mapping.memory.device() != device)
    }

    /// Refuses what could not lie where the old memory does, or not be reached by who has access.
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

    /// Creates the new memory, one piece for each of the old.
    fn plan(&self, device: DeviceId) -> Result<Plan<B>> {
        let mut plan = Plan { pairs: Vec::new(), pieces: Vec::new() };
        let mut places: HashMap<MemoryId<B>, usize> = HashMap::new();
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
            plan.pieces.push(Piece { offset, mapping: Mapping::new(new, access) });
        }
        Ok(plan)
    }

    /// Copies all that is old into what is new.
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

    /// Memory at addresses of its own, one piece behind the other.
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
            pieces.push(Piece { offset, mapping: Mapping::new(memory, access) });
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
                // SAFETY: both sides are mapped, each in one reservation; the device owns what is written and may write
                // it, and may read what is read. No address is in both.
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

/// What memory is to be in the place of this.
fn there<B: Backend>(memory: &PhysicalMemory<B>, device: DeviceId) -> Properties {
    Properties { device, ..memory.properties() }
}

/// Access after a move: the new owner has the old one's, or its own where that is more.
fn handed_over(access: AccessMap, from: DeviceId, to: DeviceId) -> AccessMap {
    access.with(from, Access::None).with(to, access.get(from).max(access.get(to)))
}

/// Takes the memory away again that was mapped beside, whose addresses nobody knows. What cannot be unmapped is tried
/// once more, so that it does not stay for one call's sake.
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
