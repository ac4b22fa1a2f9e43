//! Suspension: the blocks of a tag keep their addresses while their memory returns to the driver.
#![allow(unsafe_code)] // promises that work has been waited for

use crate::core::{Core, Shortage};
use crate::error::OutOf;
use crate::frames::{FrameIndex, LOST, NO_FRAME};
use crate::space::unmap_runs;
use crate::stream_order::Turn;
use crate::tags::Tag;
use crate::{Pool, PoolError};
use gpu_vmm_core::extend::span;
use gpu_vmm_core::{
    Backend, BackingStore, Bytes, Detail, DeviceId, Error, Operation, RegionState, Result, WaitFor,
};
use gpu_vmm_premap::sync::PoisonError;
use std::sync::Arc;

/// The number of times that a suspension waits for blocks that other threads free meanwhile.
const ROUNDS: usize = 64;

impl<B: Backend> Pool<B> {
    /// Copies the contents of all blocks with a tag to `store`, returns their memory to the driver, and keeps their
    /// addresses. Returns the size of the memory; zero if the blocks were suspended already.
    ///
    /// Waits for the work on the blocks as `done` says. Until [`Pool::resume`], no block is allocated with the tag; blocks
    /// can be freed. The pool's other blocks stay as they are.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`Unsupported`](gpu_vmm_core::Detail::Unsupported) on a device without virtual memory management;
    /// and those of [`Region::suspend`](gpu_vmm_core::Region::suspend). A tag has two ranges of
    /// addresses, for small blocks and for others; if the second one fails, the first one is resumed.
    pub fn suspend(&self, tag: &str, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Bytes> {
        let operation = Operation::Suspend;
        let tag = self.tag_named(operation, tag)?;
        self.owner.inner.core(operation)?.check_virtual(operation)?;
        span!(Suspend, tag = &*tag.name);
        tag.set_suspended(true);
        let result = self.suspend_now(operation, &tag, store, done);
        let core = self.owner.inner.core(operation)?;
        // Another thread may have resumed the tag meanwhile, or failed to suspend it.
        tag.set_suspended(result.is_ok() || core.is_suspended(tag.index));
        result
    }

    /// Suspends a tag from which nothing is allocated any more. All waiting ends before the core is locked.
    fn suspend_now(
        &self,
        operation: Operation,
        tag: &Tag,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
    ) -> Result<Bytes> {
        let inner = &self.owner.inner;
        self.owner.settle(operation, |index, _| index == tag.index)?;
        let backend = inner.core(operation)?.backend.clone();
        done.wait(&backend, || std::iter::once(self.owner.device))?;
        // Blocks that other threads free meanwhile are waited for as well.
        for _ in 0..ROUNDS {
            let waited = inner.wait_for_streams(operation);
            // Waits for copies that have begun. No other copy begins before the memory has been suspended.
            let _no_copies = tag.copies.write().unwrap_or_else(PoisonError::into_inner);
            let mut core = inner.core(operation)?;
            core.collect_pending();
            if core.is_idle_all(tag.index) {
                return core.suspend(tag.index, store);
            }
            waited?;
        }
        let reason =
            format!("other threads free blocks tagged {:?} all the time; stop them and try again", tag.name);
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }

    /// Restores the memory of all blocks with a tag, with their contents. Returns the size of the memory; zero if the blocks
    /// were not suspended.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`PoolError::OutOfMemory`] if the pool would exceed its budget; and those of
    /// [`Region::resume`](gpu_vmm_core::Region::resume). If there is too little memory, the blocks that are not restored yet
    /// stay suspended and their contents are safe.
    pub fn resume(&self, tag: &str) -> Result<Bytes> {
        let operation = Operation::Resume;
        let (tag, inner) = (self.tag_named(operation, tag)?, &self.owner.inner);
        span!(Resume, tag = &*tag.name);
        let mut core = inner.core(operation)?;
        let mut result = core.resume(&tag);
        if matches!(&result, Err(shortage) if shortage.is_memory()) {
            // Free memory that the pool keeps may suffice.
            drop(core);
            self.owner.settle(operation, |_, _| true)?;
            core = inner.core_after_work(operation)?;
            result = core.resume(&tag);
        }
        let missing = core.missing(tag.index);
        drop(core);
        result.map_err(|shortage| self.owner.tell(operation, shortage, missing, &tag))
    }

    /// Returns true if a tag is suspended, or is being suspended or resumed.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn is_suspended(&self, tag: &str) -> Result<bool> {
        Ok(self.tag_named(Operation::QueryTag, tag)?.is_suspended())
    }

