//! The state of a pool, under one lock: where memory is, which stream owns it, and after which work it is free.

use crate::block_memory::{BlockMemory, Origin};
use crate::chunk::Chunk;
use crate::classes::{SMALL_CLASSES, size_of};
use crate::error::ExhaustedResource;
use crate::frames::{FrameIndex, Frames};
use crate::history::History;
use crate::ledger::Ledger;
use crate::obstacle::Obstacle;
use crate::ongoing::Ongoing;
use crate::pending::Pending;
use crate::settings::Settings;
use crate::slabs::{Ended, Kind, Slab, Slabs};
use crate::space::{Group, PlaceRequest, Space, Spot};
use crate::stats::DriverCalls;
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};
use crate::streams::Streams;
use crate::tags::Tags;
use gpu_vmm_core::{Backend, Bytes, Error, Operation, PhysicalMemory};
use gpu_vmm_premap::sync::Arc;

/// The smallest size of a frame: 2 MiB, the granularity of GPUs.
pub(crate) const PAGE: Bytes = Bytes::mib(2);

/// The memory of a device from which on a pool has frames of [`LARGE_PAGE`]. The driver takes as long for a large frame as for a small
/// one (some 60 µs on an H100), and compared with that memory, the unused rests of frames next to blocks are small.
const LARGE: Bytes = Bytes::gib(64);
const LARGE_PAGE: Bytes = Bytes::mib(8);

/// The part of the most memory that was needed, and the pages, that may be freed on a stream before an event is recorded.
const UNMARKED: u64 = 16;
const UNMARKED_PAGES: u64 = 4;

/// A request for a range or for slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) tag: u16,
    pub(crate) stream: StreamIndex,
    /// True if the stream captures. A graph may be launched on any stream, so the order of this one guarantees nothing.
    pub(crate) captures: bool,
    pub(crate) small: bool,
    /// True if the caller may have blocks that it could free instead. The request does not show that the pool needs more memory.
    pub(crate) tentative: bool,
    /// The first address of the range, if the caller has chosen one.
    pub(crate) at: Option<u64>,
}

impl Request {
    /// Returns the stream whose unfinished work may still use the memory: none for a graph.
    pub(crate) fn order(&self) -> StreamIndex {
        if self.captures { CLEAN } else { self.stream }
    }

    /// Returns the group of its size.
    pub(crate) fn group(&self) -> Group {
        if self.small { Group::SMALL } else { Group::of(self.size, self.alignment) }
    }

    pub(crate) fn wanted(&self) -> PlaceRequest {
        PlaceRequest { size: self.size, alignment: self.alignment, stream: self.order() }
    }
}

/// Why a request cannot be served now.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// The thread caches may hold memory that helps; they must be emptied into the core first.
    Caches,
    /// No mapped memory serves: the caller must have the turn to [map](crate::mapping::Mapping) some.
    Mapping,
    /// No address range has room: the caller must reserve one for this request.
    Space(Request),
    /// There is too little memory.
    Memory(ExhaustedResource),
    /// There are too few addresses: the number in use, and the number reserved.
    Addresses { used: u64, reserved: u64 },
    /// The addresses that the request names are in use.
    Taken(Box<Obstacle>),
    /// The tag is suspended.
    Suspended,
    /// A thread moves the tag to another device.
    Moving,
    /// No chunk has room: the caller must allocate one for this request without the core.
    Chunk(Request),
    /// Any other error.
    Other(Error),
}

impl Shortage {
    /// True if memory is short, in the pool or in the driver.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_)) || matches!(self, Self::Other(error) if error.is_out_of_memory())
    }
}

