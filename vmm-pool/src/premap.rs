//! Memory that is mapped in advance: behind the highest large block, where the pool grows.

use crate::core::Core;
use crate::shared::Inner;
use crate::stream_order::{CLEAN, Turn};
use crate::supply::Chosen;
use gpu_vmm_core::{Backend, Error};
use gpu_vmm_premap::extend::{PremapWork, Step};

/// The number of pages that one step maps. Requests for memory wait for the step.
const STEP: usize = 8;

impl<B: Backend> PremapWork for Inner<B> {
    fn step(&self) -> Step {
        // Not `Done`: most holders of the lock do not ask for more work when they release it.
        let Some(mut core) = self.try_core() else { return Step::Busy };
        match core.premap() {
            Ok(true) => Step::More,
            Ok(false) => Step::Done,
            // A request that needs the memory meets the same error, and reports it.
            Err(_) => Step::Failed,
        }
    }
}

impl<B: Backend> Core<B> {
    /// Maps some pages behind the highest block of a tag. Returns false if there is nothing left to do.
    fn premap(&mut self) -> Result<bool, Error> {
        for space in 0..self.spaces.len() {
            let tag = self.spaces[space].tag;
            if self.spaces[space].is_small || self.check_active(tag).is_err() {
                continue;
            }
            let pages = self.spaces[space].pages_to_premap(self.settings.premap.0);
            let room = self.settings.budget.0.saturating_sub(self.held()) / self.page;
            let count = pages.len().min(STEP).min(usize::try_from(room).unwrap_or(STEP));
            if count > 0 {
                self.map_fresh(space, pages.start, count, tag)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Maps new memory at pages that have none, and leaves it free.
    fn map_fresh(&mut self, space: usize, first: usize, count: usize, tag: u16) -> Result<(), Error> {
        let part = (first as u64 * self.page, count as u64 * self.page);
        let gap = self.spaces[space].open_gap(&mut self.frames, &self.streams, part, CLEAN);
        let mut chosen = Chosen::default();
        let created = gap.missing.iter().try_for_each(|_| self.create(tag, &mut chosen));
        let Self { spaces, frames, settings, calls, .. } = self;
        let result = created
            .and_then(|()| spaces[space].fill_gap(frames, &gap, &chosen.frames, &settings.access, calls));
        match result {
            Ok(()) => chosen.frames.iter().for_each(|frame| self.frames.release(*frame, Turn::FREE)),
            Err(_) => self.give_up(&chosen),
        }
        self.spaces[space].close_gap(&mut self.frames, &gap);
        self.note();
        result
    }
}