    /// Returns the size of the pages that contain blocks of a tag: a [store](BackingStore) needs this much room.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn occupied(&self, tag: &str) -> Result<Bytes> {
        let operation = Operation::QueryTag;
        let tag = self.tag_named(operation, tag)?;
        self.owner.settle(operation, |index, _| index == tag.index)?;
        let core = self.owner.inner.core(operation)?;
        let own = core.spaces.iter().filter(|space| space.tag == tag.index);
        let pages = own.flat_map(|space| space.pages.iter());
        Ok(Bytes(pages.filter(|page| page.is_used()).count() as u64 * core.page))
    }

    fn tag_named(&self, operation: Operation, name: &str) -> Result<Arc<Tag>> {
        let core = self.owner.inner.core(operation)?;
        core.tags.find(name).ok_or_else(|| {
            let there: Vec<_> = core.tags.iter().map(|tag| format!("{:?}", tag.name)).collect();
            Error::of_extension(operation, PoolError::NoSuchTag { tag: name.into(), there: there.join(", ") })
        })
    }
}

impl<B: Backend> Core<B> {
    pub(crate) fn is_suspended(&self, tag: u16) -> bool {
        self.tags.spaces(tag).any(|space| self.space_is_suspended(space))
    }

    fn space_is_suspended(&self, space: usize) -> bool {
        matches!(self.spaces[space].region.state(), RegionState::Suspended { .. })
    }

    /// Returns true if no work uses a tag's memory or addresses, apart from the work of its live blocks.
    fn is_idle_all(&self, tag: u16) -> bool {
        let pages = self.tags.spaces(tag).flat_map(|space| self.spaces[space].pages.iter());
        pages.filter(|page| page.is_mapped()).all(|page| {
            let mut elsewhere = self.frames.get(page.frame).mapped.iter().map(|at| self.page(*at));
            self.streams.is_done(page.turn)
                && self.streams.is_done(self.frames.turn(page.frame))
                && elsewhere.all(|page| self.streams.is_done(page.turn))
        })
    }

    /// Suspends a tag's memory, which no work uses.
    fn suspend(&mut self, tag: u16, store: &BackingStore<B>) -> Result<Bytes, Error> {
        let mut total = Bytes::ZERO;
        let mut gone = Vec::new();
        for space in self.tags.spaces(tag) {
            match self.suspend_space(space, store) {
                Ok(memory) => {
                    total += memory;
                    gone.push(space);
                }
                Err(error) => {
                    for space in gone {
                        if let Err(undo) = self.resume_space(space) {
                            return Err(error.rollback_failed(undo));
                        }
                    }
                    return Err(error);
                }
            }
        }
        self.note();
        Ok(total)
    }

    fn suspend_space(&mut self, space: usize, store: &BackingStore<B>) -> Result<Bytes, Error> {
        if self.space_is_suspended(space) {
            return Ok(Bytes::ZERO);
        }
        // Free memory stays in the pool, mapped at other addresses or at none.
        let pages = self.spaces[space].pages.iter().enumerate();
        let (used, free): (Vec<_>, Vec<_>) = pages
            .filter(|(_, page)| page.frame != NO_FRAME)
            .map(|(index, page)| (index, *page))
            .partition(|(_, page)| page.is_used());
        let free: Vec<_> = free.into_iter().map(|(index, _)| index).collect();
        let Self { spaces, frames, calls, .. } = self;
        unmap_runs(&mut spaces[space], frames, &free, calls)?;
        let frames: Vec<(usize, FrameIndex)> =
            used.iter().map(|(index, page)| (*index, page.frame)).collect();
        self.unmap_elsewhere(space, &frames)?;
        // The region must be the only holder of its memory.
        for (_, frame) in &frames {
            self.frames.at(*frame).memory = None;
        }
        // SAFETY: all work was waited for before. No work that is queued since uses a block of a tag that is being suspended:
        // the caller of `Pool::suspend` ensures that.
        let done = unsafe { WaitFor::nothing() };
        match self.spaces[space].region.suspend(store, done) {
            Ok(suspended) => {
                for (page, frame) in frames {
                    self.spaces[space].part_from(&mut self.frames, page, NO_FRAME);
                    self.frames.remove(frame);
                }
                Ok(suspended.memory)
            }
            Err(error) => {
                let nothing = if self.space_is_suspended(space) { NO_FRAME } else { LOST };
                for (page, frame) in frames {
                    let at = &mut self.spaces[space];
                    let mapping = at.region.mapping_at(at.offset_of(page));
                    match mapping.filter(|mapping| !mapping.poisoned) {
                        Some(mapping) => self.frames.at(frame).memory = Some(mapping.memory.clone()),
                        // The region keeps any memory that is left there, and does not use it again.
                        None => {
                            at.part_from(&mut self.frames, page, nothing);
                            self.frames.remove(frame);
                        }
                    }
                }
                self.withdraw_lost(space);
                Err(error)
            }
        }
    }

