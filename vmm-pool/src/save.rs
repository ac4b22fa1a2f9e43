//! Saving the live blocks of a pool in a file.
//!
//! A save pins the pages of the blocks that live when it begins: their memory stays where it is until the save ends, also if blocks are
//! freed meanwhile. So it copies without a lock of the core, and other threads allocate and free blocks of the same tags.
#![allow(unsafe_code)] // copies device memory, which stays mapped meanwhile

use crate::core::Core;
use crate::shared::{CoreGuard, Inner};
use crate::slabs::Slab;
use crate::space::{RangeInfo, Space};
use crate::tags::{Tag, TagState};
use crate::{Pool, PoolError};
use gpu_vmm_core::extend::{Segment, check_same, span};
use gpu_vmm_core::{
    AccessMap, Address, Backend, Bytes, Detail, Error, OffsetRange, Operation, Result, StagingRing, WaitFor,
};
use gpu_vmm_premap::sync::{Arc, PoisonError};
use gpu_vmm_snapshot::extend::{region_record, write_segments};
use gpu_vmm_snapshot::{
    Description, MappingRecord, MemoryRecord, PoolBlockRecord, PoolRangeRecord, PoolRecord, PoolSpaceRecord,
    RegionRecord, SnapshotFile, SnapshotStats, WriteOptions,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

const OPERATION: Operation = Operation::TakeSnapshot;

/// The most bytes behind the requested size that a block occupies.
pub(crate) const MOST_UNUSED: u64 = u16::MAX as u64;

/// A pool to be saved in a file: which of its tags, and how. [`Pool::save`] returns it.
///
/// ```no_run
/// # use gpu_vmm_core::{Backend, Result, StagingRing, WaitFor};
/// # use gpu_vmm_pool::Pool;
/// # fn example<B: Backend>(pool: &Pool<B>, ring: &StagingRing<B>) -> Result<()> {
/// let written = pool.save(ring).tag("weights").write("model.pool", WaitFor::all_devices())?;
/// println!("{} of memory, {} in the file", written.contents, written.file);
/// # Ok(())
/// # }
/// ```
///
/// # Thread safety
///
/// Saves of several threads run at the same time; those that share a tag or a ring take turns.
#[derive(Clone, Debug)]
#[must_use = "nothing is saved before `write` is called"]
pub struct PoolSave<'a, B: Backend> {
    pool: &'a Pool<B>,
    ring: &'a StagingRing<B>,
    /// All tags if there are none.
    tags: Vec<&'a str>,
    options: WriteOptions<'a>,
}

impl<B: Backend> Pool<B> {
    /// Begins to save the live blocks of this handle's [kind of memory](Pool::with_memory), of all tags. Each kind has a file of its
    /// own. The contents pass through `ring`.
    pub fn save<'a>(&'a self, ring: &'a StagingRing<B>) -> PoolSave<'a, B> {
        PoolSave { pool: self, ring, tags: Vec::new(), options: WriteOptions::default() }
    }
}

impl<'a, B: Backend> PoolSave<'a, B> {
    /// Saves the blocks with this tag, and those with other tags that were set in the same way, instead of all blocks. The empty tag
    /// stands for blocks without one.
    pub fn tag(mut self, tag: &'a str) -> Self {
        self.tags.push(tag);
        self
    }

    /// Sets whether blocks of the file are compressed if that makes them smaller. The default is `false`.
    pub fn compress(mut self, whether: bool) -> Self {
        self.options.compress = whether;
        self
    }

    /// Omits contents that an earlier snapshot in the same folder has, as [`Snapshot::since`](gpu_vmm_snapshot::Snapshot::since) does.
    pub fn since(mut self, earlier: &'a SnapshotFile) -> Self {
        self.options.since = Some(earlier);
        self
    }

