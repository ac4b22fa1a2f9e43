//! Regions that have left their spaces, so that a thread can suspend, resume or move them without the core.
//!
//! Their pages have no frames meanwhile: no request can take the memory, and no call unmaps it. The frames stay in use, so that
//! the memory counts as held until it is gone. Blocks can be freed: their pages note it, and the memory becomes free when the
//! region is back.

use crate::core::Core;
use crate::frames::{FrameIndex, NO_FRAME, PageAddress};
use crate::shared::Inner;
use crate::space::Space;
use gpu_vmm_core::{
    Backend, Bytes, DeviceId, Grant, OffsetRange, Operation, PhysicalMemory, Region, RegionState,
};

/// A region outside its space.
#[derive(Debug)]
pub(crate) struct Part<B: Backend> {
    space: usize,
    pub(crate) region: Region<B>,
    /// The pages that had a frame, and their frames.
    frames: Vec<(usize, FrameIndex)>,
}

impl<B: Backend> Part<B> {
    pub(crate) fn is_suspended(&self) -> bool {
        self.region.state() != RegionState::Active
    }

    /// Returns the parts of the region with memory of a device to which some devices lack access.
    pub(crate) fn lacks(
        &self,
        owner: DeviceId,
        access: &[Grant],
    ) -> impl Iterator<Item = (OffsetRange, Grant)> {
        let own = self.region.mappings().filter(move |at| !at.poisoned && at.memory.device() == owner);
        own.flat_map(move |at| {
            let range = OffsetRange { offset: at.offset, length: at.length };
            let lacks =
                move |grant: &Grant| !grant.access.is_within(self.region.access(at.offset, grant.device));
            access.iter().copied().filter(lacks).map(move |grant| (range, grant))
        })
    }

    /// Returns the size of the memory that the region lacks while it is suspended.
    pub(crate) fn missing(&self) -> Bytes {
        missing(&self.region)
    }
}

fn missing<B: Backend>(region: &Region<B>) -> Bytes {
    match region.state() {
        RegionState::Suspended { memory, .. } => memory,
        RegionState::Active => Bytes::ZERO,
    }
}

/// Regions outside their spaces. They return when this is dropped, whatever happened meanwhile.
#[derive(Debug)]
pub(crate) struct Away<'a, B: Backend> {
    inner: &'a Inner<B>,
    operation: Operation,
    pub(crate) parts: Vec<Part<B>>,
    /// The number of pages that the core counts as coming.
    coming: u64,
    /// True if the core knows that memory is about to be free.
    frees: bool,
}

impl<'a, B: Backend> Away<'a, B> {
    pub(crate) const fn new(inner: &'a Inner<B>, operation: Operation) -> Self {
        Self { inner, operation, parts: Vec::new(), coming: 0, frees: false }
    }

    /// Takes the active regions of a tag out of the core, if [`Core::to_unmap`] has found nothing in the same hold.
    pub(crate) fn take_active(&mut self, core: &mut Core<B>, tag: u16) {
        for space in core.tags.spaces(tag) {
            if !core.spaces[space].is_suspended() {
                self.parts.extend(core.detach(space));
            }
        }
    }

    /// Takes the active regions of a tag out as [`take_active`](Self::take_active) does, to suspend them: their memory is about to be free.
    pub(crate) fn take_to_suspend(&mut self, core: &mut Core<B>, tag: u16) {
        self.take_active(core, tag);
        self.frees = true;
        core.ongoing.begin();
    }

    /// Takes the suspended regions of a tag out of the core, which [expects](Core::expect) `expected` for them already. They may need
    /// less, if regions without blocks have ended to make room.
    pub(crate) fn take_suspended(&mut self, core: &mut Core<B>, tag: u16, expected: Bytes) {
        for space in core.tags.spaces(tag) {
            if core.spaces[space].is_suspended() {
                let region = core.spaces[space].take_region();
                self.parts.extend(region.map(|region| Part { space, region, frames: Vec::new() }));
            }
        }
        self.coming = expected.0 / core.page;
    }

    /// Notes that no memory is about to be free: threads that need some must not wait for this one.
    pub(crate) fn give_up(&mut self) {
        if std::mem::take(&mut self.frees)
            && let Ok(mut core) = self.inner.core(self.operation)
        {
            core.ongoing.end();
            drop(core);
            self.inner.wake();
        }
    }

