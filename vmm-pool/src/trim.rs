//! Returning free memory to the driver.

use crate::Pool;
use crate::core::Core;
use crate::frames::{FrameIndex, PageAddress};
use crate::space::unmap_runs;
use gpu_vmm_core::extend::{event, span};
use gpu_vmm_core::{Backend, Bytes, Error, Operation, Result};

impl<B: Backend> Pool<B> {
    /// Returns free memory to the driver until the pool keeps no more than `keep` of it. Returns the size of the released
    /// memory. Memory in thread caches counts as free. Waits for the streams that used the memory, and for the devices only
    /// if no event covers the last frees of a stream. Memory that a capturing stream has used stays.
    ///
    /// HIP 7.1 and 7.2 keep memory as long as addresses are reserved that it was mapped at. On these versions, released
    /// memory is not available elsewhere until other memory is mapped at the addresses, or the pool ends.
    ///
    /// # Errors
    ///
    /// The driver's error. Memory that was released before the error stays released.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        let (operation, inner) = (Operation::Trim, &self.owner.inner);
        self.owner.settle(operation, |_, _| true)?;
        inner.core_after_work(operation)?.trim(keep.0)
    }
}

impl<B: Backend> Core<B> {
    /// Records owed events behind a free, and releases free memory above the limit of the settings and above the budget, as far as the
    /// work on it is done.
    pub(crate) fn end_free(&mut self) {
        self.streams.mark_owed();
        self.keep_to_limit();
    }

    fn keep_to_limit(&mut self) {
        if self.settings.keep.0 == u64::MAX && self.held() <= self.settings.budget.0 {
            return;
        }
        let keep = self.settings.keep.0.min(self.free_within_budget());
        if self.frames.free() as u64 * self.page <= keep {
            return;
        }
        self.poll();
        if let Err(error) = self.trim(keep) {
            self.backend.drop_log().record(error);
        }
    }

    /// Releases free memory whose addresses no work uses any more, until no more than `keep` is left.
    pub(crate) fn trim(&mut self, keep: u64) -> Result<Bytes, Error> {
        span!(Trim, keep = keep);
        if self.settings.plain {
            return self.trim_chunks(keep);
        }
        self.settle();
        let most = (keep / self.page) as usize;
        let excess = self.frames.free().saturating_sub(most);
        let goes: Vec<_> =
            self.frames.free_ones().filter(|frame| self.is_idle(*frame)).take(excess).collect();
        self.unmap_frames(&goes)?;
        for frame in &goes {
            self.frames.claim(*frame);
            self.calls.other += 1;
            self.frames.remove(*frame);
        }
        if keep == 0 {
            self.release_spaces(|_| true)?;
            self.end_tags();
        }
        self.note();
        event!(DEBUG, "given back", pages = goes.len());
        Ok(Bytes(goes.len() as u64 * self.page))
    }

    /// Returns true if no work uses a frame, at any of its addresses.
    pub(crate) fn is_idle(&self, frame: FrameIndex) -> bool {
        self.frames.waiting(frame).count == 0
    }

    /// Unmaps frames from all of their addresses.
    pub(crate) fn unmap_frames(&mut self, frames: &[FrameIndex]) -> Result<(), Error> {
        let pages = frames.iter().flat_map(|frame| &self.frames.get(*frame).mapped).copied().collect();
        self.unmap_pages(pages)
    }

    /// Unmaps pages that no work uses any more, with one call per run of addresses.
    pub(crate) fn unmap_pages(&mut self, mut pages: Vec<PageAddress>) -> Result<(), Error> {
        pages.sort_unstable_by_key(|at| (at.space, at.page));
        for of_space in pages.chunk_by(|one, other| one.space == other.space) {
            let space = &mut self.spaces[usize::from(of_space[0].space)];
            let pages: Vec<_> = of_space.iter().map(|at| at.page as usize).collect();
            unmap_runs(space, &mut self.frames, &pages, &mut self.calls)?;
        }
        Ok(())
    }
}