    /// Writes the file, and replaces a file of that name when the new one is completely on the disk.
    /// [`PoolBuilder::restore`](crate::PoolBuilder::restore) creates a pool from it.
    ///
    /// The file contains each block that was allocated before this call and is not freed before it returns: its address, its tag, its
    /// size and its bytes. The pool knows the requested size of blocks that it [keeps](Pool::keep); of others, the file has the size
    /// that they occupy. Streams, uses and fences are not saved, nor is memory that is free or waits for work.
    ///
    /// The call first waits according to `done` for work that still writes to the blocks. No work may write to them until this
    /// returns: otherwise the file may contain some of its writes.
    ///
    /// # Other threads
    ///
    /// Other threads allocate and free blocks meanwhile, also with the saved tags. Whether the file contains a block that another
    /// thread allocates or frees during the call is not defined. Copies of the bytes of blocks with a saved tag
    /// ([`Block::read`](crate::Block::read), [`write`](crate::Block::write), [`copy_from`](crate::Block::copy_from)) and suspensions
    /// of such a tag wait until the save ends. A request that finds too little memory waits for it before it fails: the memory of a
    /// block that is freed meanwhile is free after the save.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`PoolError::Suspended`] for a tag that is suspended, or that a thread suspends, resumes or
    /// moves; [`Poisoned`](Detail::Poisoned) if a failed call has lost memory of a block; [`Unsupported`](Detail::Unsupported) on a device
    /// without virtual memory management; [`ForeignHandle`](Detail::ForeignHandle) for a ring of another backend; and the errors of
    /// [`Snapshot::write`](gpu_vmm_snapshot::Snapshot::write). There is then no new file, and the old one is unchanged.
    pub fn write(&self, path: impl AsRef<Path>, done: WaitFor<'_>) -> Result<SnapshotStats> {
        let owner = &self.pool.owner;
        check_same(OPERATION, self.ring.backend(), &owner.backend)?;
        owner.inner.core(OPERATION)?.check_virtual(OPERATION)?;
        let tags = self.tags()?;
        // The first kind keeps the blocks of all kinds.
        let sizes = self.pool.kinds.first.kept_blocks.sizes(owner.inner.process, OPERATION)?;
        // In the order of their numbers, as copies lock them.
        let _copies: Vec<_> =
            tags.iter().map(|tag| tag.copies.write().unwrap_or_else(PoisonError::into_inner)).collect();
        owner.settle(OPERATION, |index, _| tags.iter().any(|tag| tag.index == index))?;
        let description = Description::of(&owner.backend)?;
        let mut saved = Saved { inner: &owner.inner, description, segments: Vec::new(), pinned: Vec::new() };
        saved.collect(self.pool, &tags, &sizes)?;
        span!(TakeSnapshot, bytes = saved.description.contents().0);
        done.wait(&owner.backend, || std::iter::once(owner.memory().device))?;
        let Saved { description, segments, .. } = &saved;
        // SAFETY: each segment is a page that stays mapped for its device while it is pinned. Copies of blocks' bytes wait, and the
        // caller lets no other work write.
        unsafe { write_segments(self.ring, path.as_ref(), description, segments, self.options) }
    }

    /// Returns the tags to save, in the order of their numbers.
    fn tags(&self) -> Result<Vec<Arc<Tag>>> {
        if self.tags.is_empty() {
            let core = self.pool.owner.inner.core(OPERATION)?;
            let with_addresses = core.tags.list.iter().filter(|own| !own.spaces.is_empty());
            return Ok(with_addresses.map(|own| Arc::clone(&own.tag)).collect());
        }
        let tags = self.tags.iter().map(|tag| self.pool.tag_named(OPERATION, tag));
        let mut tags: Vec<_> = tags.collect::<Result<_>>()?;
        tags.sort_by_key(|tag| tag.index);
        tags.dedup_by_key(|tag| tag.index);
        Ok(tags)
    }
}

/// What is saved. Its pages are pinned until this is dropped.
#[derive(Debug)]
struct Saved<'a, B: Backend> {
    inner: &'a Inner<B>,
    description: Description,
    /// The pages, in the order of the description's memories.
    segments: Vec<Segment>,
    /// The space and the number of each page.
    pinned: Vec<(usize, usize)>,
}

/// The blocks that are not live although their ranges and slots are taken, and what is known of the others.
#[derive(Debug)]
struct Blocks<'a> {
    /// The addresses of freed blocks in thread caches, and of those that wait for a stream or a fence.
    freed: HashSet<u64>,
    /// The slabs by their addresses.
    slabs: HashMap<u64, &'a Slab>,
    /// The requested sizes that the pool knows, by address.
    sizes: &'a HashMap<Address, Bytes>,
}

impl Blocks<'_> {
    /// Returns the record of a block if it is live.
    fn record(&self, address: u64, slot: u32, capacity: u64) -> Option<PoolBlockRecord> {
        if self.freed.contains(&address) {
            return None;
        }
        // The block whose size was read may have been freed meanwhile, and another one may be there.
        let fits = |size: &&Bytes| capacity.checked_sub(size.0).is_some_and(|unused| unused <= MOST_UNUSED);
        let known = self.sizes.get(&Address(address)).filter(fits);
        Some(PoolBlockRecord { slot, size: known.copied().unwrap_or(Bytes(capacity)) })
    }

    /// Returns the record of a taken range, if it has live blocks.
    fn range<B: Backend>(&self, space: &Space<B>, seen: RangeInfo) -> Option<PoolRangeRecord> {
        let RangeInfo { offset, size, .. } = seen;
        let address = space.base + offset;
        let (slot, blocks) = match self.slabs.get(&address) {
            Some(slab) => {
                let slot = slab.slot_size();
                let taken = (0..slab.slots()).filter(|slot| !slab.is_free(*slot)).map(u32::from);
                let record = |number| self.record(address + u64::from(number) * slot, number, slot);
                (slot, taken.filter_map(record).collect())
            }
            // A thread overwrites its memory for a request that is not served yet.
            None if !space.changing_in(offset, size).is_empty() => return None,
            None => (0, self.record(address, 0, size).into_iter().collect::<Vec<_>>()),
        };
        let [offset, size, slot] = [offset, size, slot].map(Bytes);
        (!blocks.is_empty()).then_some(PoolRangeRecord { offset, size, slot, blocks })
    }
}

