//! The memory of a device without virtual memory management: chunks, each of which is a plain allocation.
//!
//! A chunk is a space of one tag, with memory at all of its pages. A large block that no chunk has room for gets a chunk of its
//! size. Memory cannot move to other addresses, so only whole chunks without a block return to the driver. Chunks are allocated and
//! freed without the core.

use crate::chunk::Chunk;
use crate::core::{Core, Request, Shortage};
use crate::error::ExhaustedResource;
use crate::shared::Inner;
use crate::space::{Group, Space, Spot};
use gpu_vmm_core::extend::{check_virtual_memory, pool_memory};
use gpu_vmm_core::{Backend, Bytes, Operation, Region, Result};

const OPERATION: Operation = Operation::Allocate;

impl<B: Backend> Core<B> {
    /// Refuses an operation that needs virtual memory management if the device has none.
    pub(crate) fn check_virtual(&self, operation: Operation) -> Result<()> {
        if !self.settings.plain {
            return Ok(());
        }
        check_virtual_memory(operation, &self.backend, self.settings.memory.device)
    }

    /// Finds the place of a block in a chunk, or allocates a chunk for it. Its memory is not claimed yet.
    pub(crate) fn place_in_chunk(
        &mut self,
        request: Request,
        settled: bool,
    ) -> Result<(usize, Spot), Shortage> {
        if let Some(found) = self.find_in_chunks(request) {
            return Ok(found);
        }
        if !settled {
            return Err(Shortage::Caches);
        }
        self.poll();
        if let Some(found) = self.find_in_chunks(request) {
            return Ok(found);
        }
        Err(Shortage::Chunk(request))
    }

    /// Finds the place in all chunks of the tag where the least memory is left over.
    fn find_in_chunks(&mut self, request: Request) -> Option<(usize, Spot)> {
        let mut best: Option<(usize, Spot)> = None;
        for index in 0..self.spaces.len() {
            let space = &self.spaces[index];
            if space.tag != request.tag || space.is_small() != request.small || space.reserved == 0 {
                continue;
            }
            let Some(spot) = self.find_in(index, request).filter(|spot| spot.work == 0) else { continue };
            if best.is_none_or(|(_, best)| spot.left < best.left) {
                best = Some((index, spot));
            }
        }
        best
    }

    /// Makes room for a chunk within the budget, and counts its memory as held. Returns its size.
    fn expect_chunk(&mut self, request: Request) -> Result<u64, Shortage> {
        let budget = self.ledger.budget();
        let size = request.size.checked_next_multiple_of(self.page);
        let size = size
            .filter(|size| *size <= budget.0)
            .ok_or(Shortage::Memory(ExhaustedResource::Budget(budget)))?;
        self.space_index(self.vacant_space())?;
        while self.held() > budget.0 - size {
            if !self.release_a_chunk(self.held() - (budget.0 - size)) {
                return Err(Shortage::Memory(ExhaustedResource::Budget(budget)));
            }
        }
        if !self.expect(size / self.page) {
            // Another thread has lowered it since.
            return Err(Shortage::Memory(ExhaustedResource::Budget(budget)));
        }
        self.calls.create += 1;
        self.calls.other += u64::from(self.settings.scrub);
        Ok(size)
    }

    /// Frees the addresses of a space, and plain memory, once the core is unlocked.
    pub(crate) fn let_go(&mut self, space: usize) {
        self.calls.other += 1;
        if self.leaving.is_empty() {
            self.ongoing.begin();
        }
        self.leaving.extend(self.spaces[space].take_region().map(Chunk::new));
    }

    /// Returns the place of the next space in the list.
    pub(crate) fn vacant_space(&self) -> usize {
        self.spaces.iter().position(|space| space.reserved == 0).unwrap_or(self.spaces.len())
    }

    /// Adds a chunk, whose memory is free. It stays in `new` if the pool has too many. Does nothing if the chunk was added before.
    pub(crate) fn add_chunk(&mut self, new: &mut NewChunk<'_, B>) -> Result<(), Shortage> {
        if new.chunk.is_none() {
            return Ok(());
        }
        let place = self.vacant_space();
        let index = self.space_index(place)?;
        let Some(region) = new.chunk.take().and_then(Chunk::into_region) else { return Ok(()) };
        let NewChunk { request, pages, .. } = new;
        self.coming -= std::mem::take(pages);
        let count = (region.reserved().0 / self.page) as usize;
        let group = if request.small { Group::SMALL } else { Group::MIXED };
        let mut space = Space::new(index, request.tag, region, self.page, self.settings.scrub, group);
        for page in 0..count {
            let frame = self.frames.insert(None, request.tag);
            space.add_page(&mut self.frames, page, frame);
            self.frames.release(frame);
        }
        self.put_space(place, space);
        self.note();
        Ok(())
    }

