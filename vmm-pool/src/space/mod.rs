//! A space: a range of addresses from which blocks are cut, and the memory mapped there.

mod bins;
mod chosen;
mod cut;
mod group;
mod memory;
mod pages;
mod ranges;
#[cfg(feature = "snapshot")]
mod saved;
mod search;

pub(crate) use bins::UNIT;
pub(crate) use group::{Group, MIXED_ADDRESSES, MIXED_PAGES};
pub(crate) use ranges::{RangeIndex, rounded};
pub(crate) use search::{PlaceRequest, Spot};

use crate::frames::{FrameIndex, Frames, LOST, NO_FRAME, PageAddress, Waiting};
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};
use crate::streams::Streams;
use cut::Cut;
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
    /// The waiting ranges with a byte in the page: work may still use these addresses.
    pub(crate) waiting: Waiting,
    /// True while a thread changes the memory for its own request, without the core: no other request takes a part of the page.
    pub(crate) changing: bool,
}

impl Page {
    const NEW: Self = Self { frame: NO_FRAME, live: 0, near: 0, waiting: Waiting::NONE, changing: false };

    /// Notes that a waiting range with a byte in the page has become `left` ranges, also in the page's frame.
    #[inline]
    fn cut_waiting<B: Backend>(&mut self, frames: &mut Frames<B>, address: PageAddress, left: u32) {
        self.waiting.change(1, left);
        if self.is_mapped() {
            frames.change_waiting(self.frame, 1, left);
        } else if self.frame == LOST {
            frames.remove_waiting_of_lost(address, self.waiting.count);
        }
    }

    /// Returns true if a frame is mapped there.
    #[inline]
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
    /// None while a thread changes it without the core. If the thread suspends or resumes it, no page has a frame then.
    region: Option<Region<B>>,
    /// True while the thread whose turn it is maps or unmaps memory in the region.
    is_lent: bool,
    pub(crate) base: u64,
    /// The size of the addresses; zero if they were released.
    pub(crate) reserved: u64,
    pub(crate) page: u64,
    /// True if memory with another tag's contents must be overwritten first.
    pub(crate) scrub: bool,
    /// The sizes of its blocks.
    pub(crate) group: Group,
    ranges: Ranges,
    pub(crate) pages: Vec<Page>,
    /// The number of pages with memory mapped there.
    pub(crate) mapped: u64,
    /// True if the space is in the list of those with ranges that wait.
    waits: bool,
    /// How often streams had come further when its ranges were made ready last.
    settled: u64,
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
pub(crate) struct RangeInfo {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) taken: bool,
    pub(crate) stream: StreamIndex,
}

impl<B: Backend> Space<B> {
    pub(crate) fn new(index: u16, tag: u16, region: Region<B>, page: u64, scrub: bool, group: Group) -> Self {
        let (base, reserved) = (region.address().0, region.reserved().0);
        Self {
            index,
            tag,
            region: Some(region),
            is_lent: false,
            base,
            reserved,
            page,
            scrub,
            group,
            ranges: Ranges::new(reserved),
            pages: Vec::new(),
            mapped: 0,
            waits: false,
            settled: 0,
            lost_end: 0,
            changing: 0,
        }
    }

