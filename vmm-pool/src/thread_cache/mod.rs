//! Thread caches: freed pieces that serve the next request of the same size and stream, under a lock that few threads take.
//!
//! A thread cache does not belong to one thread. The threads are spread over the thread caches of a pool, and a block
//! returns to the thread cache that it came from, whichever thread drops it.
//!
//! The pool and every body own a counted reference to their thread cache, also the bodies that lie in the cache. A thread holds
//! a reference of its own while it locks the cache, so that the thread that frees the last one has left the lock. At the pool's
//! end the cache is [closed](ThreadCache::close): it gives up its bodies, and keeps none from then on.
#![allow(unsafe_code)] // the value for no stream

pub(crate) mod body;
#[cfg(all(test, loom))]
mod models;
mod stack;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use body::{Body, Place, Ready};
use stack::Stack;

use crate::block_memory::BlockMemory;
use crate::classes::{CLASSES, Class, SMALL_CLASSES, size_of};
use crate::per_thread;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use gpu_vmm_core::{Backend, Stream};
use gpu_vmm_premap::sync::{Arc, CountedArc, Mutex, MutexGuard, lock};

/// The most bytes in one thread cache.
const MAX: u64 = 8 << 20;

/// A thread cache, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCache<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    /// Held for a push or a pop only, and never while the thread waits for anything else. Most programs free a block on the thread
    /// that has allocated it, so that one thread locks it alone.
    cache: Mutex<Cache<B>>,
}

/// A counted reference to a thread cache. The count is part of loom's models.
pub(crate) type ThreadCacheRef<B> = CountedArc<ThreadCache<B>>;

/// The contents of a thread cache.
#[derive(Debug)]
pub(crate) struct Cache<B: Backend> {
    bins: Vec<Bin<B>>,
    /// Spare bodies for later blocks, which saves their allocation.
    spare: Stack<B>,
    pub(crate) bytes: u64,
    /// True after the pool's end: no request would take a cached body out again.
    closed: bool,
    /// True if no freed block is cached: after the pool's end, and while the pool holds more than its budget.
    refuses: bool,
    /// The bytes, the number and the total number of blocks that the thread cache has given out. The bytes wrap around: a block may
    /// grow in the slot for large blocks, which [counts that](crate::last_freed::Served::growth).
    pub(crate) live: u64,
    pub(crate) live_blocks: u64,
    pub(crate) allocations: u64,
}

/// The cached blocks of one tag and stream, on cache lines of their own, so that thread caches do not share any.
///
/// A bin serves another pair of a tag and a stream once it has no bodies: then no block has its number any more. Other code keeps the
/// number for no longer than it holds the core or the lock of the cache.
#[derive(Debug)]
#[repr(align(128))]
struct Bin<B: Backend> {
    tag: u16,
    /// The number of bodies whose place is this bin: cached ones, and bodies of live blocks.
    bodies: u32,
    /// The stream, or [`FORGOTTEN`] after it was forgotten: later frees then wait until the number serves another stream.
    stream: Stream<'static>,
    index: StreamIndex,
    by_class: [Stack<B>; CLASSES],
}

/// The value for no stream: the highest address, which no vendor uses for a stream.
// SAFETY: it is only compared with other streams, and never passed to a driver.
const FORGOTTEN: Stream<'static> = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(usize::MAX)) };

/// The number of a bin in its thread cache.
pub(crate) type BinIndex = u16;

impl<B: Backend> ThreadCache<B> {
    pub(crate) fn new(inner: &Arc<Inner<B>>) -> Self {
        Self { inner: Arc::clone(inner), cache: Mutex::new(Cache::new()) }
    }

    /// Locks the cache. The caller runs in the process that created the pool, and holds a reference to the thread cache that does
    /// not lie in the cache.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cache<B>> {
        lock(&self.cache)
    }

    /// Closes the cache at the pool's end, and returns all cached pieces with their stream. Without this, the bodies in the cache
    /// would keep it alive for ever.
    pub(crate) fn close(&self) -> Vec<(BlockMemory, StreamIndex)> {
        let mut cache = self.lock();
        (cache.closed, cache.refuses) = (true, true);
        let pieces = cache.empty(|_, _| true);
        let spare = std::mem::replace(&mut cache.spare, Stack::new());
        drop(cache);
        drop(spare);
        pieces
    }
}

