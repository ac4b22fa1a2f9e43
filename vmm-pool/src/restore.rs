//! Creating a pool from a file that [`Pool::save`] has written.

use crate::block_memory::{BlockMemory, Origin};
use crate::classes::{SMALL_CLASSES, class_of, size_of};
use crate::core::{Core, Request, Shortage};
use crate::error::ExhaustedResource;
use crate::save::MOST_UNUSED;
use crate::slabs::{Kind, Slab, slab_size};
use crate::space::{Group, PlaceRequest, UNIT, rounded};
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};
use crate::tags::LIMIT;
use crate::thread_cache::body::{Body, Place};
use crate::{Block, Pool, PoolBuilder};
use gpu_vmm_core::extend::{check_same, check_virtual_memory, span};
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, Error, Operation, Properties, Region, Result, StagingRing, Stream,
};
use gpu_vmm_premap::sync::thread_number;
use gpu_vmm_snapshot::{
    Description, PoolBlockRecord, PoolRangeRecord, PoolRecord, PoolSpaceRecord, Restore, SnapshotError,
    SnapshotFile,
};

const OPERATION: Operation = Operation::Restore;

/// A pool that was restored from a file, with its blocks.
#[derive(Debug)]
pub struct RestoredPool<B: Backend> {
    /// The pool.
    pub pool: Pool<B>,
    /// All blocks of the file, in the order of their addresses. They belong to the default stream. [`Pool::find`] returns the tag of a
    /// block.
    pub blocks: Vec<Block<B>>,
}

impl<B: Backend> PoolBuilder<'_, B> {
    /// Creates the pool that [`Pool::save`] has saved in a file: its blocks have the same addresses, tags and bytes.
    ///
    /// The pool has the page size of the saved pool, whatever [`page`](PoolBuilder::page) says, and is
    /// [restorable](PoolBuilder::restorable) if that was. All other settings are those of this builder, with the device and the
    /// [kind](PoolBuilder::memory) of the memory. No other device has access to it until [`Pool::allow_access`] gives it some.
    ///
    /// # Errors
    ///
    /// Before anything is reserved: [`NotAPool`](SnapshotError::NotAPool) for a snapshot of regions; [`Unsupported`](Detail::Unsupported)
    /// on a device without virtual memory management, for pages that are smaller than the device's granularity, and for blocks of sizes
    /// that this version of gpu-vmm does not have; [`OutOfMemory`](crate::PoolError::OutOfMemory) if the budget is smaller than the
    /// saved memory; [`ExceedsDevice`](Detail::ExceedsDevice) if the device is; and the errors of [`PoolBuilder::build`].
    ///
    /// Then the errors of [`Restore::regions`], among them [`AddressTaken`](SnapshotError::AddressTaken), which names what uses the
    /// addresses, and [`Invalid`](SnapshotError::Invalid) for a damaged file. Everything created so far is released.
    pub fn restore(self, file: &SnapshotFile, ring: &StagingRing<B>) -> Result<RestoredPool<B>> {
        let description = file.description();
        let Some(record) = &description.pool else {
            let path = file.path().display().to_string();
            return Err(Error::of_extension(OPERATION, SnapshotError::NotAPool { path }));
        };
        let (backend, device) = self.place();
        check_same(OPERATION, ring.backend(), backend)?;
        check_virtual_memory(OPERATION, backend, device)?;
        check_table(record)?;
        span!(Restore, regions = record.spaces.len());
        let options = options_for(description, record, self.properties());
        let portable = description.regions.iter().any(|region| region.portable);
        let builder = self.page(record.page);
        let pool = if portable { builder.restorable() } else { builder }.build()?;
        pool.check_room(record, description.contents())?;
        let regions = options.regions(file, ring)?.into_iter().map(|restored| restored.region).collect();
        pool.restored(description, record, regions)
    }
}

/// Returns how the regions of the pool are restored: for its device alone.
fn options_for(description: &Description, record: &PoolRecord, memory: Properties) -> Restore {
    let others = description.devices.iter().map(|device| device.id).filter(|id| *id != record.device);
    let options = others.chain([DeviceId::HOST]).fold(Restore::new(), Restore::without);
    options.device(record.device, memory.device).memory(move |_| memory)
}

/// Checks that the ranges and slots are those of this version of the pool.
fn check_table(record: &PoolRecord) -> Result<()> {
    let refused = |reason: String| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    if record.spaces.len() > LIMIT as usize {
        let count = record.spaces.len();
        return refused(format!("the file has {count} address ranges; a pool has at most {LIMIT}"));
    }
    for range in record.spaces.iter().flat_map(|space| &space.ranges) {
        let PoolRangeRecord { offset, size, slot, blocks } = range;
        let fits = match slot.0 {
            0 => offset.0.is_multiple_of(UNIT) && size.0.is_multiple_of(UNIT),
            _ => offset.0.is_multiple_of(UNIT) && class_of_slots(slot.0, size.0).is_some(),
        };
        let capacity = if slot.is_zero() { *size } else { *slot };
        let unused = |block: &PoolBlockRecord| capacity.0 - block.size.0 > MOST_UNUSED;
        if !fits || blocks.iter().any(unused) {
            return refused(format!(
                "the file has {} blocks in {size} at offset {offset}, in slots of {slot}: another version of gpu-vmm wrote it; restore it \
                 with that version",
                blocks.len()
            ));
        }
    }
    Ok(())
}

