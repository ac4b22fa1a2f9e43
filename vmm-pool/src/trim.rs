//! Returning free memory to the driver.

use crate::Pool;
use crate::core::Core;
use crate::frames::{FrameIndex, PageAddress};
use crate::mapping::{Claimed, Mapping};
use crate::owner::Owner;
use crate::shared::{CoreGuard, Inner};
use gpu_vmm_core::extend::{event, span};
use gpu_vmm_core::{Backend, Bytes, Operation, Result};

impl<B: Backend> Pool<B> {
    /// Returns free memory to the driver until the pool keeps no more than `keep` of it, of all [kinds](Pool::with_memory) together; the
    /// kind that was added last returns its memory first. Returns the size of the released memory. Memory in thread caches counts as
    /// free. Waits for the streams that used the memory, and for the devices only if no event covers the last frees of a stream. Memory
    /// that a capturing stream has used stays.
    ///
    /// HIP 7.1 and 7.2 keep memory as long as addresses are reserved that it was mapped at. On these versions, released
    /// memory is not available elsewhere until other memory is mapped at the addresses, or the pool ends.
    ///
    /// # Errors
    ///
    /// The driver's error. Memory that was released before the error stays released.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.owner.inner.process.check(Operation::Trim)?;
        let (mut keep, mut released) = (keep.0, Bytes::ZERO);
        // The kind that was added last gives way first: the others keep what they may.
        for owner in self.kinds.all() {
            let (kept, gone) = owner.trim(keep)?;
            keep = keep.saturating_sub(kept);
            released += gone;
        }
        Ok(released)
    }
}

impl<B: Backend> Owner<B> {
    /// Returns free memory to the driver as [`Pool::trim`] does. Returns what is still free, and what was released.
    fn trim(&self, keep: u64) -> Result<(u64, Bytes)> {
        let (operation, inner) = (Operation::Trim, &self.inner);
        self.settle(operation, |_, _| true)?;
        drop(inner.core_after_work(operation)?);
        let mapping = inner.mapping(operation)?;
        let (core, released) = mapping.trim(mapping.core()?, keep)?;
        Ok((core.frames.free() as u64 * core.page, released))
    }
}

impl<B: Backend> Core<B> {
    /// Records owed events behind a free. If the pool keeps more free memory than the limit of the settings or the budget allow, some
    /// is released as soon as the core is unlocked, as far as the work on it is done.
    #[inline]
    pub(crate) fn end_free(&mut self) {
        self.streams.mark_owed();
        self.trims |= self.most_free().is_some();
    }

    /// Returns the most free memory that the pool may keep, if it keeps more.
    #[inline]
    fn most_free(&self) -> Option<u64> {
        if self.settings.keep.0 == u64::MAX && !self.exceeds_budget() {
            return None;
        }
        let most = self.settings.keep.0.min(self.free_within_budget());
        (self.frames.free() as u64 * self.page > most).then_some(most)
    }

    /// Returns all addresses at which frames are mapped.
    fn addresses_of(&self, frames: &[FrameIndex]) -> Vec<PageAddress> {
        frames.iter().flat_map(|frame| &self.frames.get(*frame).mapped).copied().collect()
    }

    /// Returns true if no work uses a frame, at any of its addresses.
    pub(crate) fn is_idle(&self, frame: FrameIndex) -> bool {
        self.frames.waiting(frame).count == 0
    }
}

impl<B: Backend> Inner<B> {
    /// Releases free memory above the limit of the settings and above the budget.
    pub(crate) fn trim_to_limit(&self) -> Result<()> {
        let mapping = self.mapping(Operation::Trim)?;
        let mut core = mapping.core()?;
        core.poll();
        let Some(most) = core.most_free() else { return Ok(()) };
        mapping.trim(core, most).map(drop)
    }
}

impl<'a, B: Backend> Mapping<'a, B> {
    /// Releases free memory whose addresses no work uses any more, until no more than `keep` is left. Returns the size of the memory.
    pub(crate) fn trim(&self, mut core: CoreGuard<'a, B>, keep: u64) -> Result<(CoreGuard<'a, B>, Bytes)> {
        span!(Trim, keep = keep);
        if core.settings.plain {
            let released = core.trim_chunks(keep);
            return Ok((core, released));
        }
        core.settle();
        let excess = core.frames.free().saturating_sub((keep / core.page) as usize);
        let goes: Vec<_> =
            core.frames.free_ones().filter(|frame| core.is_idle(*frame)).take(excess).collect();
        goes.iter().for_each(|frame| core.frames.claim(*frame));
        let addresses = core.addresses_of(&goes);
        let mut claimed = Claimed { mapping: self, frames: goes, are_new: false };
        let mut core = self.unmap(core, addresses)?;
        let goes = std::mem::take(&mut claimed.frames);
        goes.iter().for_each(|frame| core.remove(*frame));
        if keep == 0 {
            core = self.release_spaces(core, |_| true)?.0;
            core.end_tags();
        }
        core.note();
        event!(DEBUG, "given back", pages = goes.len());
        let released = Bytes(goes.len() as u64 * core.page);
        Ok((core, released))
    }
}
