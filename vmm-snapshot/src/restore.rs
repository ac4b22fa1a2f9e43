//! Regions made again from a snapshot: all of them, or none.
//!
//! First everything is checked that can be without a driver ([`plan`]). Then all addresses are reserved, then all memory is
//! created: what is not there shows before the first byte is read. Then the memory is mapped, its owner may write it, and
//! the contents come through the ring; each block is held against its checksum on the way. At last each device gets the
//! access that it had.
#![allow(unsafe_code)] // the ring writes by addresses

#[cfg(doc)]
use crate::SnapshotError;
use crate::chunks::{InPiece, Recent, Stream};
use crate::plan::{Plan, PlannedRegion, plan};
use crate::planned::{PlannedMapping, PlannedMemory};
use crate::{Restore, SnapshotFile};
use gpu_vmm_core::extend::{ChunkContents, MappedMemory, Segment};
use gpu_vmm_core::{
    Access, AddressRange, Backend, Detail, Error, Operation, PhysicalMemory, Placement, Region, Result,
    StagingRing, WaitFor,
};
use std::collections::BTreeSet;

/// A region that came back.
#[derive(Debug)]
pub struct Restored<B: Backend> {
    /// The region.
    pub region: Region<B>,
    /// The addresses that it had when the snapshot was written.
    pub was: AddressRange,
}

impl<B: Backend> Restored<B> {
    /// True where it is at another address than it was.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.region.address() != self.was.base
    }
}

impl Restore {
    /// Makes all regions of a snapshot again, with their contents, on the backend of the ring, in the order in which they
    /// were written. Region by [tag](Region::tag), a program finds its own.
    ///
    /// Each comes back with its tag, its reservations, its mappings and holes, the access of each device, and what
    /// it grows with. What was mapped several times is one piece of memory again, across regions too. Memory that was another
    /// process's as well is this one's alone.
    ///
    /// The target may be another vendor's. Where it hands out addresses in larger units, reservations are rounded up; where
    /// it hands out memory in larger units, pieces that follow each other become one, if they are of one kind and their
    /// access is the same.
    ///
    /// # Errors
    ///
    /// Before a driver is asked: [`Detail::NoSuchDevice`], [`Detail::PeerUnreachable`], [`Detail::ExceedsDevice`];
    /// [`Detail::Unsupported`] for memory that the target does not have, and for mappings and regions that do not fit its
    /// units; [`Detail::Unaligned`] for an address that does not.
    ///
    /// Then [`Detail::AddressTaken`], which is not one where regions [may be elsewhere](Restore::relocate);
    /// [`Detail::OutOfMemory`]; [`SnapshotError::Invalid`] for a block that is not what was written, [`Detail::File`]; or what the
    /// driver answers. Nothing is left behind, unless giving it back fails too: then it is [`Detail::RollbackFailed`], and what
    /// is left stays so to the end of the process.
    pub fn regions<B: Backend>(
        &self,
        file: &SnapshotFile,
        ring: &StagingRing<B>,
    ) -> Result<Vec<Restored<B>>> {
        let operation = Operation::Restore;
        let backend = ring.backend();
        let plan = plan(operation, backend, self, file.description())?;
        let mut regions = Vec::with_capacity(plan.regions.len());
        let made = reserve_all(operation, backend, self, &plan, &mut regions)
            .and_then(|()| fill_all(operation, file, ring, &plan, &mut regions));
        match made {
            Ok(()) => {
                let was = plan.regions.iter().map(|planned| planned.was);
                Ok(regions.into_iter().zip(was).map(|(region, was)| Restored { region, was }).collect())
            }
            Err(error) => Err(give_back(error, regions)),
        }
    }
}

/// Reserves the addresses of all regions: first of those that come back where they were, so that none of the others is in
/// their way.
fn reserve_all<B: Backend>(
    operation: Operation,
    backend: &B,
    options: &Restore,
    plan: &Plan,
    regions: &mut Vec<Region<B>>,
) -> Result<()> {
    let mut elsewhere = Vec::new();
    let mut reserved = Vec::with_capacity(plan.regions.len());
    for (at, planned) in plan.regions.iter().enumerate() {
        if !planned.is_aligned() {
            elsewhere.push((at, planned));
            continue;
        }
        let place = Placement::Exact(planned.was.base);
        match Region::with_settings(operation, backend, &planned.settings, place, &planned.reservations) {
            Err(error) if matches!(error.detail(), Detail::AddressTaken { .. }) && options.may_relocate() => {
                elsewhere.push((at, planned))
            }
            Err(error) => return Err(error),
            Ok(region) => reserved.push((at, region)),
        }
    }
    for (at, planned) in elsewhere {
        let whole = [planned.reservations.iter().copied().sum()];
        let settings = &planned.settings;
        let place = if settings.portable { Placement::Restorable } else { Placement::Anywhere };
        let region = Region::with_settings(operation, backend, settings, place, &whole)?;
        reserved.push((at, region));
    }
    reserved.sort_by_key(|(at, _)| *at);
    regions.extend(reserved.into_iter().map(|(_, region)| region));
    Ok(())
}

