//! The memory of a device without virtual memory management: chunks, each of which is a plain allocation.
//!
//! A chunk is a space of one tag, with memory at all of its pages. A large block that no chunk has room for gets a chunk of its
//! size. Memory cannot move to other addresses, so only whole chunks without a block return to the driver.
#![allow(unsafe_code)]

use crate::core::{Core, Request, Shortage};
use crate::error::OutOf;
use crate::space::{Space, Spot};
use crate::stream_order::Turn;
use gpu_vmm_core::extend::{check_virtual_memory, pool_memory};
use gpu_vmm_core::{Backend, Bytes, Operation, Region, Result, WaitFor};

impl<B: Backend> Core<B> {
    /// Refuses an operation that needs virtual memory management if the device has none.
    pub(crate) fn check_virtual(&self, operation: Operation) -> Result<()> {
        if !self.settings.plain {
            return Ok(());
        }
        check_virtual_memory(operation, &self.backend, self.settings.device)
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
        let space = self.add_chunk(request)?;
        let lost = Shortage::Addresses { used: 0, reserved: request.size };
        self.find(space, request).map(|spot| (space, spot)).ok_or(lost)
    }

    /// Finds the place in all chunks of the tag where the least memory is left over.
    fn find_in_chunks(&mut self, request: Request) -> Option<(usize, Spot)> {
        let mut best: Option<(u64, usize, Spot)> = None;
        for index in 0..self.spaces.len() {
            let space = &self.spaces[index];
            if space.tag != request.tag || space.is_small != request.small || space.reserved == 0 {
                continue;
            }
            let Some(spot) = self.find(index, request).filter(|spot| spot.work == 0) else { continue };
            let size = self.spaces[index].size_of(spot);
            if best.is_none_or(|(least, ..)| size < least) {
                best = Some((size, index, spot));
            }
        }
        best.map(|(_, index, spot)| (index, spot))
    }

    /// Allocates a chunk for a request. If memory is short, releases chunks without a block first.
    fn add_chunk(&mut self, request: Request) -> Result<usize, Shortage> {
        let budget = self.settings.budget;
        let size = request.size.checked_next_multiple_of(self.page);
        let size = size.filter(|size| *size <= budget.0).ok_or(Shortage::Memory(OutOf::Budget(budget)))?;
        while self.held() > budget.0 - size {
            if !self.release_a_chunk(self.held() - (budget.0 - size))? {
                return Err(Shortage::Memory(OutOf::Budget(budget)));
            }
        }
        let region = loop {
            match self.allocate(request, Bytes(size)) {
                Ok(region) => break region,
                Err(error) if !error.is_out_of_memory() => return Err(error.into()),
                Err(error) if !self.release_a_chunk(size)? => {
                    return Err(Shortage::Memory(OutOf::Driver(error)));
                }
                Err(_) => {}
            }
        };
        pool_memory::chunk_allocated(region.range());
        let vacant = self.spaces.iter().position(|space| space.reserved == 0);
        let place = vacant.unwrap_or(self.spaces.len());
        let index = self.space_index(place)?;
        let mut space = Space::new(index, request.tag, region, self.page, self.settings.scrub, request.small);
        for page in 0..(size / self.page) as usize {
            let frame = self.frames.insert(None, request.tag);
            space.add_page(&mut self.frames, page, frame);
            self.frames.release(frame, Turn::FREE);
        }
        match self.spaces.get_mut(place) {
            Some(vacant) => *vacant = space,
            None => self.spaces.push(space),
        }
        self.note();
        Ok(place)
    }

    /// Makes a plain allocation, with zeros if memory of other tags must not be seen.
    fn allocate(&mut self, request: Request, size: Bytes) -> Result<Region<B>> {
        self.calls.create += 1;
        let name = self.tags.get(request.tag).name.clone();
        let builder = Region::builder(&self.backend).on(self.settings.device).tag(name);
        let mut region = builder.alignment(Bytes(self.page.max(request.alignment))).build()?;
        region.grow_to(size)?;
        if self.settings.scrub {
            self.calls.other += 1;
            region.fill(Bytes::ZERO, size, 0)?;
        }
        Ok(region)
    }

    /// Releases chunks that no work uses, until no more than `keep` bytes are free. Returns the size of the released memory.
    pub(crate) fn trim_chunks(&mut self, keep: u64) -> Result<Bytes> {
        let before = self.held();
        let excess = |core: &Self| (core.frames.free() as u64 * core.page).saturating_sub(keep);
        while excess(self) > 0 && self.release_a_chunk(excess(self))? {}
        self.note();
        Ok(Bytes(before - self.held()))
    }

    /// Releases a chunk without blocks that no work uses: the smallest of at least `wanted` bytes, or the largest. Returns false if
    /// there is none.
    fn release_a_chunk(&mut self, wanted: u64) -> Result<bool> {
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
        let Some((index, _)) = chosen else { return Ok(false) };
        let Self { spaces, frames, calls, .. } = self;
        let space = &mut spaces[index];
        calls.other += 1;
        pool_memory::chunk_freed(space.range());
        // SAFETY: no block lies in the chunk, and the work on its memory is done.
        let done = unsafe { WaitFor::nothing() };
        let _ = space.region_mut(Operation::Trim)?.shrink_to(Bytes::ZERO, done)?;
        space.reserved = 0;
        for page in std::mem::take(&mut space.pages) {
            frames.claim(page.frame);
            frames.at(page.frame).mapped.clear();
            frames.remove(page.frame);
        }
        space.mapped = 0;
        Ok(true)
    }
}