impl From<Error> for Shortage {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

#[derive(Debug)]
pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    pub(crate) settings: Settings,
    /// The size of a frame.
    pub(crate) page: u64,
    pub(crate) streams: Streams<B>,
    pub(crate) frames: Frames<B>,
    /// The number of pages that threads create without the core. They count as held.
    pub(crate) coming: u64,
    /// The number of pages of this kind that the ledger counts: those that the core held when it was unlocked last, and new ones.
    pub(crate) in_ledger: u64,
    pub(crate) ongoing: Ongoing,
    pub(crate) spaces: Vec<Space<B>>,
    /// Chunks that are freed as soon as the core is unlocked.
    pub(crate) leaving: Vec<Chunk<B>>,
    /// Memory of removed frames, which is released as soon as the core is unlocked.
    pub(crate) released: Vec<PhysicalMemory<B>>,
    /// True if the pool keeps more free memory than it may: some is returned to the driver as soon as the core is unlocked.
    pub(crate) trims: bool,
    /// The spaces with ranges that wait.
    pub(crate) waiting: Vec<usize>,
    pub(crate) tags: Tags,
    pub(crate) slabs: Slabs,
    pub(crate) pending: Pending,
    /// The bytes of all taken ranges, and their peak.
    pub(crate) taken: u64,
    pub(crate) peak_taken: u64,
    /// The peak that requests needed which were not tentative.
    pub(crate) peak_needed: u64,
    pub(crate) peak_held: u64,
    /// The number of places that left a gap.
    gaps: u64,
    /// The number of pieces that were freed.
    pub(crate) frees: u64,
    pub(crate) calls: DriverCalls,
    pub(crate) history: History,
    /// The budget, and the memory of all kinds. Last: its source ends when the memory is gone.
    pub(crate) ledger: Arc<Ledger>,
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(backend: &B, settings: Settings, ledger: &Arc<Ledger>) -> Result<Self, Error> {
        const OPERATION: Operation = Operation::CreatePool;
        let least = match settings.plain {
            true => backend.granularity_of(OPERATION, &settings.memory)?,
            false => backend.recommended_granularity(OPERATION, &settings.memory)?,
        };
        // A frame is mapped in a region, whose offsets are multiples of the largest granularity.
        let granularity = least.max(backend.granularity());
        let page = granularity.bytes().0.max(PAGE.0).max(page_of(&settings, ledger.budget()).0);
        Ok(Self {
            backend: backend.clone(),
            page,
            streams: Streams::new(backend, settings.memory.device),
            frames: Frames::new(),
            coming: 0,
            ledger: Arc::clone(ledger),
            in_ledger: 0,
            ongoing: Ongoing::default(),
            spaces: Vec::new(),
            leaving: Vec::new(),
            released: Vec::new(),
            trims: false,
            waiting: Vec::new(),
            tags: Tags::default(),
            slabs: Slabs::default(),
            pending: Pending::default(),
            taken: 0,
            peak_taken: 0,
            peak_needed: 0,
            peak_held: 0,
            gaps: 0,
            frees: 0,
            calls: DriverCalls::default(),
            history: History::new(),
            settings,
        })
    }

