//! A piece of a pool's memory that somebody has.
//!
//! Unsafe, since a block's body is taken out of it while it is dropped.
#![allow(unsafe_code)]

use crate::Fence;
use crate::piece::Piece;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use crate::thread_cache::body::Ready;
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Operation, Result, Stream};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A piece of a pool's memory. Dropping it frees it, in the order of its stream: what is queued there may still use it.
///
/// It is one pointer in size.
pub struct Block<B: Backend> {
    /// Taken out when the block is dropped.
    body: ManuallyDrop<Ready<B>>,
}

impl<B: Backend> fmt::Debug for Block<B> {
    /// Of the block alone: the pool behind it is large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &self.size())
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Block<B> {
    /// What has been counted in its thread cache.
    #[inline]
    pub(crate) fn new(body: Ready<B>) -> Self {
        Self { body: ManuallyDrop::new(body) }
    }

    /// The first address, a multiple of 256 at least.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.body.piece.address)
    }

    /// How much was asked for.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.body.size())
    }

    /// How much it takes: what was asked for, rounded up.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.body.piece.size)
    }

    /// The stream that it was allocated for.
    #[must_use]
    pub fn stream(&self) -> Stream<'static> {
        self.body.stream
    }

    /// Notes that work on another stream uses it too: once it is freed, it is used again when that stream has done what
    /// is queued on it then. PyTorch: `record_stream`.
    ///
    /// The stream may be another device's: then the memory is free again once all devices have been waited for, which
    /// happens when memory runs out.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported) for the [per-thread default stream](Stream::is_per_thread), and
    /// for more streams than a pool can serve; [`Forked`](gpu_vmm_core::Detail::Forked).
    pub fn record_use(&mut self, stream: Stream<'static>) -> Result<()> {
        let operation = Operation::RecordUse;
        let index = self.body.thread_cache.inner.core(operation)?.streams.index(operation, stream)?;
        self.note_use(index);
        Ok(())
    }

    /// Notes that work on a stream of this number uses it.
    pub(crate) fn note_use(&mut self, index: StreamIndex) {
        if !self.is_used_on(index) {
            self.body.others.get_or_insert_default().streams.push(index);
        }
    }

    /// True if its memory is free only after the stream of this number has done what is queued there.
    pub(crate) fn is_used_on(&self, index: StreamIndex) -> bool {
        index == self.body.index
            || self.body.others.as_ref().is_some_and(|others| others.streams.contains(&index))
    }

    pub(crate) fn piece(&self) -> &Piece {
        &self.body.piece
    }

    /// What it is a block of.
    pub(crate) fn inner(&self) -> &Arc<Inner<B>> {
        &self.body.thread_cache.inner
    }

    /// True where [`record_use`](Block::record_use) has noted another stream.
    #[must_use]
    pub fn is_used_elsewhere(&self) -> bool {
        self.body.others.as_ref().is_some_and(|others| !others.streams.is_empty())
    }

    /// Frees it, to be used again when `fence` is done, on whichever stream: its own stream's work on it is then done as
    /// well.
    pub fn free_after(mut self, fence: Arc<dyn Fence>) {
        self.body.others.get_or_insert_default().fence = Some(fence);
    }
}

impl<B: Backend> Drop for Block<B> {
    #[inline]
    fn drop(&mut self) {
        // In a forked child all of it is the parent's, and a lock may be held by a thread that is not here.
        if self.body.thread_cache.inner.process.is_this() {
            // SAFETY: nobody uses the block after it was dropped, and nothing has taken it out before.
            unsafe { ManuallyDrop::take(&mut self.body) }.free();
        }
    }
}

/// What is known of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The first address.
    pub base: Address,
    /// How much it takes: what was asked for, rounded up. [`Block::capacity`] is the same.
    pub capacity: Bytes,
    /// How far behind the first address the one lies that was asked about.
    pub offset: Bytes,
    /// Whose memory it is.
    pub device: DeviceId,
    /// The stream that it was allocated for.
    pub stream: Stream<'static>,
    /// What it is tagged with.
    pub tag: Box<str>,
}
