//! The physical memory of a pool: frames of one page each, and the addresses at which each frame is mapped.
//!
//! A frame that contains no block is free, wherever it is mapped. It stays mapped there and may be mapped at further
//! addresses. The first request that needs memory takes it. So memory moves to where it is needed without being unmapped, and
//! returns without any driver call.

use crate::stream_order::{CLEAN, MIXED, StreamIndex};
use gpu_vmm_core::{Backend, PhysicalMemory};
use std::cmp::Reverse;

/// A frame's number.
pub(crate) type FrameIndex = u32;

/// No frame.
pub(crate) const NO_FRAME: FrameIndex = FrameIndex::MAX;

/// The contents of the page are unknown: a driver call failed there, and so did its rollback. Its addresses are not used again.
pub(crate) const LOST: FrameIndex = FrameIndex::MAX - 1;

/// A page of a space: addresses at which a frame can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageAddress {
    pub(crate) space: u16,
    pub(crate) page: u32,
}

/// The free ranges of a page or a frame whose work may not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) count: u32,
    /// The stream that all of them wait for, or [`MIXED`] since there were several.
    stream: StreamIndex,
}

impl Waiting {
    pub(crate) const NONE: Self = Self { count: 0, stream: CLEAN };

    /// Counts further ranges.
    #[inline]
    pub(crate) fn add(&mut self, other: Self) {
        if other.count > 0 {
            let is_one = self.count == 0 || self.stream == other.stream;
            self.stream = if is_one { other.stream } else { MIXED };
            self.count += other.count;
        }
    }

    /// Notes that `gone` of the ranges have become `left`.
    #[inline]
    pub(crate) fn change(&mut self, gone: u32, left: u32) {
        self.count = self.count + left - gone;
    }

    /// Returns true if new work on a stream may use the memory; for [`CLEAN`], if all work is done.
    #[inline]
    pub(crate) fn serves(self, stream: StreamIndex) -> bool {
        self.count == 0 || self.stream == stream
    }

    pub(crate) const fn of(stream: StreamIndex) -> Self {
        Self { count: 1, stream }
    }
}

/// The tenant of a frame with the contents of a tag that has ended.
const NO_TAG: u32 = u32::MAX;

/// The state of a frame that allocations and frees read and write.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// The waiting ranges with a byte in the frame, at all of its addresses.
    waiting: Waiting,
    /// The last search that has counted the frame.
    seen: u32,
    /// True if the frame contains a block.
    used: bool,
    /// The tag whose contents are in the frame, or [`NO_TAG`].
    tenant: u32,
}

/// The state of a frame that changes when it is mapped, unmapped or removed.
#[derive(Debug)]
pub(crate) struct Frame<B: Backend> {
    /// None if the number is not in use, or the memory is suspended.
    pub(crate) memory: Option<PhysicalMemory<B>>,
    /// The addresses at which the frame is mapped.
    pub(crate) mapped: Vec<PageAddress>,
}

/// All frames of a pool.
#[derive(Debug)]
pub(crate) struct Frames<B: Backend> {
    list: Vec<Frame<B>>,
    uses: Vec<Use>,
    /// One bit per frame, set if the frame is free.
    free_map: Vec<u64>,
    free: usize,
    vacant: Vec<FrameIndex>,
    /// Lost pages whose addresses work may still use, and the frame that is mapped there.
    lost: Vec<(PageAddress, FrameIndex)>,
    /// The number of frames that were ever added.
    created: u64,
    search: u32,
}

impl<B: Backend> Frames<B> {
    pub(crate) const fn new() -> Self {
        Self {
            list: Vec::new(),
            uses: Vec::new(),
            free_map: Vec::new(),
            free: 0,
            vacant: Vec::new(),
            lost: Vec::new(),
            created: 0,
            search: 0,
        }
    }

    pub(crate) fn get(&self, frame: FrameIndex) -> &Frame<B> {
        &self.list[frame as usize]
    }

    pub(crate) fn at(&mut self, frame: FrameIndex) -> &mut Frame<B> {
        &mut self.list[frame as usize]
    }

    /// Returns the waiting ranges of a frame.
    #[inline]
    pub(crate) fn waiting(&self, frame: FrameIndex) -> Waiting {
        self.uses[frame as usize].waiting
    }

    #[inline]
    pub(crate) fn add_waiting(&mut self, frame: FrameIndex, waiting: Waiting) {
        self.uses[frame as usize].waiting.add(waiting);
    }

