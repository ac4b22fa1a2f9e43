//! Restoring regions from a snapshot: all of them, or none.
//!
//! First, [`plan`] checks everything that needs no driver call. Then all addresses are reserved and all memory is created, so that
//! a shortage shows before the first byte is read. Then the memory is mapped with write access for its owner, and the contents pass
//! through the staging ring; each block's checksum is verified. At the end each device gets its original access.
#![allow(unsafe_code)] // the ring writes by address

use crate::SnapshotError;
use crate::chunks::{InPiece, Recent, Stream};
use crate::plan::{Plan, PlannedRegion, plan};
use crate::planned::{PlannedMapping, PlannedMemory};
use crate::{Restore, SnapshotFile};
use gpu_vmm_core::extend::{ChunkContents, MappedMemory, Segment, span, user_of_addresses};
use gpu_vmm_core::{
    AddressRange, Backend, Detail, Error, Operation, PhysicalMemory, Placement, Region, Result, StagingRing,
    WaitFor,
};
use std::collections::BTreeSet;

/// A restored region: a plain value, which any thread may have.
#[derive(Debug)]
pub struct Restored<B: Backend> {
    /// The region.
    pub region: Region<B>,
    /// The addresses of the region when the snapshot was written.
    pub was: AddressRange,
}

impl<B: Backend> Restored<B> {
    /// Returns whether the region is at another address than before.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.region.address() != self.was.base
    }
}

impl Restore {
    /// Restores all regions of a snapshot, with their contents, on the ring's backend, in the order in which they were written. A
    /// program identifies its regions by [tag](Region::tag).
    ///
    /// Each region is restored with its tag, reservations, mappings, holes, the access of each device, and its settings for growth.
    /// Memory that was mapped several times, also across regions, is one memory again. Memory that was shared with another process
    /// belongs to this process alone.
    ///
    /// The target can be of another vendor. If it reserves addresses in larger units, reservations are rounded up. If it creates
    /// memory in larger units, adjacent memories are merged, provided that their properties and access are the same.
    ///
    /// # Errors
    ///
    /// Before any driver call: [`Detail::NoSuchDevice`], [`SnapshotError::NoSuchDevice`], [`Detail::PeerUnreachable`], [`Detail::ExceedsDevice`];
    /// [`Detail::Unsupported`] for memory that the target does not have, and for mappings and regions that do not fit its units;
    /// [`Detail::Unaligned`] for an address that is not aligned for the target.
    ///
    /// Then [`SnapshotError::AddressTaken`], unless regions [may be relocated](Restore::relocate); [`Detail::OutOfMemory`];
    /// [`SnapshotError::Invalid`] for a damaged block; [`Detail::File`]; or the driver's error. Everything created so far is
    /// released. If releasing fails too, the error is [`Detail::RollbackFailed`], and the rest stays allocated until the process
    /// ends.
    pub fn regions<B: Backend>(
        &self,
        file: &SnapshotFile,
        ring: &StagingRing<B>,
    ) -> Result<Vec<Restored<B>>> {
        let operation = Operation::Restore;
        let backend = ring.backend();
        let plan = plan(operation, backend, self, file.description())?;
        span!(Restore, regions = plan.regions.len());
        let mut regions = Vec::with_capacity(plan.regions.len());
        let made = reserve_all(operation, file, backend, self, &plan, &mut regions)
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

/// Reserves the addresses of all regions. Regions with their original addresses come first, so that no other region takes these.
fn reserve_all<B: Backend>(
    operation: Operation,
    file: &SnapshotFile,
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
            Err(error) if matches!(error.detail(), Detail::AddressTaken { .. }) => {
                if !options.may_relocate() {
                    return Err(taken(operation, file, at, planned));
                }
                elsewhere.push((at, planned));
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

/// Returns the error of a region whose addresses are in use.
fn taken(operation: Operation, file: &SnapshotFile, region: usize, planned: &PlannedRegion) -> Error {
    let (path, tag) = (file.path().display().to_string(), planned.settings.tag.to_string());
    let (was, user) = (planned.was, user_of_addresses(planned.was));
    Error::of_extension(operation, SnapshotError::AddressTaken { path, region, tag, was, user })
}

/// Creates and maps the memory of all regions, and copies the contents.
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
            let access =
                if *way { memory.properties().access_for_copies(mapping.access) } else { mapping.access };
            Some(MappedMemory { offset: mapping.offset, memory, access })
        };
        let wanted: Vec<_> = planned.mappings.iter().zip(&ways[at]).filter_map(wanted).collect();
        region.apply_layout(operation, &wanted, WaitFor::all_devices())?;
    }
    send(operation, file, ring, plan, &ways, regions)?;
    for (region, planned) in regions.iter_mut().zip(&plan.regions) {
        for mapping in &planned.mappings {
            let length = plan.memories[mapping.memory].size;
            // SAFETY: no code outside this function has the region, and the copies have ended.
            unsafe { region.set_access_at_once(mapping.offset, length, mapping.access) }?;
        }
    }
    Ok(())
}

/// Returns for each mapping of each region whether the contents of its memory are written through it. A mapping that has the access
/// for that anyway is preferred.
fn ways_in(plan: &Plan) -> Vec<Vec<bool>> {
    let mut open: BTreeSet<usize> = (0..plan.memories.len()).collect();
    let mut ways: Vec<Vec<bool>> =
        plan.regions.iter().map(|region| vec![false; region.mappings.len()]).collect();
    for writable_alone in [true, false] {
        let planned = plan.regions.iter().flat_map(|region: &PlannedRegion| &region.mappings);
        for (mapping, way) in planned.zip(ways.iter_mut().flatten()) {
            let may_write =
                mapping.access == plan.memories[mapping.memory].properties.access_for_copies(mapping.access);
            if (may_write || !writable_alone) && open.remove(&mapping.memory) {
                *way = true;
            }
        }
    }
    ways
}

/// Copies the contents of all memory.
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
    // The file's memories in sequence are the same bytes as the segments in sequence.
    let stream = Stream::new(sources.iter().map(|source| sizes[*source].size));
    let (unit, recent) = (file.block_size(), Recent::default());
    let give = |offset, bytes: &mut [u8]| {
        let parts: Vec<_> = stream.parts(offset, bytes.len()).collect();
        if parts.iter().map(|part| part.length).sum::<usize>() != bytes.len() {
            let what =
                format!("the snapshot has no contents for some of {} bytes at offset {offset}", bytes.len());
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
    // SAFETY: each segment is one whole mapping, through which its device may write, and no other code has the region.
    unsafe { ring.send(&segments, &give) }
}

/// Releases the regions created before `error`.
fn give_back<B: Backend>(error: Error, regions: Vec<Region<B>>) -> Error {
    match discard(regions) {
        Ok(()) => error,
        Err(undo) => error.rollback_failed(undo),
    }
}

/// Releases regions that no code outside this crate has.
pub(crate) fn discard<B: Backend>(regions: Vec<Region<B>>) -> Result<()> {
    // SAFETY: only this crate's copies used them, and those have ended.
    let answers = regions.into_iter().map(|region| unsafe { region.discard() });
    answers.fold(Ok(()), Result::and)
}