    /// Releases chunks that no work uses, until no more than `keep` bytes are free. Returns the size of the released memory.
    pub(crate) fn trim_chunks(&mut self, keep: u64) -> Bytes {
        let before = self.held();
        let excess = |core: &Self| (core.frames.free() as u64 * core.page).saturating_sub(keep);
        while excess(self) > 0 && self.release_a_chunk(excess(self)) {}
        self.note();
        Bytes(before - self.held())
    }

    /// Releases a chunk without blocks that no work uses: the smallest of at least `wanted` bytes, or the largest. Its memory is free
    /// once the core is unlocked. Returns false if there is none.
    fn release_a_chunk(&mut self, wanted: u64) -> bool {
        let pages = wanted.div_ceil(self.page) as usize;
        let is_idle = |(_, space): &(usize, &Space<B>)| {
            !space.pages.is_empty()
                && space.pages.iter().all(|page| page.live == 0 && self.is_idle(page.frame))
        };
        let order = |(_, space): &(usize, &Space<B>)| match space.pages.len() {
            count if count >= pages => (false, count),
            count => (true, usize::MAX - count),
        };
        let chosen = self.spaces.iter().enumerate().filter(is_idle).min_by_key(order);
        let Some((index, _)) = chosen else { return false };
        self.let_go(index);
        let Self { spaces, frames, .. } = self;
        let space = &mut spaces[index];
        for page in std::mem::take(&mut space.pages) {
            frames.claim(page.frame);
            frames.at(page.frame).mapped.clear();
            frames.remove(page.frame);
        }
        (space.reserved, space.mapped) = (0, 0);
        true
    }
}

/// A chunk for a request, which no space has yet. Its memory counts as held.
#[derive(Debug)]
pub(crate) struct NewChunk<'a, B: Backend> {
    inner: &'a Inner<B>,
    request: Request,
    chunk: Option<Chunk<B>>,
    /// The number of pages that the core counts as coming.
    pages: u64,
}

impl<'a, B: Backend> NewChunk<'a, B> {
    /// Allocates a chunk for a request. If memory is short, releases chunks without a block first.
    pub(crate) fn allocate(inner: &'a Inner<B>, request: Request) -> Result<Self, Shortage> {
        let mut core = inner.core(OPERATION)?;
        let size = core.expect_chunk(request)?;
        let (backend, settings) = (core.backend.clone(), core.settings.clone());
        let (page, name) = (core.page, core.tags.get(request.tag).name.clone());
        let mut new = Self { inner, request, chunk: None, pages: size / page };
        drop(core);
        loop {
            let builder = Region::builder(&backend).memory(settings.memory).tag(&*name);
            let region = builder.alignment(Bytes(page.max(request.alignment))).build();
            match region.and_then(|region| fill(region, Bytes(size), settings.scrub)) {
                Ok(region) => {
                    pool_memory::chunk_allocated(region.range());
                    new.chunk = Some(Chunk::new(inner.own(region)));
                    return Ok(new);
                }
                Err(error) if !error.is_out_of_memory() => return Err(error.into()),
                Err(error) => {
                    let mut core = inner.core(OPERATION)?;
                    if !core.release_a_chunk(size) {
                        return Err(Shortage::Memory(ExhaustedResource::Driver(error)));
                    }
                    core.calls.create += 1;
                }
            }
        }
    }
}

/// Makes a plain allocation, with zeros if memory of other tags must not be seen.
fn fill<B: Backend>(mut region: Region<B>, size: Bytes, scrub: bool) -> Result<Region<B>> {
    region.grow_to(size)?;
    if scrub {
        region.fill(Bytes::ZERO, size, 0)?;
    }
    Ok(region)
}

impl<B: Backend> Drop for NewChunk<'_, B> {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        // It fails in a forked child alone, where nothing uses the pool.
        if let Ok(mut core) = self.inner.core(OPERATION) {
            core.coming -= self.pages;
        }
    }
}