/// Creates and maps the memory of all regions, and brings the contents.
fn fill_all<B: Backend>(
    operation: Operation,
    file: &SnapshotFile,
    ring: &StagingRing<B>,
    plan: &Plan,
    regions: &mut [Region<B>],
) -> Result<()> {
    let create =
        |memory: &PlannedMemory| PhysicalMemory::create(ring.backend(), memory.size, memory.properties);
    let memories: Vec<PhysicalMemory<B>> = plan.memories.iter().map(create).collect::<Result<_>>()?;
    let ways = ways_in(plan);
    for (at, (region, planned)) in regions.iter_mut().zip(&plan.regions).enumerate() {
        let wanted = |(mapping, way): (&PlannedMapping, &bool)| {
            let memory = memories.get(mapping.memory)?.clone();
            let owner = memory.device();
            let access = if *way { mapping.access.with(owner, Access::ReadWrite) } else { mapping.access };
            Some(MappedMemory { offset: mapping.offset, memory, access })
        };
        let wanted: Vec<_> = planned.mappings.iter().zip(&ways[at]).filter_map(wanted).collect();
        region.apply_layout(operation, &wanted, WaitFor::all_devices())?;
    }
    send(operation, file, ring, plan, &ways, regions)?;
    for (region, planned) in regions.iter_mut().zip(&plan.regions) {
        for mapping in &planned.mappings {
            let length = plan.memories[mapping.memory].size;
            // SAFETY: nothing beside this function knows the region, and what it copied has ended.
            unsafe { region.set_access_at_once(mapping.offset, length, mapping.access) }?;
        }
    }
    Ok(())
}

/// For each mapping of each region, whether it is the one through which the contents of its memory come: one that the owner
/// may write anyway, where there is one.
fn ways_in(plan: &Plan) -> Vec<Vec<bool>> {
    let mut open: BTreeSet<usize> = (0..plan.memories.len()).collect();
    let mut ways: Vec<Vec<bool>> =
        plan.regions.iter().map(|region| vec![false; region.mappings.len()]).collect();
    for writable_alone in [true, false] {
        let planned = plan.regions.iter().flat_map(|region: &PlannedRegion| &region.mappings);
        for (mapping, way) in planned.zip(ways.iter_mut().flatten()) {
            let owner = plan.memories[mapping.memory].properties.device;
            let may_write = mapping.access.get(owner) == Access::ReadWrite;
            if (may_write || !writable_alone) && open.remove(&mapping.memory) {
                *way = true;
            }
        }
    }
    ways
}

/// Brings the contents of all memory.
fn send<B: Backend>(
    operation: Operation,
    file: &SnapshotFile,
    ring: &StagingRing<B>,
    plan: &Plan,
    ways: &[Vec<bool>],
    regions: &[Region<B>],
) -> Result<()> {
    let sizes = &file.description().memories;
    let (mut segments, mut sources) = (Vec::new(), Vec::<usize>::new());
    for ((region, planned), ways) in regions.iter().zip(&plan.regions).zip(ways) {
        for (mapping, _) in planned.mappings.iter().zip(ways).filter(|(_, way)| **way) {
            let memory = &plan.memories[mapping.memory];
            let (address, device) = (region.address() + mapping.offset, memory.properties.device);
            segments.push(Segment { address, length: memory.size, device });
            sources.extend(&memory.sources);
        }
    }
    // The file's memories behind each other are the same bytes as the segments behind each other.
    let stream = Stream::new(sources.iter().map(|source| sizes[*source].size));
    let (unit, recent) = (file.block_size(), Recent::default());
    let give = |offset, bytes: &mut [u8]| {
        let parts: Vec<_> = stream.parts(offset, bytes.len()).collect();
        if parts.iter().map(|part| part.length).sum::<usize>() != bytes.len() {
            let what = format!("there is nothing for some of {} bytes at offset {offset}", bytes.len());
            return Err(Error::new(operation, Detail::DriverContractViolated { what }));
        }
        let is_zero =
            |part: &InPiece| part.blocks(unit).all(|here| file.is_zero(sources[part.piece], here.block));
        if parts.iter().all(is_zero) {
            return Ok(ChunkContents::Zeros);
        }
        let mut rest = bytes;
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.length);
            let source = sources[part.piece];
            recent.fill(part, unit, here, |block, bytes| file.read_block(source, block, bytes))?;
            rest = behind;
        }
        Ok(ChunkContents::Bytes)
    };
    // SAFETY: each segment is one whole mapping, through which its device may write, and nothing else knows the region.
    unsafe { ring.send(&segments, &give) }
}

/// Gives back what was made before `error` came.
fn give_back<B: Backend>(error: Error, regions: Vec<Region<B>>) -> Error {
    match discard(regions) {
        Ok(()) => error,
        Err(undo) => error.rollback_failed(undo),
    }
}

/// Gives regions back that nothing outside of this crate knows.
pub(crate) fn discard<B: Backend>(regions: Vec<Region<B>>) -> Result<()> {
    // SAFETY: no work but the copies of this crate used them, and those have ended.
    let answers = regions.into_iter().map(|region| unsafe { region.discard() });
    answers.fold(Ok(()), Result::and)
}