impl<B: Backend> Saved<'_, B> {
    /// Notes the live blocks of tags, and pins their pages.
    fn collect(&mut self, pool: &Pool<B>, tags: &[Arc<Tag>], sizes: &HashMap<Address, Bytes>) -> Result<()> {
        // All regions are in their spaces.
        let mapping = self.inner.mapping(OPERATION)?;
        let mut core = mapping.core()?;
        // A move takes the memory after it has looked for saves.
        let is_away = |tag: &&Arc<Tag>| tag.state() != TagState::Active || core.is_suspended(tag.index);
        if let Some(tag) = tags.iter().find(is_away) {
            return Err(Error::of_extension(OPERATION, PoolError::Suspended { tag: tag.name.clone() }));
        }
        // In one hold of the core, under which no block passes from the core to a cache or back.
        let mut freed: HashSet<u64> = core.pending.iter().map(|waiting| waiting.piece.address).collect();
        for cache in pool.owner.thread_caches() {
            freed.extend(cache.lock().pieces().map(|piece| piece.address));
        }
        let slabs = core.slabs.iter().map(|slab| (slab.base, slab)).collect();
        let blocks = Blocks { freed, slabs, sizes };
        let mut spaces = Vec::new();
        for tag in tags {
            for index in core.tags.spaces(tag.index) {
                let space = &core.spaces[index];
                let taken = space.seen().filter(|seen| seen.taken);
                let ranges: Vec<_> = taken.filter_map(|seen| blocks.range(space, seen)).collect();
                if !ranges.is_empty() {
                    spaces.push((index, PoolSpaceRecord { group: space.group.number(), ranges }));
                }
            }
        }
        let mut records = Vec::new();
        for (index, record) in spaces {
            self.add(&mut core, index, &record)?;
            records.push(record);
        }
        let (device, page) = (core.settings.memory.device, Bytes(core.page));
        self.description.pool = Some(PoolRecord { device, page, spaces: records });
        Ok(())
    }

    /// Describes a space, and pins the pages of its live blocks.
    fn add(&mut self, core: &mut CoreGuard<'_, B>, index: usize, record: &PoolSpaceRecord) -> Result<()> {
        let Core { spaces, frames, settings, tags, ongoing, page: size, .. } = &mut **core;
        let (space, size) = (&mut spaces[index], Bytes(*size));
        let pages: BTreeSet<usize> =
            record.ranges.iter().flat_map(|range| space.pages_of(range.offset.0, range.size.0)).collect();
        let access = settings.access.iter().copied().collect::<AccessMap>();
        let mut mappings = Vec::with_capacity(pages.len());
        for page in pages {
            let (at, offset) = (space.page_at(page), space.offset_of(page));
            let memory = if at.is_mapped() { frames.get(at.frame).memory.as_ref() } else { None };
            let Some(memory) = memory else {
                let range = OffsetRange { offset, length: size };
                let cause = "the memory of a block is gone".to_owned();
                return Err(Error::new(OPERATION, Detail::Poisoned { range, cause }));
            };
            let (granularity, properties) = (memory.granularity(), memory.properties());
            mappings.push(MappingRecord { offset, memory: self.description.memories.len(), access });
            self.description.memories.push(MemoryRecord { size, granularity, properties });
            let (address, device) = (Address(space.base) + offset, settings.memory.device);
            self.segments.push(Segment { address, length: size, device });
            if self.pinned.is_empty() {
                ongoing.begin();
            }
            self.pinned.push((index, page));
            space.pin(page);
        }
        let Some(region) = space.region() else {
            let tag = tags.get(space.tag).name.clone();
            return Err(Error::of_extension(OPERATION, PoolError::Suspended { tag }));
        };
        self.description.regions.push(RegionRecord { mappings, ..region_record(region) });
        Ok(())
    }
}

impl<B: Backend> Drop for Saved<'_, B> {
    fn drop(&mut self) {
        if self.pinned.is_empty() {
            return;
        }
        // It fails in a forked child alone, where nothing uses the pool.
        let Ok(mut core) = self.inner.core(OPERATION) else { return };
        let Core { spaces, frames, ongoing, .. } = &mut *core;
        self.pinned.drain(..).for_each(|(space, page)| spaces[space].unpin(frames, page));
        ongoing.end();
        core.end_free();
        drop(core);
        self.inner.wake();
    }
}