impl<B: Backend> Cache<B> {
    fn new() -> Self {
        let (bins, spare) = (Vec::new(), Stack::new());
        Self { bins, spare, bytes: 0, closed: false, refuses: false, live: 0, live_blocks: 0, allocations: 0 }
    }

    /// Counts a block that is allocated.
    #[inline]
    pub(crate) fn count_out(&mut self, size: u64) {
        self.live = self.live.wrapping_add(size);
        self.live_blocks += 1;
        self.allocations += 1;
    }

    /// Counts a block that is freed.
    #[inline]
    pub(crate) fn count_in(&mut self, size: u64) {
        self.live = self.live.wrapping_sub(size);
        self.live_blocks -= 1;
    }

    /// Returns true if no freed block is cached: it returns to the core.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        self.refuses
    }

    /// Refuses blocks that are freed later, or caches them again, unless the pool has ended. The caller holds the core.
    pub(crate) fn refuse(&mut self, refuses: bool) {
        self.refuses = refuses || self.closed;
    }

    /// Returns the bin of a tag and stream, if there is one.
    #[inline]
    pub(crate) fn bin(&self, tag: u16, stream: Stream<'static>) -> Option<BinIndex> {
        let index = self.bins.iter().position(|bin| bin.tag == tag && bin.stream == stream)?;
        Some(index as BinIndex)
    }

    /// Adds a bin for a tag and stream. Reuses the bin of a forgotten stream, or of a thread that has ended, with the same number, whose
    /// work is all done by now, or one that has no bodies. Returns none if every number is in use. The caller holds the core.
    pub(crate) fn add_bin(
        &mut self,
        tag: u16,
        stream: Stream<'static>,
        index: StreamIndex,
    ) -> Option<BinIndex> {
        let is_over = |stream| stream == FORGOTTEN || per_thread::is_of_thread(stream);
        let is_left = |one: &Bin<B>| one.tag == tag && one.index == index && is_over(one.stream);
        if let Some(left) = self.bins.iter().position(is_left) {
            self.bins[left].stream = stream;
            return Some(left as BinIndex);
        }
        if let Some(empty) = self.bins.iter().position(|one| one.bodies == 0) {
            let bin = &mut self.bins[empty];
            (bin.tag, bin.stream, bin.index) = (tag, stream, index);
            return Some(empty as BinIndex);
        }
        let bin = BinIndex::try_from(self.bins.len()).ok()?;
        let by_class = [const { Stack::new() }; CLASSES];
        self.bins.push(Bin { tag, bodies: 0, stream, index, by_class });
        Some(bin)
    }

    #[inline]
    pub(crate) fn stream_of(&self, bin: BinIndex) -> StreamIndex {
        self.bins[usize::from(bin)].index
    }

    /// Takes a cached block for `size` bytes, and counts it.
    #[inline]
    pub(crate) fn take(
        &mut self,
        tag: u16,
        stream: Stream<'static>,
        class: usize,
        size: u64,
    ) -> Option<Ready<B>> {
        let bin = self.bin(tag, stream)?;
        let mut ready = self.bins[usize::from(bin)].by_class[class].pop()?;
        self.bytes -= ready.piece.size;
        ready.reuse(stream, size);
        self.count_out(size);
        Some(ready)
    }

    /// Caches a freed block. Returns true if there are too many then: the caller must call [`Cache::take_old`].
    #[inline]
    pub(crate) fn push(&mut self, bin: BinIndex, class: Class, ready: Ready<B>) -> bool {
        let class = class.index();
        self.bytes += ready.piece.size;
        let all = &mut self.bins[usize::from(bin)].by_class[class];
        all.push(ready);
        all.len() > usize::from(MAX_OF[class]) || self.bytes > MAX
    }

    /// Takes the older half of a class out, so that the next frees and requests stay within the thread cache.
    #[cold]
    pub(crate) fn take_old(&mut self, bin: BinIndex, class: Class) -> Vec<BlockMemory> {
        let all = &mut self.bins[usize::from(bin)].by_class[class.index()];
        let kept = all.len() / 2;
        let mut old = all.split_off_old(kept);
        let mut pieces = Vec::with_capacity(old.len());
        for ready in old.drain() {
            self.bytes -= ready.piece.size;
            pieces.push(ready.piece);
            self.keep(ready);
        }
        self.bins[usize::from(bin)].bodies -= pieces.len() as u32;
        pieces
    }

    /// Caches a piece that was fetched with others.
    pub(crate) fn add(&mut self, bin: BinIndex, class: Class, body: Body<B>) {
        let ready = self.boxed(body);
        self.push(bin, class, ready);
    }

    /// Boxes a new body, in a spare box if there is one.
    pub(crate) fn boxed(&mut self, body: Body<B>) -> Ready<B> {
        if let Place::Cached(bin, _) = body.place {
            self.bins[usize::from(bin)].bodies += 1;
        }
        match self.spare.pop() {
            Some(mut ready) => {
                *ready = body;
                ready
            }
            None => Box::new(body),
        }
    }

    /// Returns the number of bins.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn bins(&self) -> usize {
        self.bins.len()
    }

    /// Returns the number of spare bodies.
    #[cfg(test)]
    pub(crate) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Keeps the body of a block that was freed into the core, for a later block.
    pub(crate) fn keep_freed(&mut self, body: Ready<B>) {
        if let Place::Cached(bin, _) = body.place {
            self.bins[usize::from(bin)].bodies -= 1;
        }
        self.keep(body);
    }

    /// Keeps a body that has left its bin.
    fn keep(&mut self, body: Ready<B>) {
        if !self.closed {
            keep(&mut self.spare, body);
        }
    }

    /// Forgets a stream, and returns the pieces in its bins: nothing is taken from these until the number serves another stream.
    pub(crate) fn forget(&mut self, index: StreamIndex) -> Vec<(BlockMemory, StreamIndex)> {
        let of_stream = self.bins.iter_mut().filter(|bin| bin.index == index);
        of_stream.for_each(|bin| bin.stream = FORGOTTEN);
        self.empty(|_, of| of == index)
    }

    /// Takes out all pieces whose tag and stream `wanted` accepts. Returns them with their stream.
    pub(crate) fn empty(
        &mut self,
        wanted: impl Fn(u16, StreamIndex) -> bool,
    ) -> Vec<(BlockMemory, StreamIndex)> {
        let mut all = Vec::new();
        let Self { bins, spare, bytes, .. } = self;
        for bin in bins.iter_mut().filter(|bin| wanted(bin.tag, bin.index)) {
            for ready in bin.by_class.iter_mut().flat_map(Stack::drain) {
                bin.bodies -= 1;
                *bytes -= ready.piece.size;
                all.push((ready.piece, bin.index));
                keep(spare, ready);
            }
        }
        all
    }

    /// Returns true if a piece with this address is cached.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.pieces().any(|piece| piece.address == address)
    }

    /// Returns all cached pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &BlockMemory> {
        let bodies = self.bins.iter().flat_map(|bin| bin.by_class.iter().flat_map(Stack::iter));
        bodies.map(|body| &body.piece)
    }
}

/// The most spare bodies in one thread cache, 64 bytes each. A pool that is short of mapped memory empties its thread caches, and
/// the next requests fill them again: in between, the bodies are here.
const SPARE: usize = 1024;

/// Adds a body to the spare ones, if there are not too many.
fn keep<B: Backend>(spare: &mut Stack<B>, body: Ready<B>) {
    if spare.len() < SPARE {
        spare.push(body);
    }
}

/// The most pieces of each class in one bin.
static MAX_OF: [u16; CLASSES] = {
    let mut most = [4; CLASSES];
    let mut class = 0;
    while class < SMALL_CLASSES {
        let fitting = (256 << 10) / size_of(class);
        most[class] = if fitting > 256 { 256 } else { fitting as u16 };
        class += 1;
    }
    most
};

/// Returns the number of small pieces that are fetched at a time.
pub(crate) fn batch_of(class: usize) -> usize {
    usize::from(MAX_OF[class] / 4).clamp(1, 32)
}
