//! The physical memory of a pool: pieces of one page each, and behind which addresses they are.
//!
//! A frame in which no block lies is free wherever it is mapped. It stays mapped there, may be mapped at further
//! addresses, and whoever needs memory first has it: so memory moves to where it is needed without being unmapped, and
//! comes back without any driver call.

use crate::stream_order::{StreamIndex, Turn};
use crate::streams::Streams;
use gpu_vmm_core::{Backend, PhysicalMemory};

/// A frame's number.
pub(crate) type FrameIndex = u32;

/// No frame.
pub(crate) const NO_FRAME: FrameIndex = FrameIndex::MAX;

/// Nobody knows what is behind the page: something failed there, and so did undoing it. Its addresses are not used again.
pub(crate) const LOST: FrameIndex = FrameIndex::MAX - 1;

/// A page of a space: addresses behind which a frame can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageAddress {
    pub(crate) space: u16,
    pub(crate) page: u32,
}

/// What is asked of a frame whenever a block comes or goes.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// After which work it is free.
    turn: Turn,
    /// The last search that has counted it.
    seen: u32,
    /// True where a block lies in it.
    used: bool,
    /// Whose contents are in it.
    tenant: u16,
}

/// What is asked of a frame when it is mapped or given back.
#[derive(Debug)]
pub(crate) struct Frame<B: Backend> {
    /// None where the number is not in use, or the memory is suspended.
    pub(crate) memory: Option<PhysicalMemory<B>>,
    /// Where it is mapped.
    pub(crate) mapped: Vec<PageAddress>,
}

/// All frames.
#[derive(Debug)]
pub(crate) struct Frames<B: Backend> {
    list: Vec<Frame<B>>,
    uses: Vec<Use>,
    /// A bit for each frame that is free.
    free_map: Vec<u64>,
    free: usize,
    vacant: Vec<FrameIndex>,
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
            search: 0,
        }
    }

    pub(crate) fn get(&self, frame: FrameIndex) -> &Frame<B> {
        &self.list[frame as usize]
    }

    pub(crate) fn at(&mut self, frame: FrameIndex) -> &mut Frame<B> {
        &mut self.list[frame as usize]
    }

    pub(crate) fn turn(&self, frame: FrameIndex) -> Turn {
        self.uses[frame as usize].turn
    }

    pub(crate) fn tenant(&self, frame: FrameIndex) -> u16 {
        self.uses[frame as usize].tenant
    }

    pub(crate) fn set_tenant(&mut self, frame: FrameIndex, tenant: u16) {
        self.uses[frame as usize].tenant = tenant;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.list.len() - self.vacant.len()
    }

    /// How many of them are free.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Takes memory in that nothing is in, as used.
    pub(crate) fn insert(&mut self, memory: PhysicalMemory<B>, tenant: u16) -> FrameIndex {
        let frame = Frame { memory: Some(memory), mapped: Vec::new() };
        let usage = Use { turn: Turn::FREE, seen: 0, used: true, tenant };
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

    /// Gives up a frame that is used and mapped nowhere.
    pub(crate) fn remove(&mut self, frame: FrameIndex) {
        debug_assert!(self.uses[frame as usize].used && self.get(frame).mapped.is_empty());
        self.at(frame).memory = None;
        self.vacant.push(frame);
    }

    /// Starts counting: [`Frames::see`] tells of each frame once.
    pub(crate) fn begin_search(&mut self) {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.uses.iter_mut().for_each(|frame| frame.seen = 0);
            self.search = 1;
        }
    }

    /// True where a frame is free for a stream and was not seen in this search before: it may be behind several pages of
    /// the same range.
    #[inline]
    pub(crate) fn see(&mut self, frame: FrameIndex, streams: &Streams<B>, stream: StreamIndex) -> bool {
        let search = self.search;
        let at = &mut self.uses[frame as usize];
        if at.used || at.seen == search {
            return false;
        }
        if at.turn.stream() != stream {
            if !streams.is_done(at.turn) {
                return false;
            }
            at.turn = at.turn.for_all();
        }
        at.seen = search;
        true
    }

    /// The free frames.
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

    /// Up to `count` free frames that `fits` lets pass, those that came free first.
    pub(crate) fn oldest(&self, count: usize, fits: impl Fn(&Self, FrameIndex) -> bool) -> Vec<FrameIndex> {
        let mut fitting: Vec<_> = self.free_ones().filter(|frame| fits(self, *frame)).collect();
        if count < fitting.len() {
            fitting.select_nth_unstable_by_key(count, |frame| (self.turn(*frame).moment(), *frame));
            fitting.truncate(count);
        }
        fitting.sort_unstable_by_key(|frame| (self.turn(*frame).moment(), *frame));
        fitting
    }

    /// Has a free frame be used.
    #[inline]
    pub(crate) fn claim(&mut self, frame: FrameIndex) {
        let at = &mut self.uses[frame as usize];
        debug_assert!(!at.used);
        at.used = true;
        self.free_map[frame as usize / 64] &= !(1 << (frame % 64));
        self.free -= 1;
    }

    /// Has a used frame be free after some work, that of earlier users included.
    #[inline]
    pub(crate) fn release(&mut self, frame: FrameIndex, turn: Turn) {
        let at = &mut self.uses[frame as usize];
        debug_assert!(at.used);
        at.used = false;
        at.turn = turn;
        self.free_map[frame as usize / 64] |= 1 << (frame % 64);
        self.free += 1;
    }

    /// Says after which work a frame is free that stays used.
    #[inline]
    pub(crate) fn set_turn(&mut self, frame: FrameIndex, turn: Turn) {
        self.uses[frame as usize].turn = turn;
    }
}