    /// Puts the regions back, with the memory that they have now.
    pub(crate) fn put_back(&mut self, core: &mut Core<B>) {
        core.coming -= std::mem::take(&mut self.coming);
        if std::mem::take(&mut self.frees) {
            core.ongoing.end();
        }
        self.parts.drain(..).for_each(|part| core.attach(part));
        core.note();
    }
}

impl<B: Backend> Drop for Away<'_, B> {
    fn drop(&mut self) {
        if self.parts.is_empty() && !self.frees && self.coming == 0 {
            return;
        }
        // It fails in a forked child alone, where nothing uses the pool.
        if let Ok(mut core) = self.inner.core(self.operation) {
            self.put_back(&mut core);
        }
    }
}

impl<B: Backend> Core<B> {
    /// Returns the size of the memory that a tag lacks while it is suspended.
    pub(crate) fn missing(&self, tag: u16) -> Bytes {
        self.tags.spaces(tag).filter_map(|space| self.spaces[space].region()).map(missing).sum()
    }

    /// Returns the size of the memory that all suspended tags lack. What a thread restores counts as held.
    pub(crate) fn suspended(&self) -> Bytes {
        self.spaces.iter().filter_map(Space::region).map(missing).sum()
    }

    /// Returns what must be unmapped before the regions of some tags are the only holders of their memory: pages without blocks, whose
    /// memory stays in the pool, and used frames at all addresses except their blocks' own.
    pub(crate) fn to_unmap(&self, tags: &[u16]) -> Vec<PageAddress> {
        let mut pages = Vec::new();
        for index in tags.iter().flat_map(|tag| self.tags.spaces(*tag)) {
            let space = &self.spaces[index];
            for (page, at) in space.pages.iter().enumerate() {
                let here = space.address_of(page);
                if at.is_used() {
                    pages.extend(self.frames.get(at.frame).mapped.iter().filter(|other| **other != here));
                } else if at.frame != NO_FRAME {
                    pages.push(here);
                }
            }
        }
        pages.sort_unstable_by_key(|at| (at.space, at.page));
        pages.dedup();
        pages
    }

    /// Takes an active region out of its space.
    fn detach(&mut self, space: usize) -> Option<Part<B>> {
        let region = self.spaces[space].take_region()?;
        let pages = self.spaces[space].pages.iter().enumerate().filter(|(_, page)| page.is_used());
        let frames: Vec<(usize, FrameIndex)> = pages.map(|(index, page)| (index, page.frame)).collect();
        for (page, frame) in &frames {
            self.spaces[space].part_from(&mut self.frames, *page, NO_FRAME);
            self.frames.at(*frame).memory = None;
        }
        Some(Part { space, region, frames })
    }

    /// Puts a region back. Its pages get frames for the memory that is mapped in it now.
    fn attach(&mut self, part: Part<B>) {
        let is_suspended = part.is_suspended();
        let Part { space: index, region, frames: before } = part;
        let space = &mut self.spaces[index];
        for (page, frame) in &before {
            // A move that failed, as its rollback did, leaves memory on another device.
            let is_own = |memory: &PhysicalMemory<B>| memory.device() == self.settings.memory.device;
            let mapping = region.mapping_at(space.offset_of(*page));
            let mapping = mapping.filter(|mapping| !mapping.poisoned && is_own(mapping.memory));
            match mapping {
                Some(mapping) if !is_suspended => {
                    self.frames.at(*frame).memory = Some(mapping.memory.clone());
                    space.note_mapped(&mut self.frames, *page, *frame);
                }
                _ => {
                    // The region keeps any memory that is left there, and does not use it again.
                    if !is_suspended {
                        space.lose(&mut self.frames, *page);
                    }
                    self.frames.remove(*frame);
                }
            }
        }
        let mapped = region.mappings().filter(|mapping| !is_suspended && !mapping.poisoned);
        for mapping in mapped {
            let page = (mapping.offset.0 / space.page) as usize;
            if space.pages[page].frame == NO_FRAME {
                let frame = self.frames.insert(Some(mapping.memory.clone()), space.tag);
                space.note_mapped(&mut self.frames, page, frame);
            }
            let at = space.pages[page];
            if at.is_mapped() && at.live == 0 {
                self.frames.release(at.frame);
            }
        }
        space.put_region(region);
        self.withdraw_lost(index);
    }
}