    /// Unmaps used frames from all addresses except those of their blocks.
    fn unmap_elsewhere(&mut self, space: usize, used: &[(usize, FrameIndex)]) -> Result<(), Error> {
        let mut pages = Vec::new();
        for (page, frame) in used {
            let here = self.spaces[space].address_of(*page);
            pages.extend(self.frames.get(*frame).mapped.iter().filter(|at| **at != here));
        }
        self.unmap_pages(pages)
    }

    fn resume(&mut self, tag: &Tag) -> Result<Bytes, Shortage> {
        self.make_room(self.missing(tag.index))?;
        let mut total = Bytes::ZERO;
        for space in self.tags.spaces(tag.index) {
            total += self.resume_space(space)?;
        }
        if tag.is_suspended() {
            // Devices that were allowed meanwhile have no access yet.
            let devices = self.settings.access[1..].to_vec();
            self.tags.spaces(tag.index).try_for_each(|space| self.allow(space, &devices))?;
        }
        tag.set_suspended(false);
        self.note();
        Ok(total)
    }

    /// Returns the size of the memory that a tag lacks while it is suspended.
    fn missing(&self, tag: u16) -> Bytes {
        let states = self.tags.spaces(tag).map(|space| self.spaces[space].region.state());
        states
            .map(|state| match state {
                RegionState::Suspended { memory, .. } => memory,
                RegionState::Active => Bytes::ZERO,
            })
            .sum()
    }

    /// Ensures that the pool can hold `memory` more within its budget.
    fn make_room(&mut self, memory: Bytes) -> Result<(), Shortage> {
        // A pool may hold more than a budget that was set later.
        if memory.is_zero() {
            return Ok(());
        }
        let budget = self.settings.budget;
        let shortage = Shortage::Memory(OutOf::Budget(budget));
        let Some(most) = budget.0.checked_sub(memory.0) else { return Err(shortage) };
        if self.held() > most {
            let used = self.held() - self.frames.free() as u64 * self.page;
            self.trim(most.saturating_sub(used))?;
        }
        if self.held() > most { Err(shortage) } else { Ok(()) }
    }

    fn resume_space(&mut self, index: usize) -> Result<Bytes, Error> {
        if !self.space_is_suspended(index) {
            return Ok(Bytes::ZERO);
        }
        let space = &mut self.spaces[index];
        let resumed = match space.region.resume() {
            Ok(resumed) => resumed,
            // Free memory that the pool keeps may suffice.
            Err(error) if error.is_out_of_memory() && self.frames.free() > 0 => {
                self.trim(0)?;
                self.spaces[index].region.resume()?
            }
            Err(error) => return Err(error),
        };
        let space = &mut self.spaces[index];
        let frames = &mut self.frames;
        let mappings = space.region.mappings().map(|mapping| (mapping.offset, mapping.memory.clone()));
        for (offset, memory) in mappings.collect::<Vec<_>>() {
            let page = (offset.0 / space.page) as usize;
            let frame = frames.insert(Some(memory), space.tag);
            space.note_mapped(frames, page, frame);
            if space.pages[page].live == 0 {
                frames.release(frame, Turn::FREE);
            }
        }
        Ok(resumed.memory)
    }

    /// Gives devices access to everything that is mapped in a space. Pages whose access is unknown after an error are not used again.
    pub(crate) fn allow(&mut self, space: usize, devices: &[DeviceId]) -> Result<()> {
        let result = self.spaces[space].grant_all(devices, &mut self.calls);
        if result.is_err() {
            self.lose_unsound(space);
        }
        result
    }
}
