//! Thread caches: freed pieces that serve the next request of the same size and stream, under a lock that few threads take.
//!
//! A thread cache does not belong to one thread. The threads are spread over the thread caches of a pool, and a block
//! returns to the thread cache that it came from, whichever thread drops it.
//!
//! Unsafe: a thread cache lives as long as its pool or one of its blocks, and those references are counted by hand.
#![allow(unsafe_code)]

pub(crate) mod body;
#[cfg(all(test, loom))]
mod models;
mod stack;

use body::{Body, Ready};
use stack::Stack;

use crate::classes::{CLASSES, Class, SMALL_CLASSES, size_of};
use crate::piece::Piece;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use gpu_vmm_core::{Backend, Detail, Error, Operation, Result, Stream};
use gpu_vmm_sync::atomic::{AtomicUsize, Ordering};
use gpu_vmm_sync::{Arc, SpinMutex, SpinMutexGuard, per_thread, shared_static};
use std::cell::Cell;
use std::ptr::NonNull;

/// The most that lies in one thread cache, in bytes.
const MAX: u64 = 8 << 20;

/// Which thread cache a thread uses.
#[inline]
pub(crate) fn of_this_thread() -> usize {
    shared_static! {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    per_thread! {
        static OWN: Cell<usize> = Cell::new(usize::MAX);
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

/// A thread cache, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCache<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    /// Held for as long as it takes to push or pop, and never while anything else is waited for.
    cache: SpinMutex<Cache<B>>,
}

/// A counted reference to a thread cache, held by its pool and by its blocks. The count is kept under the thread cache's
/// own lock, since an atomic counter would cost as much as the rest of an allocation.
#[derive(Debug)]
pub(crate) struct ThreadCacheRef<B: Backend>(NonNull<ThreadCache<B>>);

// SAFETY: it is a shared reference to a thread cache that is not freed before the last of them has said so; a thread cache can be shared
// by threads and dropped by any.
unsafe impl<B: Backend> Send for ThreadCacheRef<B> {}
// SAFETY: as above.
unsafe impl<B: Backend> Sync for ThreadCacheRef<B> {}

impl<B: Backend> ThreadCacheRef<B> {
    /// A new thread cache, which is its pool's: [`ThreadCacheRef::give_up`] ends that.
    pub(crate) fn new(inner: &Arc<Inner<B>>) -> Self {
        let cache = SpinMutex::new(Cache::new());
        let thread_cache = Box::new(ThreadCache { inner: Arc::clone(inner), cache });
        Self(NonNull::from(Box::leak(thread_cache)))
    }

    /// For a block that is counted as live in the thread cache, and as long as it is: [`ThreadCacheRef::release`] ends that.
    #[inline]
    pub(crate) fn for_block(&self) -> Self {
        Self(self.0)
    }

    /// Frees the thread cache, which nobody has any more.
    fn free(&self) {
        // SAFETY: it was leaked from a box, its pool has given it up, and its last block is gone: whoever saw both under the
        // thread cache's lock is the one that comes here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// The pool's part ends. What lies in the thread cache has been taken out.
    pub(crate) fn give_up(&self) {
        let mut cache = self.lock();
        cache.owned = false;
        let is_last = cache.live_blocks == 0;
        drop(cache);
        self.release(is_last);
    }

    /// A part ends, the pool's or a block's, of which was said under the lock whether it [is the last](Cache::count_in).
    /// Nothing is done with the thread cache in between.
    #[inline]
    pub(crate) fn release(&self, is_last: bool) {
        if is_last {
            self.free();
        }
    }
}

impl<B: Backend> std::ops::Deref for ThreadCacheRef<B> {
    type Target = ThreadCache<B>;

    #[inline]
    fn deref(&self) -> &ThreadCache<B> {
        // SAFETY: the thread cache is there as long as its pool or a live block is.
        unsafe { self.0.as_ref() }
    }
}

/// What is in a thread cache.
#[derive(Debug)]
pub(crate) struct Cache<B: Backend> {
    bins: Vec<Bin<B>>,
    /// For blocks that are to come, so that nothing has to be allocated for them.
    spare: Stack<B>,
    pub(crate) bytes: u64,
    /// True as long as the pool is there.
    owned: bool,
    /// What the thread cache has given out.
    pub(crate) live: u64,
    pub(crate) live_blocks: u64,
    pub(crate) allocations: u64,
}

/// What is ready of one tag and stream. On cache lines of its own, as its thread cache is: other thread caches have theirs beside it.
#[derive(Debug)]
#[repr(align(128))]
struct Bin<B: Backend> {
    tag: u16,
    /// [`FORGOTTEN`] when the stream was: what comes back then waits until the number serves another stream.
    stream: Stream<'static>,
    index: StreamIndex,
    by_class: [Stack<B>; CLASSES],
}

/// No stream: the last address there is, at which no vendor has one.
// SAFETY: it is compared with other streams and never given to a driver.
const FORGOTTEN: Stream<'static> = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(usize::MAX)) };

/// The number of a bin in its thread cache.
pub(crate) type BinIndex = u16;

impl<B: Backend> ThreadCache<B> {
    #[inline]
    pub(crate) fn lock(&self) -> SpinMutexGuard<'_, Cache<B>> {
        self.cache.lock()
    }
}

impl<B: Backend> Cache<B> {
    fn new() -> Self {
        let (bins, spare) = (Vec::new(), Stack::new());
        Self { bins, spare, bytes: 0, owned: true, live: 0, live_blocks: 0, allocations: 0 }
    }

    /// Counts a block that is given out.
    #[inline]
    pub(crate) fn count_out(&mut self, size: u64) {
        self.live += size;
        self.live_blocks += 1;
        self.allocations += 1;
    }

    /// Counts a block that comes back. True where nobody has the thread cache any more.
    #[inline]
    pub(crate) fn count_in(&mut self, size: u64) -> bool {
        self.live -= size;
        self.live_blocks -= 1;
        self.live_blocks == 0 && !self.owned
    }

    /// True where pieces can be put in: nobody would take them out again without the pool.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Returns the bin of a tag and stream, if there is one.
    #[inline]
    pub(crate) fn bin(&self, tag: u16, stream: Stream<'static>) -> Option<BinIndex> {
        let index = self.bins.iter().position(|bin| bin.tag == tag && bin.stream == stream)?;
        Some(index as BinIndex)
    }

    /// Adds a bin for a tag and stream: one that was a forgotten stream's with the same number, all of whose work is done by
    /// now, or a new one.
    pub(crate) fn add_bin(
        &mut self,
        tag: u16,
        stream: Stream<'static>,
        index: StreamIndex,
    ) -> Result<BinIndex> {
        let is_left = |one: &Bin<B>| one.tag == tag && one.index == index && one.stream == FORGOTTEN;
        if let Some(left) = self.bins.iter().position(is_left) {
            self.bins[left].stream = stream;
            return Ok(left as BinIndex);
        }
        let bin = BinIndex::try_from(self.bins.len()).map_err(|_| {
            Error::new(
                Operation::Allocate,
                Detail::Unsupported {
                    reason: format!("a pool serves {} pairs of a tag and a stream", BinIndex::MAX),
                },
            )
        })?;
        let by_class = [const { Stack::new() }; CLASSES];
        self.bins.push(Bin { tag, stream, index, by_class });
        Ok(bin)
    }

    #[inline]
    pub(crate) fn stream_of(&self, bin: BinIndex) -> StreamIndex {
        self.bins[usize::from(bin)].index
    }

    /// Takes out what serves a block of so many bytes, and counts it.
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
        ready.unused = (ready.piece.size - size) as u16;
        // A forgotten stream with the same number may have had it.
        ready.stream = stream;
        self.count_out(size);
        Some(ready)
    }

    /// Puts in what a block has left. True where there is too much then: [`Cache::take_old`] is to follow.
    #[inline]
    pub(crate) fn push(&mut self, bin: BinIndex, class: Class, ready: Ready<B>) -> bool {
        let class = class.index();
        self.bytes += ready.piece.size;
        let all = &mut self.bins[usize::from(bin)].by_class[class];
        all.push(ready);
        all.len() > usize::from(MAX_OF[class]) || self.bytes > MAX
    }

    /// Takes the older half of a class out, so that neither the next free nor the next request goes the long way again.
    #[cold]
    pub(crate) fn take_old(&mut self, bin: BinIndex, class: Class) -> Vec<Piece> {
        let all = &mut self.bins[usize::from(bin)].by_class[class.index()];
        let kept = all.len() / 2;
        let old: Vec<_> = all.split_off_old(kept).drain().map(|ready| ready.piece).collect();
        self.bytes -= old.iter().map(|piece| piece.size).sum::<u64>();
        old
    }

    /// Puts a piece in that was fetched with others.
    pub(crate) fn add(&mut self, bin: BinIndex, class: Class, body: Body<B>) {
        let ready = self.boxed(body);
        self.push(bin, class, ready);
    }

    /// A body in its place, of those that were kept if there is one.
    pub(crate) fn boxed(&mut self, body: Body<B>) -> Ready<B> {
        match self.spare.pop() {
            Some(mut ready) => {
                *ready = body;
                ready
            }
            None => Box::new(body),
        }
    }

    /// Keeps what was a block's, whose memory has gone elsewhere.
    pub(crate) fn keep(&mut self, spare: Ready<B>) {
        if self.spare.len() < SPARE {
            self.spare.push(spare);
        }
    }

    /// Forgets a stream: nothing is taken from its bins until its number serves another one.
    pub(crate) fn forget(&mut self, index: StreamIndex) {
        let of_stream = self.bins.iter_mut().filter(|bin| bin.index == index);
        of_stream.for_each(|bin| bin.stream = FORGOTTEN);
    }

    /// Takes everything out that `wanted` says, by tag and stream, with its stream.
    pub(crate) fn empty(&mut self, wanted: impl Fn(u16, StreamIndex) -> bool) -> Vec<(Piece, StreamIndex)> {
        let mut all = Vec::new();
        for bin in self.bins.iter_mut().filter(|bin| wanted(bin.tag, bin.index)) {
            let ready = bin.by_class.iter_mut().flat_map(Stack::drain);
            all.extend(ready.map(|ready| (ready.piece, bin.index)));
        }
        self.bytes -= all.iter().map(|(piece, _)| piece.size).sum::<u64>();
        all
    }

    /// True where a piece with this address lies here.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.pieces().any(|piece| piece.address == address)
    }

    /// All pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let bodies = self.bins.iter().flat_map(|bin| bin.by_class.iter().flat_map(Stack::iter));
        bodies.map(|body| &body.piece)
    }
}

/// So many bodies of blocks are kept for others in one thread cache.
const SPARE: usize = 64;

/// How many pieces of a class lie in one bin at most.
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

/// How many small pieces are fetched at a time.
pub(crate) fn batch_of(class: usize) -> usize {
    usize::from(MAX_OF[class] / 4).clamp(1, 32)
}