    #[inline]
    pub(crate) fn change_waiting(&mut self, frame: FrameIndex, gone: u32, left: u32) {
        self.uses[frame as usize].waiting.change(gone, left);
    }

    /// Notes that a page is lost whose waiting ranges still count for its frame.
    pub(crate) fn note_lost(&mut self, page: PageAddress, frame: FrameIndex) {
        self.lost.push((page, frame));
    }

    /// Removes a waiting range of a lost page, which has `left` others.
    pub(crate) fn remove_waiting_of_lost(&mut self, page: PageAddress, left: u32) {
        let Some(index) = self.lost.iter().position(|(at, _)| *at == page) else { return };
        self.change_waiting(self.lost[index].1, 1, 0);
        if left == 0 {
            self.lost.swap_remove(index);
        }
    }

    /// Returns true if work on a stream may use a frame at a page, apart from the page's own waiting ranges: these are at other
    /// addresses of the page than the work.
    #[inline]
    pub(crate) fn serves_at(&self, frame: FrameIndex, page: Waiting, stream: StreamIndex) -> bool {
        let all = self.waiting(frame);
        all.count == page.count || all.serves(stream)
    }

    /// Returns true if a frame has the contents of a tag, or none.
    #[inline]
    pub(crate) fn is_of(&self, frame: FrameIndex, tag: u16) -> bool {
        self.uses[frame as usize].tenant == u32::from(tag)
    }

    pub(crate) fn set_tenant(&mut self, frame: FrameIndex, tag: u16) {
        self.uses[frame as usize].tenant = u32::from(tag);
    }

    /// Notes that a tag has ended, so that no tag with the same number takes its contents for its own.
    pub(crate) fn disown(&mut self, tag: u16) {
        let own = self.uses.iter_mut().filter(|frame| frame.tenant == u32::from(tag));
        own.for_each(|frame| frame.tenant = NO_TAG);
    }

