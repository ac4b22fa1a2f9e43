//! A piece of a pool's memory that somebody has.

use crate::Fence;
use crate::lane::{DrawerIndex, LaneRef};
use crate::pending::Waiting;
use crate::piece::Piece;
use crate::turn::{StreamIndex, Turn};
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Stream};
use std::fmt;

/// A piece of a pool's memory. Dropping it frees it, in the order of its stream: what is queued there may still use it.
pub struct Block<B: Backend> {
    pub(crate) lane: LaneRef<B>,
    pub(crate) piece: Piece,
    pub(crate) size: u64,
    pub(crate) stream: Stream<'static>,
    pub(crate) drawer: DrawerIndex,
    /// Its class, where it goes back to the lane.
    pub(crate) class: Option<u16>,
    /// What it has to wait for beside its own stream; hardly any block does.
    pub(crate) others: Option<Box<Others>>,
}

/// What a block waits for when it is freed.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Other streams that have used it.
    streams: Vec<Stream<'static>>,
    fence: Option<Box<dyn Fence>>,
}

impl<B: Backend> fmt::Debug for Block<B> {
    /// Of the block alone: the pool behind it is large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &self.size())
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
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
        if stream == self.stream {
            return;
        }
        let streams = &mut self.others.get_or_insert_default().streams;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Frees it, to be used again when `fence` is done, on whichever stream: its own stream's work on it is then done as
    /// well.
    pub fn free_after(mut self, fence: Box<dyn Fence>) {
        self.others.get_or_insert_default().fence = Some(fence);
    }

    #[inline]
    fn free(&mut self) {
        let tracking = &self.lane.inner.tracking;
        if tracking.is_on() {
            tracking.forget(self.address());
        }
        let mut cache = self.lane.lock();
        let class = self.class.filter(|_| self.others.is_none() && cache.is_owned());
        if let Some(class) = class
            && !cache.push(self.drawer, usize::from(class), self.piece)
        {
            let is_last = cache.count_in(self.size);
            drop(cache);
            return self.lane.release(is_last);
        }
        drop(cache);
        self.free_to_books(class);
    }

    /// What is left to do of it where it cannot lie in its lane, or lies there as one too many of a class.
    #[inline(never)]
    fn free_to_books(&mut self, full: Option<u16>) {
        let mut cache = self.lane.lock();
        let stream = cache.stream_of(self.drawer);
        let old = full.map(|class| cache.take_old(self.drawer, usize::from(class)));
        drop(cache);
        match old {
            Some(pieces) => {
                let mut core = self.lane.inner.core();
                pieces.into_iter().for_each(|piece| core.give(piece, stream));
            }
            None => self.give_back(stream),
        }
        // As long as the block is counted, the lane is there.
        let is_last = self.lane.lock().count_in(self.size);
        self.lane.release(is_last);
    }

    /// Gives it back to the common books.
    fn give_back(&mut self, stream: StreamIndex) {
        if let Some(others) = self.others.take() {
            return self.wait_for(*others, stream);
        }
        let mut core = self.lane.inner.core();
        core.give(self.piece, stream);
        core.keep_to_limit();
    }

    /// Has it wait for the other streams that have used it, or for its fence.
    fn wait_for(&self, others: Others, stream: StreamIndex) {
        let mut core = self.lane.inner.core();
        let mut turns = Vec::with_capacity(others.streams.len());
        for other in others.streams {
            let index = core.streams.index(other);
            // Of a stream that is one too many nobody can tell how far it has come.
            turns.push(index.as_ref().map_or(Turn::NEVER, |index| core.streams.free(*index)));
            if let Err(error) = index.and_then(|index| core.streams.mark_now(index)) {
                // Another event tells later.
                core.backend.drop_log().record(error);
            }
        }
        let turn = core.streams.free(stream);
        core.pending.push(Waiting { piece: self.piece, turn, turns, fence: others.fence });
        core.note();
    }
}

impl<B: Backend> Drop for Block<B> {
    #[inline]
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
