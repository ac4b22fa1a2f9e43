//! A piece of a pool's memory that somebody has.

use crate::Fence;
use crate::lane::{DrawerIndex, Lane};
use crate::pending::Waiting;
use crate::piece::Piece;
use crate::turn::StreamIndex;
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Stream};
use std::sync::Arc;

/// A piece of a pool's memory. Dropping it frees it, in the order of its stream: what is queued there may still use it.
#[derive(Debug)]
pub struct Block<B: Backend> {
    pub(crate) lane: Arc<Lane<B>>,
    pub(crate) piece: Piece,
    pub(crate) size: u64,
    pub(crate) stream: Stream<'static>,
    pub(crate) drawer: DrawerIndex,
    /// Its class, where it goes back to the lane.
    pub(crate) class: Option<u16>,
    /// Other streams that have used it.
    pub(crate) used_on: Vec<Stream<'static>>,
    pub(crate) fence: Option<Box<dyn Fence>>,
}

impl<B: Backend> Block<B> {
    /// The first address, a multiple of 256 at least.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.piece.address)
    }

    /// How much was asked for.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// How much it takes: what was asked for, rounded up.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.piece.size)
    }

    /// The stream that it was allocated for.
    #[must_use]
    pub fn stream(&self) -> Stream<'static> {
        self.stream
    }

    /// Notes that work on another stream uses it too: once it is freed, it is used again when that stream has done what
    /// is queued on it then. PyTorch: `record_stream`.
    pub fn record_use(&mut self, stream: Stream<'static>) {
        if stream != self.stream && !self.used_on.contains(&stream) {
            self.used_on.push(stream);
        }
    }

    /// Frees it, to be used again when `fence` is done, on whichever stream: its own stream's work on it is then done as
    /// well.
    pub fn free_after(mut self, fence: Box<dyn Fence>) {
        self.fence = Some(fence);
    }

    fn free(&mut self) {
        let inner = &self.lane.inner;
        inner.tracking.forget(self.piece.address);
        let mut cache = self.lane.lock();
        cache.live -= self.size;
        cache.live_blocks -= 1;
        let stream = cache.stream_of(self.drawer);
        if self.fence.is_some() || !self.used_on.is_empty() {
            drop(cache);
            return self.wait_for_others(stream);
        }
        let Some(class) = self.class else {
            drop(cache);
            let mut core = inner.core();
            core.give(self.piece, stream);
            return core.keep_to_limit();
        };
        let old = cache.push(self.drawer, usize::from(class), self.piece);
        if !old.is_empty() {
            let mut core = inner.core();
            old.into_iter().for_each(|piece| core.give(piece, stream));
        }
    }

    /// Has it wait for the other streams that have used it, or for its fence.
    fn wait_for_others(&mut self, stream: StreamIndex) {
        let mut core = self.lane.inner.core();
        let mut turns = Vec::with_capacity(self.used_on.len());
        for other in self.used_on.drain(..) {
            let marked = core.streams.index(other).and_then(|index| {
                turns.push(core.streams.free(index));
                core.streams.mark(usize::from(index))
            });
            if let Err(error) = marked {
                // Another event tells later; a stream that is none keeps the memory from being used again.
                core.backend.drop_log().record(error);
            }
        }
        core.pending.push(Waiting { piece: self.piece, stream, turns, fence: self.fence.take() });
        core.note();
    }
}

impl<B: Backend> Drop for Block<B> {
    fn drop(&mut self) {
        // In a forked child all of it is the parent's, and a lock may be held by a thread that is not here.
        if self.lane.inner.process.is_this() {
            self.free();
        }
    }
}

/// What is known of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The first address.
    pub base: Address,
    /// How much it takes: what was asked for, rounded up.
    pub size: Bytes,
    /// How far behind the first address the one lies that was asked about.
    pub offset: Bytes,
    /// Whose memory it is.
    pub device: DeviceId,
    /// The stream that it was allocated for.
    pub stream: Stream<'static>,
    /// What it is tagged with.
    pub tag: Box<str>,
}
