//! What lies in front of threads: pieces that were freed and serve the next request of the same size and stream, under a
//! lock that hardly anybody else wants.
//!
//! A lane is not a thread's own: threads are spread over the lanes of a pool, and a block goes back to the lane that it
//! came from, whoever drops it.

use crate::classes::{CLASSES, SMALL_CLASSES, size_of};
use crate::inner::Inner;
use crate::piece::Piece;
use crate::turn::StreamIndex;
use gpu_vmm_core::{Backend, Stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most that lies in one lane, in bytes.
const MOST: u64 = 8 << 20;

/// Which lane a thread uses.
pub(crate) fn of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

#[derive(Debug)]
pub(crate) struct Lane<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    /// Apart from other lanes' in the processor's caches.
    _apart: [u64; 16],
    cache: Mutex<Cache>,
}

/// What is in a lane.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    drawers: Vec<Drawer>,
    pub(crate) bytes: u64,
    /// What the lane has given out.
    pub(crate) live: u64,
    pub(crate) live_blocks: u64,
    pub(crate) allocations: u64,
}

/// The pieces of one tag and stream.
#[derive(Debug)]
struct Drawer {
    tag: u16,
    stream: Stream<'static>,
    index: StreamIndex,
    by_class: Box<[Vec<Piece>]>,
}

/// A drawer's number in its lane.
pub(crate) type DrawerIndex = u16;

impl<B: Backend> Lane<B> {
    pub(crate) fn new(inner: &Arc<Inner<B>>) -> Self {
        Self { inner: Arc::clone(inner), _apart: [0; 16], cache: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// The drawer of a tag and stream, if there is one.
    pub(crate) fn drawer(&self, tag: u16, stream: Stream<'static>) -> Option<DrawerIndex> {
        let index = self.drawers.iter().position(|drawer| drawer.tag == tag && drawer.stream == stream)?;
        Some(index as DrawerIndex)
    }

    pub(crate) fn add_drawer(
        &mut self,
        tag: u16,
        stream: Stream<'static>,
        index: StreamIndex,
    ) -> DrawerIndex {
        let by_class = (0..CLASSES).map(|_| Vec::new()).collect();
        self.drawers.push(Drawer { tag, stream, index, by_class });
        (self.drawers.len() - 1) as DrawerIndex
    }

    pub(crate) fn stream_of(&self, drawer: DrawerIndex) -> StreamIndex {
        self.drawers[usize::from(drawer)].index
    }

    /// Takes a piece out.
    pub(crate) fn pop(&mut self, drawer: DrawerIndex, class: usize) -> Option<Piece> {
        let piece = self.drawers[usize::from(drawer)].by_class[class].pop()?;
        self.bytes -= piece.size;
        Some(piece)
    }

    /// Puts a piece in; the pieces that are too many then.
    pub(crate) fn push(&mut self, drawer: DrawerIndex, class: usize, piece: Piece) -> Vec<Piece> {
        let pieces = &mut self.drawers[usize::from(drawer)].by_class[class];
        self.bytes += piece.size;
        pieces.push(piece);
        if pieces.len() <= most_of(class) && self.bytes <= MOST {
            return Vec::new();
        }
        // The older half, so that neither the next free nor the next request goes the long way again.
        let old: Vec<_> = pieces.drain(..pieces.len().div_ceil(2)).collect();
        self.bytes -= old.iter().map(|piece| piece.size).sum::<u64>();
        old
    }

    /// Puts a piece in that was fetched with others.
    pub(crate) fn add(&mut self, drawer: DrawerIndex, class: usize, piece: Piece) {
        self.bytes += piece.size;
        self.drawers[usize::from(drawer)].by_class[class].push(piece);
    }

    /// Takes everything out that `wanted` says, by tag, with its stream.
    pub(crate) fn empty(&mut self, wanted: impl Fn(u16) -> bool) -> Vec<(Piece, StreamIndex)> {
        let mut all = Vec::new();
        for drawer in self.drawers.iter_mut().filter(|drawer| wanted(drawer.tag)) {
            let pieces = drawer.by_class.iter_mut().flat_map(|pieces| pieces.drain(..));
            all.extend(pieces.map(|piece| (piece, drawer.index)));
        }
        self.bytes -= all.iter().map(|(piece, _)| piece.size).sum::<u64>();
        all
    }

    /// True where a piece with this address lies here.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let pieces = self.drawers.iter().flat_map(|drawer| drawer.by_class.iter().flatten());
        pieces.into_iter().any(|piece| piece.address == address)
    }

    /// All pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.drawers.iter().flat_map(|drawer| drawer.by_class.iter().flatten())
    }
}

/// How many pieces of a class lie in one drawer at most.
fn most_of(class: usize) -> usize {
    if class < SMALL_CLASSES { (((256 << 10) / size_of(class)) as usize).clamp(8, 256) } else { 4 }
}

/// How many small pieces are fetched at a time.
pub(crate) fn batch_of(class: usize) -> usize {
    (most_of(class) / 4).clamp(1, 32)
}
