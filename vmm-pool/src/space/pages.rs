//! The pages of a space, as far as the core knows them: which frame is mapped where.

use super::{Page, Space};
use crate::frames::{FrameIndex, Frames, LOST};
use crate::stream_order::StreamIndex;
use gpu_vmm_core::Backend;

/// The pages of a part that contain no block yet.
#[derive(Debug, Default)]
pub(crate) struct Gap {
    /// The pages whose free frame has been claimed.
    claimed: Vec<usize>,
    /// The pages that need another frame.
    pub(crate) missing: Vec<usize>,
}

impl<B: Backend> Space<B> {
    /// Claims the free frames of a part, and returns the pages that need other frames.
    pub(crate) fn open_gap(
        &mut self,
        frames: &mut Frames<B>,
        (offset, size): (u64, u64),
        stream: StreamIndex,
    ) -> Gap {
        let pages = self.pages_of(offset, size);
        self.add_pages(pages.end);
        frames.begin_search();
        let mut gap = Gap::default();
        for page in pages {
            let at = self.pages[page];
            if at.live > 0 {
                continue;
            }
            if self.is_own(frames, &at, stream) {
                frames.claim(at.frame);
                gap.claimed.push(page);
            } else {
                gap.missing.push(page);
            }
        }
        gap
    }

    /// Releases the frames that [`Space::open_gap`] has claimed.
    pub(crate) fn close_gap(&self, frames: &mut Frames<B>, gap: &Gap) {
        for page in &gap.claimed {
            let frame = self.pages[*page].frame;
            frames.release(frame);
        }
    }

    /// Ensures that there is an entry for each page before `end`.
    pub(crate) fn add_pages(&mut self, end: usize) {
        if self.pages.len() < end {
            self.pages.resize(end, Page::NEW);
        }
    }

    /// Notes that a frame is mapped at a page.
    pub(crate) fn note_mapped(&mut self, frames: &mut Frames<B>, page: usize, frame: FrameIndex) {
        let at = &mut self.pages[page];
        at.frame = frame;
        frames.add_waiting(frame, at.waiting);
        self.mapped += 1;
        let address = self.address_of(page);
        frames.at(frame).mapped.push(address);
    }

    /// Takes a page out of use, because the memory mapped there is unknown.
    pub(crate) fn lose(&mut self, frames: &mut Frames<B>, page: usize) {
        self.part_from(frames, page, LOST);
    }

    /// Returns true if a page of a part is out of use.
    pub(crate) fn is_lost(&self, offset: u64, size: u64) -> bool {
        self.pages_of(offset, size).any(|page| self.page_at(page).frame == LOST)
    }

    /// Notes that a page no longer has its frame, and gives the page `number`: [`NO_FRAME`](crate::frames::NO_FRAME) or [`LOST`].
    pub(crate) fn part_from(&mut self, frames: &mut Frames<B>, page: usize, number: FrameIndex) {
        let address = self.address_of(page);
        let at = &mut self.pages[page];
        if at.is_mapped() {
            frames.at(at.frame).mapped.retain(|one| *one != address);
            // Work at the addresses of a lost page may still use the memory.
            if number == LOST && at.waiting.count > 0 {
                frames.note_lost(address, at.frame);
            } else {
                frames.change_waiting(at.frame, at.waiting.count, 0);
            }
            self.mapped -= 1;
        }
        at.frame = number;
        if number == LOST {
            self.lost_end = self.lost_end.max((page as u64 + 1) * self.page);
        }
    }
}
