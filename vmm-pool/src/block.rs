//! A block of a pool's memory that a caller owns.
//!
//! Unsafe: dropping a block moves its body out of it.
#![allow(unsafe_code)]

use crate::Fence;
use crate::block_memory::BlockMemory;
use crate::per_thread;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use crate::thread_cache::body::{Body, FreeConditions, Ready};
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Operation, Properties, Result, Stream};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A block of a pool's memory. Dropping it frees it in the order of its stream: work that is queued there may still use it.
///
/// A block has the size of a pointer.
///
/// # Thread safety
///
/// Any thread may have the block and drop it, also after the pool's last handle. Calls that take `&self` may run at the same time,
/// and at the same time as a suspension of the block's tag. Streams, not threads, order device work.
pub struct Block<B: Backend> {
    /// Taken out when the block is dropped.
    body: ManuallyDrop<Ready<B>>,
}

impl<B: Backend> fmt::Debug for Block<B> {
    /// Formats the block alone: the pool behind it is large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &self.size())
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Block<B> {
    /// Creates a block from a body that its thread cache has counted.
    #[inline]
    pub(crate) fn new(body: Ready<B>) -> Self {
        Self { body: ManuallyDrop::new(body) }
    }

    /// Returns the first address, a multiple of at least 256.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.body.piece.address)
    }

    /// Returns the requested size.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.body.size())
    }

    /// Returns the size that the block occupies: the requested size, rounded up.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.body.piece.size)
    }

    /// Returns the stream that the block was allocated for.
    #[must_use]
    pub fn stream(&self) -> Stream<'static> {
        per_thread::for_caller(self.body.stream)
    }

    /// Records that work on another stream uses the block too. After the block is freed, its memory is reused once that stream
    /// has done the work that was queued on it at the free. PyTorch: `record_stream`.
    ///
    /// The stream may belong to another device. The memory is then free only after a wait for all devices, which happens when
    /// memory runs out. The [per-thread default stream](Stream::is_per_thread) is the calling thread's.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported) for more streams than a pool can serve, and for the per-thread default stream
    /// of a thread that is ending; [`Forked`](gpu_vmm_core::Detail::Forked).
    pub fn record_use(&mut self, stream: Stream<'static>) -> Result<()> {
        self.inner().end_threads(Operation::RecordUse, stream)?;
        self.record_use_now(stream)
    }

    /// Records a use without a wait.
    pub(crate) fn record_use_now(&mut self, stream: Stream<'static>) -> Result<()> {
        let operation = Operation::RecordUse;
        let index = self.body.thread_cache.inner.core(operation)?.streams.index(operation, stream)?;
        self.note_use(index);
        Ok(())
    }

    /// Notes that work on the stream with this number uses the block.
    pub(crate) fn note_use(&mut self, index: StreamIndex) {
        // A use that has ended says nothing about later work of its stream.
        let is_recorded = self.others().is_some_and(|others| others.streams.contains(&index));
        if index != self.body.index && !is_recorded {
            self.body.others.get_or_insert_default().streams.push(index);
        }
    }

    /// Returns true if the memory is free only after work of the stream with this number.
    pub(crate) fn is_used_on(&self, index: StreamIndex) -> bool {
        index == self.body.index || self.others().is_some_and(|others| others.is_used_on(index))
    }

    pub(crate) fn others(&self) -> Option<&FreeConditions> {
        self.body.others.as_deref()
    }

    /// Returns the conditions that the block waits for, and the state with the streams.
    pub(crate) fn others_mut(&mut self) -> (&Inner<B>, Option<&mut FreeConditions>) {
        let Body { thread_cache, others, .. } = &mut **self.body;
        (&thread_cache.inner, others.as_deref_mut())
    }

    /// Forgets the uses on other streams, which are done.
    pub(crate) fn forget_uses(&mut self) {
        self.body.others = None;
    }

    pub(crate) fn piece(&self) -> &BlockMemory {
        &self.body.piece
    }

    /// Returns the state that the pool shares with its blocks.
    pub(crate) fn inner(&self) -> &Arc<Inner<B>> {
        &self.body.thread_cache.inner
    }

    /// Returns true if [`record_use`](Block::record_use) has recorded another stream.
    #[must_use]
    pub fn is_used_elsewhere(&self) -> bool {
        self.others().is_some_and(|others| !(others.streams.is_empty() && others.also_after.is_empty()))
    }

    /// Frees the block. Requests for any stream reuse its memory once `fence` and the work of the streams that
    /// [`record_use`](Block::record_use) has recorded are done. The fence must cover the work on the block's own stream, which the
    /// pool does not wait for separately.
    pub fn free_after(mut self, fence: Arc<dyn Fence>) {
        self.body.others.get_or_insert_default().fence = Some(fence);
    }
}

impl<B: Backend> Drop for Block<B> {
    #[inline]
    fn drop(&mut self) {
        // In a forked child the memory is the parent's, and a thread that the child lacks may hold a lock.
        if self.body.thread_cache.inner.process.is_this() {
            // SAFETY: a dropped block is not used any more, and its body was not taken out before.
            unsafe { ManuallyDrop::take(&mut self.body) }.free();
        }
    }
}

/// The properties of a live block, as [`Pool::find`](crate::Pool::find) returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The first address.
    pub base: Address,
    /// The size that the block occupies: the requested size, rounded up. [`Block::capacity`] returns the same.
    pub capacity: Bytes,
    /// The distance of the queried address from the first one.
    pub offset: Bytes,
    /// The device whose memory it is; for host memory, the device of its properties.
    pub device: DeviceId,
    /// The properties of its kind of memory.
    pub memory: Properties,
    /// The stream that it was allocated for.
    pub stream: Stream<'static>,
    /// The block's tag.
    pub tag: Box<str>,
    /// True if its memory is suspended, or a thread suspends or resumes it. Also known of a tag that was
    /// [forgotten](crate::Pool::forget_tag).
    pub suspended: bool,
}