    /// Returns the pages of a part of the space.
    #[inline]
    pub(crate) fn pages_of(&self, offset: u64, size: u64) -> std::ops::Range<usize> {
        (offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize
    }

    /// Returns true if the space contains small and medium blocks.
    pub(crate) fn is_small(&self) -> bool {
        self.group == Group::SMALL
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
    #[inline]
    fn fits(&self, frames: &Frames<B>, frame: FrameIndex) -> bool {
        !self.scrub || frames.is_of(frame, self.tag)
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

    /// Returns true if no block lies in the space and no work uses it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.end() == 0
    }

    /// Takes the place that a search has found. All of its memory is mapped. Claims the free frames, unless `claimed` is true.
    #[inline]
    pub(crate) fn take(
        &mut self,
        frames: &mut Frames<B>,
        spot: Spot,
        size: u64,
        stream: StreamIndex,
        claimed: bool,
    ) -> Taken {
        let Spot { range: first, offset, .. } = spot;
        let pages = self.pages_of(offset, size);
        let cut = match self.ranges.get(first) {
            // It lies in one range in most cases: then each page is visited once.
            one if one.end() >= offset + size => Cut::new(one, (offset, offset + size), &pages, self.page),
            _ => {
                self.end_waits(frames, first, offset, size);
                None
            }
        };
        let range = self.ranges.take(first, offset, size, stream);
        let space = self.index;
        for (index, page) in pages.clone().zip(&mut self.pages[pages]) {
            if let Some(cut) = &cut {
                page.cut_waiting(frames, PageAddress { space, page: index as u32 }, cut.left(index));
            }
            if page.live == 0 && !claimed {
                frames.claim(page.frame);
            }
            page.live += 1;
            page.near = range;
        }
        Taken { range, offset }
    }

    /// Notes that the stream of a taken range has another number now.
    pub(crate) fn set_stream(&mut self, range: RangeIndex, stream: StreamIndex) {
        self.ranges.set_stream(range, stream);
    }

    /// Ends the waits of a part that is about to be taken, from the range `first` on.
    fn end_waits(&mut self, frames: &mut Frames<B>, first: RangeIndex, offset: u64, size: u64) {
        let end = offset + size;
        let Self { ranges, pages, page, index: space, .. } = self;
        for range in ranges.iter_from(first).take_while(|range| range.offset < end) {
            let (from, to) = (range.offset.max(offset), range.end().min(end));
            let part = (from / *page) as usize..to.div_ceil(*page) as usize;
            let Some(cut) = Cut::new(range, (from, to), &part, *page) else { continue };
            for index in part {
                let address = PageAddress { space: *space, page: index as u32 };
                pages[index].cut_waiting(frames, address, cut.left(index));
            }
        }
    }

    /// Frees a taken range after the work of `free_after`. Frames without a block become free. Returns the size of the range.
    #[inline]
    pub(crate) fn give(
        &mut self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        range: RangeIndex,
        free_after: FreeAfter,
    ) -> u64 {
        let ranges::Range { offset, size, .. } = *self.ranges.get(range);
        let free_after = if streams.is_done(free_after) { FreeAfter::FREE } else { free_after };
        let waiting =
            if free_after.stream() == CLEAN { Waiting::NONE } else { Waiting::of(free_after.stream()) };
        let joined = self.ranges.give(range, free_after, streams.covered(free_after.stream()));
        for page in
            &mut self.pages[(offset / self.page) as usize..(offset + size).div_ceil(self.page) as usize]
        {
            page.live -= 1;
            page.waiting.add(waiting);
            // The pages of a suspended space have no frame.
            if page.is_mapped() {
                frames.add_waiting(page.frame, waiting);
                if page.live == 0 {
                    frames.release(page.frame);
                }
            }
        }
        // Two ranges in one page have become one.
        let mut end_border = |border: Option<u64>| {
            if let Some(border) = border
                && border % self.page != 0
            {
                self.remove_waiting(frames, (border / self.page) as usize);
            }
        };
        end_border(joined.before);
        end_border(joined.behind);
        size
    }

    fn remove_waiting(&mut self, frames: &mut Frames<B>, page: usize) {
        let address = self.address_of(page);
        self.pages[page].cut_waiting(frames, address, 0);
    }

    /// Makes the ranges ready whose work is done.
    #[inline]
    pub(crate) fn settle(&mut self, frames: &mut Frames<B>, streams: &Streams<B>) {
        // A range whose work is done when it is freed does not wait.
        if self.settled != streams.advances {
            self.settled = streams.advances;
            self.settle_all(frames, streams);
        }
    }

    fn settle_all(&mut self, frames: &mut Frames<B>, streams: &Streams<B>) {
        while let Some((offset, size)) = self.ranges.next_done(|free_after| streams.is_done(free_after)) {
            for page in self.pages_of(offset, size) {
                self.remove_waiting(frames, page);
            }
        }
    }

    /// Returns true once if ranges of the space wait, until [`still_waits`](Self::still_waits) has returned false.
    #[inline]
    pub(crate) fn begins_to_wait(&mut self) -> bool {
        self.ranges.is_waiting() && !std::mem::replace(&mut self.waits, true)
    }

    /// Returns true if ranges of the space wait. Drops what it keeps for streams that none waits for.
    pub(crate) fn still_waits(&mut self) -> bool {
        self.ranges.drop_empty_sets();
        self.waits = self.ranges.is_waiting();
        self.waits
    }

    /// Returns the taken range that contains an offset.
    pub(crate) fn at(&self, offset: u64) -> Option<RangeInfo> {
        let page = self.pages.get((offset / self.page) as usize).filter(|page| page.live > 0)?;
        let (range, at) = self.ranges.taken_at(offset, page.near)?;
        Some(RangeInfo { range, offset: at.offset, size: at.size, taken: true, stream: at.stream() })
    }

    /// Returns all ranges in order, except the last one, which is free.
    pub(crate) fn seen(&self) -> impl Iterator<Item = RangeInfo> {
        let end = self.ranges.end();
        self.ranges.iter().enumerate().take_while(move |(_, range)| range.offset < end).map(|(_, range)| {
            RangeInfo {
                range: 0,
                offset: range.offset,
                size: range.size,
                taken: range.state == RangeState::Taken,
                stream: range.stream(),
            }
        })
    }

    /// Returns the end of the last taken range.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.end()
    }
}
