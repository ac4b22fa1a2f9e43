//! Blocks without memory that keep their addresses, by their tag.
#![allow(unsafe_code)] // says that work has been waited for

use crate::core::{Core, Shortage};
use crate::error::OutOf;
use crate::frames::{FrameIndex, LOST, NO_FRAME};
use crate::space::unmap_runs;
use crate::stream_order::Turn;
use crate::tags::Tag;
use crate::trace::span;
use crate::{Pool, PoolError};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, Error, Operation, RegionState, Result, WaitFor};
use gpu_vmm_sync::PoisonError;
use gpu_vmm_sync::atomic::Ordering;
use std::sync::Arc;

/// How often a suspension waits for what other threads free meanwhile.
const ROUNDS: usize = 64;

impl<B: Backend> Pool<B> {
    /// Gives the memory of all blocks with a tag back to the driver and keeps their addresses; their contents go to the
    /// store. Gives how much memory went; zero where they were suspended already.
    ///
    /// Waits as `done` says for what uses the blocks. Until [`Pool::resume`] nothing is allocated with the tag; blocks can
    /// be freed. The pool's other blocks stay as they are.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`], and those of [`Region::suspend`](gpu_vmm_core::Region::suspend). A tag has two ranges of
    /// addresses, for small blocks and for others; where the second fails, the first is resumed.
    pub fn suspend(&self, tag: &str, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Bytes> {
        let operation = Operation::Suspend;
        span!("suspend", tag = tag);
        let tag = self.tag_named(operation, tag)?;
        tag.suspended.store(true, Ordering::Release);
        let result = self.suspend_now(operation, &tag, store, done);
        let core = self.owner.inner.core(operation)?;
        // Another thread may have resumed it meanwhile, or failed to suspend it.
        tag.suspended.store(result.is_ok() || core.is_suspended(tag.index), Ordering::Release);
        result
    }

    /// Suspends what no more is allocated from. All waiting is done before the books are locked.
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
            // Copies that have begun are waited for, and none begins before the memory is gone.
            let _no_copies = tag.copies.write().unwrap_or_else(PoisonError::into_inner);
            let mut core = inner.core(operation)?;
            core.collect_pending();
            if core.is_idle_all(tag.index) {
                return core.suspend(tag.index, store);
            }
            waited?;
        }
        let reason = format!("blocks tagged {:?} are freed all the time; let that end first", tag.name);
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }

    /// Brings the memory of all blocks with a tag back, with their contents. Gives how much memory came; zero where they
    /// were not suspended.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`PoolError::OutOfMemory`] where the pool would hold more than its budget; and those of
    /// [`Region::resume`](gpu_vmm_core::Region::resume): where there is too little memory, what is not back yet stays
    /// suspended and its contents safe.
    pub fn resume(&self, tag: &str) -> Result<Bytes> {
        let operation = Operation::Resume;
        span!("resume", tag = tag);
        let (tag, inner) = (self.tag_named(operation, tag)?, &self.owner.inner);
        let mut core = inner.core(operation)?;
        let mut result = core.resume(&tag);
        if matches!(&result, Err(shortage) if shortage.is_memory()) {
            // What the pool keeps may be what is missing.
            drop(core);
            self.owner.settle(operation, |_, _| true)?;
            core = inner.core_after_work(operation)?;
            result = core.resume(&tag);
        }
        let missing = core.missing(tag.index);
        drop(core);
        result.map_err(|shortage| self.owner.tell(operation, shortage, missing, &tag))
    }

    /// Whether a tag is suspended, or on its way there or back.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn is_suspended(&self, tag: &str) -> Result<bool> {
        Ok(self.tag_named(Operation::QueryTag, tag)?.suspended.load(Ordering::Acquire))
    }

    /// How much memory the blocks of a tag lie in: what a [store](BackingStore) has to have room for.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn occupied(&self, tag: &str) -> Result<Bytes> {
        let operation = Operation::QueryTag;
        let tag = self.tag_named(operation, tag)?;
        self.owner.settle(operation, |index, _| index == tag.index)?;
        let core = self.owner.inner.core(operation)?;
        let pages = core.tags.spaces(tag.index).flat_map(|space| core.spaces[space].pages.iter());
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

    /// True if no work uses a tag's memory or addresses that is not its live blocks' own.
    fn is_idle_all(&self, tag: u16) -> bool {
        let pages = self.tags.spaces(tag).flat_map(|space| self.spaces[space].pages.iter());
        pages.filter(|page| page.is_mapped()).all(|page| {
            let mut elsewhere = self.frames.get(page.frame).mapped.iter().map(|at| self.page(*at));
            self.streams.is_done(page.turn)
                && self.streams.is_done(self.frames.turn(page.frame))
                && elsewhere.all(|page| self.streams.is_done(page.turn))
        })
    }

    /// Suspends a tag's memory, which nothing uses.
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
        // Free memory stays in the pool, behind other addresses or none.
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
        // The region is to be the only one that holds its memory.
        for (_, frame) in &frames {
            self.frames.at(*frame).memory = None;
        }
        // SAFETY: all work was waited for before, and what is queued since uses no block of a tag that is being suspended,
        // which is what the caller of `Pool::suspend` sees to.
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
                        // The region keeps what there may still be, out of use.
                        None => {
                            at.part_from(&mut self.frames, page, nothing);
                            self.frames.remove(frame);
                        }
                    }
                }
                Err(error)
            }
        }
    }

    /// Unmaps used frames from all addresses but those at which they are used.
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
        tag.suspended.store(false, Ordering::Release);
        self.note();
        Ok(total)
    }

    /// How much memory a tag is without.
    fn missing(&self, tag: u16) -> Bytes {
        let states = self.tags.spaces(tag).map(|space| self.spaces[space].region.state());
        states
            .map(|state| match state {
                RegionState::Suspended { memory, .. } => memory,
                RegionState::Active => Bytes::ZERO,
            })
            .sum()
    }

    /// Sees to it that so much more can be held within the budget.
    fn make_room(&mut self, memory: Bytes) -> Result<(), Shortage> {
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
            // What the pool keeps may be what is missing.
            Err(error) if error.is_out_of_memory() && self.frames.free() > 0 => {
                self.trim(0)?;
                self.spaces[index].region.resume()?
            }
            Err(error) => return Err(error),
        };
        let Self { spaces, frames, .. } = self;
        let space = &mut spaces[index];
        let mappings = space.region.mappings().map(|mapping| (mapping.offset, mapping.memory.clone()));
        for (offset, memory) in mappings.collect::<Vec<_>>() {
            let page = (offset.0 / space.page) as usize;
            let frame = frames.insert(memory, space.tag);
            space.note_mapped(frames, page, frame);
            if space.pages[page].live == 0 {
                frames.release(frame, Turn::FREE);
            }
        }
        Ok(resumed.memory)
    }
}
