//! Mapping memory at addresses: a transaction that maps frames at the pages of a new block.
#![allow(unsafe_code)]

use super::{Page, Space};
use crate::DriverCalls;
use crate::frames::{FrameIndex, Frames, LOST, NO_FRAME};
use crate::stream_order::StreamIndex;
use gpu_vmm_core::{Access, Backend, Bytes, DeviceId, Operation, Result, WaitFor};

/// The pages of a part that contain no block yet.
#[derive(Debug)]
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
        if self.pages.len() < pages.end {
            self.pages.resize(pages.end, Page::NEW);
        }
        frames.begin_search();
        let mut gap = Gap { claimed: Vec::new(), missing: Vec::new() };
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

    /// Maps claimed frames at the missing pages: all of them, or none. No work may use the addresses any more.
    pub(crate) fn fill_gap(
        &mut self,
        frames: &mut Frames<B>,
        gap: &Gap,
        chosen: &[FrameIndex],
        devices: &[DeviceId],
        calls: &mut DriverCalls,
    ) -> Result<()> {
        let stale: Vec<_> =
            gap.missing.iter().copied().filter(|page| self.pages[*page].frame != NO_FRAME).collect();
        unmap_runs(self, frames, &stale, calls)?;
        let mut done = 0;
        if let Err(mut error) = self.map_and_grant(frames, gap, chosen, devices, calls, &mut done) {
            for (page, frame) in gap.missing.iter().zip(chosen).take(done) {
                self.note_mapped(frames, *page, *frame);
            }
            for run in gap.missing[..done].chunk_by(follow_each_other) {
                // A mapping that cannot be removed again may lack access.
                if let Err(undo) = unmap_runs(self, frames, run, calls) {
                    run.iter().for_each(|page| self.lose(frames, *page));
                    error = error.rollback_failed(undo);
                }
            }
            return Err(error);
        }
        for (page, frame) in gap.missing.iter().zip(chosen) {
            self.note_mapped(frames, *page, *frame);
        }
        Ok(())
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

    /// Returns true if the mapping at a page is known.
    pub(crate) fn is_sound(&self, page: usize) -> bool {
        self.region().is_some_and(|region| {
            region.mapping_at(self.offset_of(page)).is_some_and(|mapping| !mapping.poisoned)
        })
    }

    /// Notes that a page no longer has its frame, and gives the page `number`: [`NO_FRAME`] or [`LOST`].
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

    fn map_and_grant(
        &mut self,
        frames: &Frames<B>,
        gap: &Gap,
        chosen: &[FrameIndex],
        devices: &[DeviceId],
        calls: &mut DriverCalls,
        done: &mut usize,
    ) -> Result<()> {
        for (page, frame) in gap.missing.iter().zip(chosen) {
            if let Some(memory) = &frames.get(*frame).memory {
                calls.map += 1;
                let offset = self.offset_of(*page);
                self.region_mut(Operation::Map)?.map(offset, memory)?;
            }
            *done += 1;
        }
        for (first, count) in runs(&gap.missing) {
            self.grant(first, count, devices, calls)?;
        }
        Ok(())
    }

    /// Gives devices access to mapped pages.
    fn grant(
        &mut self,
        first: usize,
        count: usize,
        devices: &[DeviceId],
        calls: &mut DriverCalls,
    ) -> Result<()> {
        let (offset, length) = (self.offset_of(first), Bytes(count as u64 * self.page));
        devices.iter().try_for_each(|device| {
            calls.set_access += 1;
            self.region_mut(Operation::SetAccess)?.set_access(offset, length, *device, Access::ReadWrite)
        })
    }

    /// Gives devices access to everything that is mapped.
    pub(crate) fn grant_all(&mut self, devices: &[DeviceId], calls: &mut DriverCalls) -> Result<()> {
        let mapped = self.pages.iter().enumerate().filter(|(_, page)| page.is_mapped());
        let mapped: Vec<_> = mapped.map(|(index, _)| index).collect();
        runs(&mapped).try_for_each(|(first, count)| self.grant(first, count, devices, calls))
    }
}

/// Unmaps pages, which must be in order and without blocks, at addresses that no work uses any more.
pub(crate) fn unmap_runs<B: Backend>(
    space: &mut Space<B>,
    frames: &mut Frames<B>,
    pages: &[usize],
    calls: &mut DriverCalls,
) -> Result<()> {
    for (first, count) in runs(pages) {
        calls.unmap += 1;
        // SAFETY: the caller ensures that all work on these addresses is done.
        let done = unsafe { WaitFor::nothing() };
        let (offset, length) = (space.offset_of(first), Bytes(count as u64 * space.page));
        let result = space.region_mut(Operation::Unmap).and_then(|region| region.unmap(offset, length, done));
        for page in first..first + count {
            if result.is_ok() {
                space.part_from(frames, page, NO_FRAME);
            } else if !space.is_sound(page) {
                space.lose(frames, page);
            }
        }
        result?;
    }
    Ok(())
}

/// Returns the runs of consecutive pages, as the first page and their number.
fn runs(pages: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    pages.chunk_by(follow_each_other).map(|run| (run[0], run.len()))
}

fn follow_each_other(one: &usize, next: &usize) -> bool {
    one + 1 == *next
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_are_pages_that_follow_each_other() {
        let found: Vec<_> = super::runs(&[1, 2, 3, 7, 9, 10]).collect();
        assert_eq!(found, [(1, 3), (7, 1), (9, 2)]);
        assert_eq!(super::runs(&[]).count(), 0);
    }
}