/// Returns the class of a slab with slots of a size.
fn class_of_slots(slot: u64, size: u64) -> Option<usize> {
    let class = class_of(slot).filter(|class| *class < SMALL_CLASSES)?;
    (size_of(class) == slot && rounded(slab_size(class), UNIT) == Some(size)).then_some(class)
}

impl<B: Backend> Pool<B> {
    /// Checks that a new pool has the page size of a saved one, and that its budget has room for the memory.
    fn check_room(&self, record: &PoolRecord, memory: Bytes) -> Result<()> {
        let core = self.owner.inner.core(OPERATION)?;
        if core.page != record.page.0 {
            let (here, saved, device) = (Bytes(core.page), record.page, core.settings.memory.device);
            let reason = format!(
                "the saved pool has pages of {saved}, and {device} needs pages of at least {here}; save a pool with pages of {here}"
            );
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let budget = core.ledger.budget();
        drop(core);
        if memory <= budget {
            return Ok(());
        }
        let shortage = Shortage::Memory(ExhaustedResource::Budget(budget));
        Err(self.tell(OPERATION, shortage, memory, &self.tag))
    }

    /// Puts restored regions into a new pool, and returns it with its blocks.
    fn restored(
        self,
        description: &Description,
        record: &PoolRecord,
        regions: Vec<Region<B>>,
    ) -> Result<RestoredPool<B>> {
        let thread_cache = self.owner.thread_cache(thread_number());
        let stream = Stream::DEFAULT;
        // Regions that are left after an error end when the core is unlocked.
        let mut regions = regions.into_iter();
        let mapping = self.owner.inner.mapping(OPERATION)?;
        let mut core = mapping.core()?;
        let index = core.streams.index(OPERATION, stream)?;
        let mut found = Vec::new();
        for ((region, space), described) in regions.by_ref().zip(&record.spaces).zip(&description.regions) {
            let tag = core.tags.named(&described.tag)?;
            let offsets = described.mappings.iter().map(|mapping| mapping.offset);
            let group = Group::of_number(space.group);
            let place = self.owner.inner.add_space(&mut core, region, tag.index, group)?;
            core.add_restored(place, offsets, (tag.index, index), space, |piece, size| {
                let place = Place::Last(tag.index);
                let body = Body::new(thread_cache, piece, (stream, index), size.0, place);
                let mut cache = thread_cache.lock();
                cache.count_out(size.0);
                found.push((std::sync::Arc::clone(&tag), cache.boxed(body)));
            })?;
        }
        core.note();
        drop(core);
        drop(mapping);
        let block = |(tag, ready)| Self { tag, ..self.clone() }.block(ready);
        let mut blocks: Vec<_> = found.into_iter().map(block).collect();
        blocks.sort_by_key(Block::address);
        Ok(RestoredPool { pool: self, blocks })
    }
}

impl<B: Backend> Core<B> {
    /// Adds memory and blocks to a new space. Calls `found` with the memory and the size of each block.
    fn add_restored(
        &mut self,
        index: u16,
        pages: impl Iterator<Item = Bytes>,
        (tag, stream): (u16, StreamIndex),
        record: &PoolSpaceRecord,
        mut found: impl FnMut(BlockMemory, Bytes),
    ) -> Result<()> {
        let space = &mut self.spaces[usize::from(index)];
        for offset in pages {
            let page = (offset.0 / space.page) as usize;
            let mapped = space.region().and_then(|region| region.mapping_at(offset));
            let Some(memory) = mapped.map(|mapping| mapping.memory.clone()) else { continue };
            let frame = self.frames.insert(Some(memory), tag);
            space.add_pages(page + 1);
            space.note_mapped(&mut self.frames, page, frame);
            self.frames.release(frame);
        }
        let (captures, small, tentative, at) = (false, false, false, None);
        for range in &record.ranges {
            let (size, alignment) = (range.size.0, UNIT);
            let request = Request { size, alignment, tag, stream, captures, small, tentative, at };
            let wanted = PlaceRequest { size, alignment, stream: CLEAN };
            let space = &self.spaces[usize::from(index)];
            let spot = space.spot_at_offset(&mut self.frames, range.offset.0, wanted);
            let Some(spot) = spot.filter(|spot| spot.work == 0) else {
                let what = format!("the restored memory has no room for a block at offset {}", range.offset);
                return Err(Error::new(OPERATION, Detail::DriverContractViolated { what }));
            };
            let piece = self.take_at(usize::from(index), spot, request);
            self.add_restored_blocks(piece, range, (tag, stream), &mut found);
        }
        Ok(())
    }

    /// Adds the blocks of a range that was taken for them.
    fn add_restored_blocks(
        &mut self,
        piece: BlockMemory,
        record: &PoolRangeRecord,
        (tag, stream): (u16, StreamIndex),
        found: &mut impl FnMut(BlockMemory, Bytes),
    ) {
        let slots = class_of_slots(record.slot.0, record.size.0).filter(|_| !record.slot.is_zero());
        let (Some(class), Origin::Range(space, range)) = (slots, piece.origin) else {
            record.blocks.iter().for_each(|block| found(piece, block.size));
            return;
        };
        let kind = Kind { tag, class: class as u16 };
        let mut slab = Slab::new(kind, FreeAfter::FREE, space, range, piece.address);
        record.blocks.iter().for_each(|block| slab.take_slot(block.slot as u16, stream));
        let index = self.slabs.insert(slab);
        for PoolBlockRecord { slot, size } in &record.blocks {
            let address = piece.address + u64::from(*slot) * record.slot.0;
            let origin = Origin::Slot(index, *slot as u16);
            found(BlockMemory { address, size: record.slot.0, origin }, *size);
        }
    }
}