    /// Returns the size of all physical memory, and of the memory that threads create without the core.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.held_pages() * self.page
    }

    #[inline]
    pub(crate) fn held_pages(&self) -> u64 {
        self.frames.count() as u64 + self.coming
    }

    /// Takes a range whose memory is all mapped. `settled` is true if the thread caches were emptied into the core before.
    #[inline]
    pub(crate) fn take(&mut self, request: Request, settled: bool) -> Result<BlockMemory, Shortage> {
        self.check_active(request.tag)?;
        match request.captures {
            true => self.streams.owe(request.stream),
            false => self.streams.mark_owed(),
        }
        self.collect_some();
        let (space, spot) = self.place(request, settled)?;
        Ok(self.take_at(space, spot, request))
    }

    /// Takes a place whose memory is all mapped.
    #[inline]
    pub(crate) fn take_at(&mut self, space: usize, spot: Spot, request: Request) -> BlockMemory {
        let at = &mut self.spaces[space];
        let taken = at.take(&mut self.frames, spot, request.size, request.stream, false);
        let (address, origin) = (at.base + taken.offset, Origin::Range(space as u16, taken.range));
        self.note_taken(request);
        BlockMemory { address, size: request.size, origin }
    }

    /// Counts a taken range.
    #[inline]
    pub(crate) fn note_taken(&mut self, request: Request) {
        self.taken += request.size;
        self.peak_taken = self.peak_taken.max(self.taken);
        if !request.tentative {
            self.peak_needed = self.peak_needed.max(self.taken);
        }
        self.note();
    }

    /// Finds a place whose memory is all mapped.
    #[inline]
    fn place(&mut self, request: Request, settled: bool) -> Result<(usize, Spot), Shortage> {
        if self.settings.plain {
            return self.place_in_chunk(request, settled);
        }
        let mut found = self.find_mapped(request);
        let may_ask = self.streams.are_several() && !request.tentative;
        let asks = may_ask
            && match found {
                Some((_, spot)) => self.looks_further(spot),
                // To ask whether other streams' work is done takes less time than to empty the thread caches and to map memory.
                None => !settled,
            };
        if asks && self.poll() {
            found = self.find_mapped(request);
        }
        found.ok_or(if settled { Shortage::Mapping } else { Shortage::Caches })
    }

    /// Returns true if the streams should be asked before a place is taken that leaves a gap. Often work is done by then of which
    /// the pool does not know, and a place that fits better is ready: in a trace of four streams, the second pass maps 18 pages
    /// with this and 519 without. Each fourth time gives almost as much as each time.
    #[inline]
    fn looks_further(&mut self, spot: Spot) -> bool {
        if spot.left == 0 {
            return false;
        }
        self.gaps = self.gaps.wrapping_add(1);
        self.gaps.is_multiple_of(4)
    }

    /// Finds a place whose memory is all mapped.
    #[inline]
    fn find_mapped(&mut self, request: Request) -> Option<(usize, Spot)> {
        self.find(request).filter(|(_, spot)| spot.work == 0)
    }

    /// Takes up to `count` small pieces of a class from its slabs. If none is free, asks the streams that slots wait for. Returns false if
    /// there is no slot nevertheless.
    pub(crate) fn take_slots(
        &mut self,
        request: Request,
        class: usize,
        count: usize,
        pieces: &mut Vec<BlockMemory>,
    ) -> bool {
        debug_assert!(class < SMALL_CLASSES);
        let size = size_of(class);
        let kind = Kind { tag: request.tag, class: class as u16 };
        let mut take = |core: &mut Self| {
            let before = pieces.len();
            core.slabs.take(kind, request.stream, count, |slab, slot, address| {
                pieces.push(BlockMemory { address, size, origin: Origin::Slot(slab, slot) });
            });
            pieces.len() > before
        };
        if take(self) {
            return true;
        }
        // The remaining slots wait for other streams.
        if !self.slabs.has(kind) {
            return false;
        }
        self.settle_slots(kind);
        take(self)
            || !request.tentative && self.poll() && {
                self.settle_slots(kind);
                take(self)
            }
    }

    /// Makes the slots of a kind ready whose work is done.
    fn settle_slots(&mut self, kind: Kind) {
        let Self { slabs, streams, .. } = self;
        slabs.settle(kind, |stream| streams.done(stream));
    }

    /// Adds a slab in a range that was taken for it.
    pub(crate) fn add_slab(&mut self, request: Request, class: usize, piece: BlockMemory) {
        if let Origin::Range(space, range) = piece.origin {
            let kind = Kind { tag: request.tag, class: class as u16 };
            // The stream's own work may still use the range.
            let free_after = self.streams.last_free(request.stream);
            self.slabs.insert(Slab::new(kind, free_after, space, range, piece.address));
        }
    }

    /// Frees a piece that a stream used last.
    #[inline]
    pub(crate) fn give(&mut self, piece: BlockMemory, stream: StreamIndex) {
        let free_after = self.streams.free(stream);
        self.give_after(piece, free_after);
    }

    /// Frees a piece that later requests may use after the work of `free_after`.
    #[inline]
    pub(crate) fn give_after(&mut self, piece: BlockMemory, free_after: FreeAfter) {
        self.frees += 1;
        match piece.origin {
            Origin::Range(space, range) => self.give_range(usize::from(space), range, free_after),
            Origin::Slot(index, slot) => {
                let Self { slabs, streams, .. } = self;
                let order = (free_after, streams.covered(free_after.stream()));
                match slabs.give(index, slot, order, |free_after| streams.is_done(free_after)) {
                    Some(ended) => self.give_slab(ended),
                    None => self.note_freed(free_after.stream(), piece.size),
                }
            }
        }
    }

    /// Frees the range of a slab that was removed.
    pub(crate) fn give_slab(&mut self, Ended { space, range, free_after }: Ended) {
        self.give_range(usize::from(space), range, free_after);
    }

    #[inline]
    fn give_range(&mut self, space: usize, range: u32, free_after: FreeAfter) {
        let size = self.free_range(space, range, free_after);
        self.taken -= size;
        self.note_freed(free_after.stream(), size);
        self.note();
    }

    /// Makes a range free after the work of `free_after`, and returns its size.
    #[inline]
    pub(crate) fn free_range(&mut self, space: usize, range: u32, free_after: FreeAfter) -> u64 {
        let at = &mut self.spaces[space];
        let size = at.give(&mut self.frames, &self.streams, range, free_after);
        if at.begins_to_wait() {
            self.waiting.push(space);
        }
        size
    }

    /// Removes a frame that is used and mapped nowhere. Its memory is released once the core is unlocked.
    pub(crate) fn remove(&mut self, frame: FrameIndex) {
        self.calls.other += 1;
        self.released.extend(self.frames.remove(frame));
    }

    /// Counts freed bytes that wait for a stream.
    #[inline]
    fn note_freed(&mut self, stream: StreamIndex, size: u64) {
        if stream != CLEAN && (self.streams.are_several() || self.streams.is_of_thread(stream)) {
            self.streams.note_freed(stream, size, self.most_unmarked());
        }
    }

    /// Returns the most freed bytes of a stream that no event covers.
    pub(crate) fn most_unmarked(&self) -> u64 {
        (self.peak_taken / UNMARKED).max(UNMARKED_PAGES * self.page)
    }

    /// Finds the place for a request that needs the least mapping; at the end of a space only if no free range fits.
    #[inline]
    pub(crate) fn find(&mut self, request: Request) -> Option<(usize, Spot)> {
        if let Some(address) = request.at {
            return self.find_at(request, address);
        }
        let wanted = request.wanted();
        let mut best: Option<(usize, Spot)> = None;
        let Self { tags, spaces, frames, streams, .. } = self;
        let (mixed, own) = tags.spaces_for(request.tag, request.group());
        for index in mixed.iter().chain(own) {
            let space = &mut spaces[*index];
            space.settle(frames, streams);
            match space.find(frames, streams, wanted) {
                Some(spot) if spot.work == 0 => return Some((*index, spot)),
                Some(spot) if best.is_none_or(|(_, best)| spot.work < best.work) => {
                    best = Some((*index, spot));
                }
                _ => {}
            }
        }
        best.or_else(|| self.find_in_rest(request))
    }

    /// Finds the place for a request at the end of a space.
    #[inline(never)]
    fn find_in_rest(&mut self, request: Request) -> Option<(usize, Spot)> {
        let wanted = request.wanted();
        let mixes = self.may_extend_mixed(request);
        let Self { tags, spaces, frames, .. } = self;
        let (mixed, own) = tags.spaces_for(request.tag, request.group());
        let mut ends = mixed.iter().filter(|_| mixes).chain(own).copied();
        ends.find_map(|index| Some((index, spaces[index].find_in_rest(frames, wanted)?)))
    }

    /// Finds the place in one space.
    pub(crate) fn find_in(&mut self, space: usize, request: Request) -> Option<Spot> {
        let (at, wanted) = (&mut self.spaces[space], request.wanted());
        at.settle(&mut self.frames, &self.streams);
        let spot = at.find(&mut self.frames, &self.streams, wanted);
        spot.or_else(|| at.find_in_rest(&mut self.frames, wanted))
    }

    /// Polls the streams, and collects the pieces whose work is done. Returns true if any work was found done, or any memory has become
    /// free.
    pub(crate) fn poll(&mut self) -> bool {
        let is_any_done = self.streams.poll();
        self.collect_pending() || is_any_done
    }

    /// Returns a number that grows whenever memory may have become free: a piece was freed, or a thread has ended what it does without
    /// the core.
    pub(crate) fn returned(&self) -> u64 {
        self.frees + self.ongoing.ended()
    }

    /// Records the current amounts in the history.
    pub(crate) fn note(&mut self) {
        let held = self.held();
        self.peak_held = self.peak_held.max(held);
        self.history.note(self.taken, self.pending.bytes(), held);
    }
}

/// Returns the size of a frame that the program has set, or the default.
fn page_of(settings: &Settings, budget: Bytes) -> Bytes {
    let is_large = settings.total >= LARGE && budget >= LARGE_PAGE && !settings.plain;
    if settings.page.is_zero() && is_large { LARGE_PAGE } else { settings.page }
}
