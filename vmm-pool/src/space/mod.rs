//! A range of addresses from which blocks are cut, and the memory behind it.
//!
//! | file | subject |
//! |---|---|
//! | `bins` | free ranges by their size |
//! | `ranges` | which addresses are taken; nothing is known of memory there |
//! | `search` | where a block goes: the best fit that needs the least mapping |
//! | `supply` | memory behind addresses, as a transaction |

mod bins;
mod ranges;
mod search;
mod supply;

pub(crate) use bins::UNIT;
pub(crate) use ranges::{RangeIndex, rounded};
pub(crate) use search::{Spot, Wanted};
pub(crate) use supply::unmap_runs;

use crate::frames::{FrameIndex, Frames, LOST, NO_FRAME, PageAddress};
use crate::stream_order::{StreamIndex, Turn};
use crate::streams::Streams;
use gpu_vmm_core::{Backend, Bytes, Region};
use ranges::{RangeState, Ranges};

/// A page of addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// What is mapped behind it.
    pub(crate) frame: FrameIndex,
    /// How many taken ranges have a byte in it.
    pub(crate) live: u32,
    /// A range that was there, to begin a search at.
    near: RangeIndex,
    /// After which work its addresses are used no more.
    pub(crate) turn: Turn,
}

impl Page {
    const NEW: Self = Self { frame: NO_FRAME, live: 0, near: 0, turn: Turn::FREE };

    /// True where a frame is behind it.
    pub(crate) const fn is_mapped(&self) -> bool {
        self.frame < LOST
    }

    /// True where a block lies in it, and a frame is behind it.
    pub(crate) const fn is_used(&self) -> bool {
        self.live > 0 && self.is_mapped()
    }
}

/// Addresses of one tag.
#[derive(Debug)]
pub(crate) struct Space<B: Backend> {
    pub(crate) index: u16,
    pub(crate) tag: u16,
    pub(crate) region: Region<B>,
    pub(crate) base: u64,
    pub(crate) page: u64,
    /// True where memory with another tag's contents has to be overwritten first.
    pub(crate) scrub: bool,
    /// True where small and medium blocks are.
    pub(crate) is_small: bool,
    ranges: Ranges,
    pub(crate) pages: Vec<Page>,
    /// How many pages have memory behind them.
    pub(crate) mapped: u64,
    /// Where the last page ends that is out of use; zero where there is none.
    lost_end: u64,
}

/// A range that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
}

/// What a space looks like somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) taken: bool,
    pub(crate) stream: StreamIndex,
}

impl<B: Backend> Space<B> {
    pub(crate) fn new(
        index: u16,
        tag: u16,
        region: Region<B>,
        page: u64,
        scrub: bool,
        is_small: bool,
    ) -> Self {
        let base = region.address().0;
        let ranges = Ranges::new(region.reserved().0);
        let pages = Vec::new();
        Self { index, tag, region, base, page, scrub, is_small, ranges, pages, mapped: 0, lost_end: 0 }
    }

    /// The first and the last page of a part.
    fn pages_of(&self, offset: u64, size: u64) -> std::ops::Range<usize> {
        (offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize
    }

    /// The first pages of those `by` bytes behind all that was ever taken that have no memory behind them.
    pub(crate) fn unmapped_ahead(&self, by: u64) -> std::ops::Range<usize> {
        let from = self.ranges.touched().div_ceil(self.page) as usize;
        let end = (self.region.reserved().0 / self.page) as usize;
        let end = end.min(from + (by / self.page) as usize);
        let is_free = |page: &usize| self.page_at(*page).frame == NO_FRAME;
        let first = (from..end).find(is_free).unwrap_or(end);
        let last = (first..end).find(|page| !is_free(page)).unwrap_or(end);
        first..last
    }

    /// True where a free frame can be used as it is, as far as its contents go.
    fn fits(&self, frames: &Frames<B>, frame: FrameIndex) -> bool {
        !self.scrub || frames.tenant(frame) == self.tag
    }

    pub(crate) fn page_at(&self, page: usize) -> Page {
        self.pages.get(page).copied().unwrap_or(Page::NEW)
    }

    pub(crate) fn address_of(&self, page: usize) -> PageAddress {
        PageAddress { space: self.index, page: page as u32 }
    }

    pub(crate) fn offset_of(&self, page: usize) -> Bytes {
        Bytes(page as u64 * self.page)
    }

    /// Takes what a search has found. All memory is behind it; that which was free is claimed here, unless that is done.
    pub(crate) fn take(
        &mut self,
        frames: &mut Frames<B>,
        spot: Spot,
        size: u64,
        stream: StreamIndex,
        claimed: bool,
    ) -> Taken {
        let Spot { range, offset, .. } = spot;
        let range = self.ranges.take(range, offset, size, stream);
        for page in
            &mut self.pages[(offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize]
        {
            if page.live == 0 && !claimed {
                frames.claim(page.frame);
            }
            page.live += 1;
            page.near = range;
        }
        Taken { range, offset }
    }

    /// Gives a taken range back. Memory in which nothing is left comes free.
    pub(crate) fn give(
        &mut self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        range: RangeIndex,
        turn: Turn,
    ) -> u64 {
        let ranges::Range { offset, size, .. } = *self.ranges.get(range);
        for page in
            &mut self.pages[(offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize]
        {
            page.live -= 1;
            page.turn = streams.later(page.turn, turn);
            // A suspended space has none.
            if !page.is_mapped() {
                continue;
            }
            let turn = streams.later(frames.turn(page.frame), turn);
            if page.live == 0 {
                frames.release(page.frame, turn);
            } else {
                frames.set_turn(page.frame, turn);
            }
        }
        self.ranges.give(range);
        size
    }

    /// The taken range in which an offset lies.
    pub(crate) fn at(&self, offset: u64) -> Option<Seen> {
        let page = self.pages.get((offset / self.page) as usize).filter(|page| page.live > 0)?;
        let (range, at) = self.ranges.taken_at(offset, page.near)?;
        Some(Seen { range, offset: at.offset, size: at.size, taken: true, stream: at.stream })
    }

    /// All ranges in order, without the rest.
    pub(crate) fn seen(&self) -> impl Iterator<Item = Seen> {
        let end = self.ranges.end();
        self.ranges.iter().enumerate().take_while(move |(_, range)| range.offset < end).map(|(_, range)| {
            Seen {
                range: 0,
                offset: range.offset,
                size: range.size,
                taken: range.state == RangeState::Taken,
                stream: range.stream,
            }
        })
    }

    /// Where the last taken range ends.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.end()
    }
}
