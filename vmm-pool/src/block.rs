//! A piece of a pool's memory that somebody has.
//!
//! Unsafe, since a block's body is taken out of it while it is dropped.
#![allow(unsafe_code)]

use crate::Fence;
use crate::classes::Class;
use crate::last_freed::Freed;
use crate::pending::Waiting;
use crate::piece::Piece;
use crate::shared::Inner;
use crate::stack::Ready;
use crate::stream_order::StreamIndex;
use crate::thread_cache::{BinIndex, ThreadCacheRef};
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

/// All that a block is. It stays with the memory while that lies in front of threads, so that an allocation writes next to
/// nothing, and moving a block moves a pointer.
///
/// It is one cache line, so that no thread waits for what another does with the block beside it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Body<B: Backend> {
    pub(crate) thread_cache: ThreadCacheRef<B>,
    pub(crate) piece: Piece,
    pub(crate) stream: Stream<'static>,
    /// By how much less was asked for than it takes: what requests are rounded up by.
    pub(crate) unused: u16,
    /// The stream's number.
    pub(crate) index: StreamIndex,
    /// Where it goes back to in the thread cache, if it does.
    pub(crate) place: Option<(BinIndex, Class)>,
    /// What it has to wait for beside its own stream; hardly any block does.
    pub(crate) others: Option<Box<Others>>,
    /// The next one where it lies in a [`Stack`](crate::stack::Stack).
    pub(crate) below: Option<Ready<B>>,
}

/// What a block waits for when it is freed.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Other streams that have used it.
    streams: Vec<StreamIndex>,
    fence: Option<Arc<dyn Fence>>,
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
        if index == self.body.index {
            return;
        }
        let streams = &mut self.body.others.get_or_insert_default().streams;
        if !streams.contains(&index) {
            streams.push(index);
        }
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

impl<B: Backend> Body<B> {
    /// Of a block of so many bytes in a piece, with its class if it has one.
    pub(crate) fn new(
        thread_cache: &ThreadCacheRef<B>,
        Freed { piece, index }: Freed,
        stream: Stream<'static>,
        size: u64,
        place: Option<(BinIndex, Class)>,
    ) -> Self {
        let unused = (piece.size - size) as u16;
        Self {
            thread_cache: thread_cache.for_block(),
            piece,
            stream,
            unused,
            index,
            place,
            others: None,
            below: None,
        }
    }

    /// How much was asked for.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.piece.size - u64::from(self.unused)
    }

    #[inline]
    fn free(self: Box<Self>) {
        let (thread_cache, size) = (self.thread_cache.for_block(), self.size());
        let tracking = &thread_cache.inner.tracking;
        if tracking.is_on() {
            tracking.forget(Address(self.piece.address));
        }
        let Some((bin, class)) = self.place else { return self.give_back() };
        let mut cache = thread_cache.lock();
        if self.others.is_some() || !cache.is_owned() {
            drop(cache);
            return self.give_back();
        }
        if cache.push(bin, class, self) {
            drop(cache);
            give_old(&thread_cache, bin, class);
            cache = thread_cache.lock();
        }
        // As long as the block is counted, the thread cache is there.
        let is_last = cache.count_in(size);
        drop(cache);
        thread_cache.release(is_last);
    }

    /// Gives it back to the common books.
    #[inline(never)]
    fn give_back(mut self: Box<Self>) {
        let (thread_cache, size) = (self.thread_cache.for_block(), self.size());
        let Self { piece, index, .. } = *self;
        match self.others.take() {
            Some(others) => self.wait_for(*others),
            None => thread_cache.inner.give(Freed { piece, index }),
        }
        let mut cache = thread_cache.lock();
        cache.keep(self);
        let is_last = cache.count_in(size);
        drop(cache);
        thread_cache.release(is_last);
    }

    /// Has it wait for the other streams that have used it, or for its fence.
    fn wait_for(&self, others: Others) {
        // A block is freed in the process that made it.
        let Ok(mut core) = self.thread_cache.inner.core(Operation::Free) else { return };
        let mut turns = Vec::with_capacity(others.streams.len());
        for index in others.streams {
            turns.push(core.streams.free(index));
            core.streams.mark_if_possible(usize::from(index));
        }
        let turn = core.streams.free(self.index);
        core.pending.push(Waiting { piece: self.piece, turn, turns, fence: others.fence, is_past: false });
        core.note();
    }
}

/// Takes what is too much of a class out of a thread cache.
#[inline(never)]
fn give_old<B: Backend>(thread_cache: &ThreadCacheRef<B>, bin: BinIndex, class: Class) {
    let mut cache = thread_cache.lock();
    let (old, stream) = (cache.take_old(bin, class), cache.stream_of(bin));
    drop(cache);
    // As above.
    let Ok(mut core) = thread_cache.inner.core(Operation::Free) else { return };
    old.into_iter().for_each(|piece| core.give(piece, stream));
    core.keep_to_limit();
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

#[cfg(test)]
mod tests {
    use super::Body;
    use gpu_vmm_host::HostBackend;

    #[test]
    fn a_body_is_one_cache_line() {
        assert_eq!(size_of::<Body<HostBackend>>(), 64);
    }
}