    /// Returns the number of frames.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.list.len() - self.vacant.len()
    }

    /// Returns the number of frames that were ever added.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// Returns the number of free frames.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Adds new memory, as a frame that is used. A part of a plain allocation has no memory of its own.
    pub(crate) fn insert(&mut self, memory: Option<PhysicalMemory<B>>, tenant: u16) -> FrameIndex {
        let frame = Frame { memory, mapped: Vec::new() };
        let usage = Use { waiting: Waiting::NONE, seen: 0, used: true, tenant: u32::from(tenant) };
        self.created += 1;
        if let Some(index) = self.vacant.pop() {
            *self.at(index) = frame;
            self.uses[index as usize] = usage;
            return index;
        }
        let index = self.list.len();
        self.list.push(frame);
        self.uses.push(usage);
        self.free_map.resize(self.list.len().div_ceil(64), 0);
        index as FrameIndex
    }

    /// Removes a frame that is used and mapped nowhere, and returns its memory.
    pub(crate) fn remove(&mut self, frame: FrameIndex) -> Option<PhysicalMemory<B>> {
        debug_assert!(self.uses[frame as usize].used && self.get(frame).mapped.is_empty());
        self.lost.retain(|(_, lost)| *lost != frame);
        self.vacant.push(frame);
        self.at(frame).memory.take()
    }

    /// Begins a search, in which [`Frames::see`] counts each frame once.
    #[inline]
    pub(crate) fn begin_search(&mut self) {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.begin_numbers();
        }
    }

    /// Begins the numbers of searches again, after 2^32 of them.
    #[cold]
    fn begin_numbers(&mut self) {
        self.uses.iter_mut().for_each(|frame| frame.seen = 0);
        self.search = 1;
    }

    /// Returns true if a frame is free and was not counted in this search before: it may be mapped at several pages of one range.
    #[inline]
    pub(crate) fn see(&mut self, frame: FrameIndex) -> bool {
        let search = self.search;
        let at = &mut self.uses[frame as usize];
        if at.used || at.seen == search {
            return false;
        }
        at.seen = search;
        true
    }

    /// Returns the free frames.
    pub(crate) fn free_ones(&self) -> impl Iterator<Item = FrameIndex> {
        self.free_map.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = *bits;
            std::iter::from_fn(move || {
                let bit = bits.checked_ilog2().map(|_| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(word as FrameIndex * 64 + bit)
            })
        })
    }

    /// Returns up to `count` free frames that `fits` accepts, to map them at further addresses: those farthest behind in their
    /// space, by the first page at which each is mapped. So memory moves towards the beginning of the space, where requests look
    /// first, and the same addresses have memory again and again. In a trace of four streams, this order needs a quarter of the
    /// mapping calls that the order of the frees needs.
    pub(crate) fn spare(&self, count: usize, fits: impl Fn(&Self, FrameIndex) -> bool) -> Vec<FrameIndex> {
        let first = |frame: FrameIndex| self.get(frame).mapped.iter().map(|at| at.page).min();
        // A frame that is mapped nowhere is needed nowhere.
        let key = |frame: &FrameIndex| (Reverse(first(*frame).unwrap_or(u32::MAX)), *frame);
        let mut fitting: Vec<_> = self.free_ones().filter(|frame| fits(self, *frame)).collect();
        if count < fitting.len() {
            fitting.select_nth_unstable_by_key(count, key);
            fitting.truncate(count);
        }
        fitting.sort_unstable_by_key(key);
        fitting
    }

    /// Marks a free frame as used.
    #[inline]
    pub(crate) fn claim(&mut self, frame: FrameIndex) {
        let at = &mut self.uses[frame as usize];
        debug_assert!(!at.used);
        at.used = true;
        self.free_map[frame as usize / 64] &= !(1 << (frame % 64));
        self.free -= 1;
    }

    /// Marks a used frame as free. Its waiting ranges tell whom it serves.
    #[inline]
    pub(crate) fn release(&mut self, frame: FrameIndex) {
        let at = &mut self.uses[frame as usize];
        debug_assert!(at.used);
        at.used = false;
        self.free_map[frame as usize / 64] |= 1 << (frame % 64);
        self.free += 1;
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::*;
    use gpu_vmm_host::HostBackend;

    /// Frames that are mapped at these pages.
    fn frames(pages: &[&[u32]]) -> Frames<HostBackend> {
        let mut frames = Frames::new();
        for pages in pages {
            let frame = frames.insert(None, 0);
            frames.at(frame).mapped =
                pages.iter().map(|page| PageAddress { space: 0, page: *page }).collect();
            frames.release(frame);
        }
        frames
    }

    #[test]
    fn spare_frames_are_the_farthest_behind() {
        // The second is mapped far behind too, but also at the beginning; the third and the sixth are mapped nowhere.
        let frames = frames(&[&[5], &[90, 1], &[], &[7], &[5, 8], &[]]);
        let all = [2, 5, 3, 0, 4, 1];
        for count in 0..=7 {
            assert_eq!(frames.spare(count, |_, _| true), all[..count.min(6)], "{count} frames");
        }
        assert_eq!(frames.spare(3, |_, frame| frame % 2 == 0), [2, 0, 4]);
        assert!(frames.spare(3, |_, _| false).is_empty());
    }

    /// The numbers of searches begin again after 2^32 of them.
    #[test]
    fn each_search_counts_a_frame_once() {
        let mut frames = frames(&[&[0], &[1]]);
        for last in [0, u32::MAX, u32::MAX] {
            frames.search = last;
            frames.begin_search();
            let seen = [0, 0, 1, 1].map(|frame| frames.see(frame));
            assert_eq!(seen, [true, false, true, false], "after search {last}");
        }
    }

    #[test]
    fn free_frames_are_listed_and_counted() {
        let mut frames = frames(&[&[][..]; 130]);
        let listed = |frames: &Frames<HostBackend>| frames.free_ones().collect::<Vec<_>>();
        assert_eq!(listed(&frames), (0..130).collect::<Vec<_>>());
        for frame in [0, 63, 64, 129] {
            frames.claim(frame);
        }
        let free: Vec<_> = (0..130).filter(|frame| ![0, 63, 64, 129].contains(frame)).collect();
        assert_eq!((listed(&frames), frames.free(), frames.count()), (free, 126, 130));
        frames.remove(63);
        frames.remove(64);
        assert_eq!((frames.free(), frames.count(), frames.created()), (126, 128, 130));
        // The number that became vacant last is used first, for a frame that is in use.
        assert_eq!([(); 3].map(|()| frames.insert(None, 7)), [64, 63, 130]);
        assert_eq!((frames.free(), frames.count(), frames.created()), (126, 131, 133));
        assert!([63, 64, 130].into_iter().all(|frame| frames.is_of(frame, 7)));
        frames.disown(7);
        assert!([63, 64, 130].into_iter().all(|frame| !frames.is_of(frame, 7)));
    }
}
