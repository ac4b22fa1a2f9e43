//! A space: a range of addresses from which blocks are cut, and the memory mapped there.
//!
//! | file | subject |
//! |---|---|
//! | `bins` | free ranges by their size |
//! | `ranges` | the taken and free ranges, without regard to memory |
//! | `search` | the place of a block: the best fit that needs the least mapping |
//! | `memory` | the region behind the addresses, which leaves the space while its contents are copied |
//! | `supply` | mapping memory at addresses, as a transaction |

mod bins;
mod memory;
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
    /// The frame that is mapped there.
    pub(crate) frame: FrameIndex,
    /// The number of taken ranges with a byte in the page.
    pub(crate) live: u32,
    /// A range that was in the page, where a search begins.
    near: RangeIndex,
    /// The work after which the addresses are not used any more.
    pub(crate) turn: Turn,
    /// True while a thread changes the memory for its own request, without the core: no other request takes a part of the page.
    pub(crate) changing: bool,
}

impl Page {
    const NEW: Self = Self { frame: NO_FRAME, live: 0, near: 0, turn: Turn::FREE, changing: false };

    /// Returns true if a frame is mapped there.
    pub(crate) const fn is_mapped(&self) -> bool {
        self.frame < LOST
    }

    /// Returns true if a block lies in the page and a frame is mapped there.
    pub(crate) const fn is_used(&self) -> bool {
        self.live > 0 && self.is_mapped()
    }
}

/// A range of addresses of one tag.
#[derive(Debug)]
pub(crate) struct Space<B: Backend> {
    pub(crate) index: u16,
    pub(crate) tag: u16,
    /// None while a thread suspends or resumes it without the core. No page has a frame then.
    region: Option<Region<B>>,
    pub(crate) base: u64,
    /// The size of the addresses; zero if they were released.
    pub(crate) reserved: u64,
    pub(crate) page: u64,
    /// True if memory with another tag's contents must be overwritten first.
    pub(crate) scrub: bool,
    /// True if the space contains small and medium blocks.
    pub(crate) is_small: bool,
    ranges: Ranges,
    pub(crate) pages: Vec<Page>,
    /// The number of pages with memory mapped there.
    pub(crate) mapped: u64,
    /// The end of the last page that is out of use; zero if there is none.
    lost_end: u64,
    /// The number of pages that are marked as changing.
    changing: usize,
}

/// A range that was taken from a space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
}

/// A range of a space, as queries see it.
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
        let (base, reserved) = (region.address().0, region.reserved().0);
        Self {
            index,
            tag,
            region: Some(region),
            base,
            reserved,
            page,
            scrub,
            is_small,
            ranges: Ranges::new(reserved),
            pages: Vec::new(),
            mapped: 0,
            lost_end: 0,
            changing: 0,
        }
    }

    /// Returns the pages of a part of the space.
    pub(crate) fn pages_of(&self, offset: u64, size: u64) -> std::ops::Range<usize> {
        (offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize
    }

    /// Returns the first run of pages without memory among the `by` bytes behind everything that was ever taken.
    pub(crate) fn pages_to_premap(&self, by: u64) -> std::ops::Range<usize> {
        let from = self.ranges.touched().div_ceil(self.page) as usize;
        let end = (self.reserved / self.page) as usize;
        let end = end.min(from + (by / self.page) as usize);
        let is_free = |page: &usize| self.page_at(*page).frame == NO_FRAME;
        let first = (from..end).find(is_free).unwrap_or(end);
        let last = (first..end).find(|page| !is_free(page)).unwrap_or(end);
        first..last
    }

    /// Returns true if the contents of a free frame allow its use without scrubbing.
    fn fits(&self, frames: &Frames<B>, frame: FrameIndex) -> bool {
        !self.scrub || frames.tenant(frame) == self.tag
    }

    pub(crate) fn page_at(&self, page: usize) -> Page {
        self.pages.get(page).copied().unwrap_or(Page::NEW)
    }

    /// Marks a page as changing.
    pub(crate) fn begin_change(&mut self, page: usize) {
        self.pages[page].changing = true;
        self.changing += 1;
    }

    /// Removes the mark of a page.
    pub(crate) fn end_change(&mut self, page: usize) {
        self.pages[page].changing = false;
        self.changing -= 1;
    }

    /// Returns the pages of a part that are marked as changing.
    pub(crate) fn changing_in(&self, offset: u64, size: u64) -> Vec<usize> {
        if self.changing == 0 {
            return Vec::new();
        }
        self.pages_of(offset, size).filter(|page| self.page_at(*page).changing).collect()
    }

    /// Returns true if a page is marked as changing.
    pub(crate) const fn is_changing(&self) -> bool {
        self.changing > 0
    }

    pub(crate) fn address_of(&self, page: usize) -> PageAddress {
        PageAddress { space: self.index, page: page as u32 }
    }

    pub(crate) fn offset_of(&self, page: usize) -> Bytes {
        Bytes(page as u64 * self.page)
    }

    /// Adds the next page of a chunk, whose memory is there from the beginning.
    pub(crate) fn add_page(&mut self, frames: &mut Frames<B>, page: usize, frame: FrameIndex) {
        self.pages.push(Page::NEW);
        self.note_mapped(frames, page, frame);
    }

    /// Returns the size of the free range that a search has found.
    pub(crate) fn size_of(&self, spot: Spot) -> u64 {
        self.ranges.get(spot.range).size
    }

    /// Takes the place that a search has found. All of its memory is mapped. Claims the free frames, unless `claimed` is true.
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

    /// Frees a taken range. Frames without a block become free. Returns the size of the range.
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
            // The pages of a suspended space have no frame.
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

    /// Returns the taken range that contains an offset.
    pub(crate) fn at(&self, offset: u64) -> Option<Seen> {
        let page = self.pages.get((offset / self.page) as usize).filter(|page| page.live > 0)?;
        let (range, at) = self.ranges.taken_at(offset, page.near)?;
        Some(Seen { range, offset: at.offset, size: at.size, taken: true, stream: at.stream })
    }

    /// Returns all ranges in order, except the last one, which is free.
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

    /// Returns the end of the last taken range.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.end()
    }
}
