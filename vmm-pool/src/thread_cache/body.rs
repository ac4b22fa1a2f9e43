//! The body of a block, and its way back into the pool.

use super::{BinIndex, ThreadCacheRef};
use crate::Fence;
use crate::block_memory::BlockMemory;
use crate::classes::Class;
use crate::pending::Waiting;
use crate::stream_order::{FreeAfter, StreamIndex};
use gpu_vmm_core::{Address, Backend, Operation, Stream};
use std::fmt;
use std::sync::Arc;

/// The body of a block that can be allocated, or allocated again.
pub(crate) type Ready<B> = Box<Body<B>>;

/// The data of a block. It stays with the memory in the thread cache, so that an allocation writes very little, and moving a
/// block moves a pointer.
///
/// A body is one cache line, so that threads with neighbouring blocks do not contend.
#[repr(align(64))]
pub(crate) struct Body<B: Backend> {
    /// The thread cache that it returns to.
    pub(crate) thread_cache: ThreadCacheRef<B>,
    pub(crate) piece: BlockMemory,
    pub(crate) stream: Stream<'static>,
    /// The difference of the piece's size and the requested size.
    pub(crate) unused: u16,
    /// The stream's number.
    pub(crate) index: StreamIndex,
    pub(crate) place: Place,
    /// The conditions besides its own stream that it waits for; few blocks have any.
    pub(crate) others: Option<Box<FreeConditions>>,
    /// The next body below it, in a [`Stack`](super::stack::Stack).
    pub(crate) below: Option<Ready<B>>,
}

/// Where a freed block waits for the next request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In a bin of the thread cache, under a class.
    Cached(BinIndex, Class),
    /// In the slot for the large block that was freed last, for requests of its tag.
    Last(u16),
}

/// Without the thread cache, which has this body: each of its bodies would print all of them.
impl<B: Backend> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("piece", &self.piece).field("index", &self.index).finish_non_exhaustive()
    }
}

/// The conditions that a freed block waits for.
#[derive(Debug, Default)]
pub(crate) struct FreeConditions {
    /// The other streams that use it.
    pub(crate) streams: Vec<StreamIndex>,
    /// The work of the other streams whose uses have ended.
    pub(crate) also_after: Vec<FreeAfter>,
    pub(crate) fence: Option<Arc<dyn Fence>>,
}

impl FreeConditions {
    /// Returns true if the block waits for work of the stream with this number.
    pub(crate) fn is_used_on(&self, index: StreamIndex) -> bool {
        self.streams.contains(&index) || self.also_after.iter().any(|free_after| free_after.stream() == index)
    }
}

impl<B: Backend> Body<B> {
    /// Creates the body of a block of `size` bytes in a piece.
    pub(crate) fn new(
        thread_cache: &ThreadCacheRef<B>,
        piece: BlockMemory,
        (stream, index): (Stream<'static>, StreamIndex),
        size: u64,
        place: Place,
    ) -> Self {
        let unused = (piece.size - size) as u16;
        Self {
            thread_cache: ThreadCacheRef::clone(thread_cache),
            piece,
            stream,
            unused,
            index,
            place,
            others: None,
            below: None,
        }
    }

    /// Returns the requested size.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.piece.size - u64::from(self.unused)
    }

    /// Prepares the body for another block of `size` bytes.
    #[inline]
    pub(crate) fn reuse(&mut self, stream: Stream<'static>, size: u64) {
        self.unused = (self.piece.size - size) as u16;
        // A forgotten stream with the same number may have used it.
        self.stream = stream;
    }

    #[inline]
    pub(crate) fn free(self: Box<Self>) {
        let (thread_cache, size) = (ThreadCacheRef::clone(&self.thread_cache), self.size());
        let tracking = &thread_cache.inner.tracking;
        if tracking.is_on() {
            tracking.forget(Address(self.piece.address));
        }
        let Place::Cached(bin, class) = self.place else { return self.free_large(&thread_cache) };
        let mut cache = thread_cache.lock();
        if self.others.is_some() || cache.refuses() {
            drop(cache);
            return self.give_back(&thread_cache);
        }
        if cache.push(bin, class, self) {
            drop(cache);
            give_old(&thread_cache, bin, class);
            cache = thread_cache.lock();
        }
        cache.count_in(size);
    }

    /// Frees a block that has no place in the thread cache.
    #[inline]
    fn free_large(self: Box<Self>, thread_cache: &ThreadCacheRef<B>) {
        let left = if self.others.is_none() { thread_cache.inner.last.put(self) } else { Some(self) };
        if let Some(body) = left {
            body.give_back(thread_cache);
        }
    }

    /// Frees the piece into the core.
    #[inline(never)]
    fn give_back(mut self: Box<Self>, thread_cache: &ThreadCacheRef<B>) {
        if let Some(others) = self.others.take() {
            self.wait_for(*others);
            return self.count_in();
        }
        if let Place::Cached(..) = self.place {
            // The thread cache has refused it, and takes the next ones if the pool does not exceed its budget any more.
            let core = thread_cache.inner.give(self.piece, self.index);
            thread_cache.lock().refuse(core.exceeds_budget());
            drop(core);
            return self.count_in();
        }
        // A request of the same size gets back the block that was freed last, and not the one before it: that leaves fewer gaps.
        thread_cache.inner.empty_slot_for(&self.piece);
        if let Some(body) = thread_cache.inner.last.put(self) {
            drop(thread_cache.inner.give(body.piece, body.index));
            body.count_in();
        }
    }

    /// Counts the block as freed, and gives the body to its thread cache.
    pub(crate) fn count_in(self: Box<Self>) {
        let (thread_cache, size) = (ThreadCacheRef::clone(&self.thread_cache), self.size());
        let mut cache = thread_cache.lock();
        cache.count_in(size);
        cache.keep_freed(self);
    }

    /// Adds the piece to those that wait for other streams or a fence.
    fn wait_for(&self, mut others: FreeConditions) {
        // This cannot fail: a block is freed in the process that created it.
        let Ok(mut core) = self.thread_cache.inner.core(Operation::Free) else { return };
        core.end_uses(&mut others, self.piece.size);
        let FreeConditions { also_after, fence, .. } = others;
        let free_after = core.streams.free(self.index);
        core.pending.push(Waiting { piece: self.piece, free_after, also_after, fence, is_past: false });
        core.note();
    }
}

/// Moves the surplus pieces of a class from a thread cache into the core.
#[inline(never)]
fn give_old<B: Backend>(thread_cache: &ThreadCacheRef<B>, bin: BinIndex, class: Class) {
    // As in `wait_for`. The core first: no other thread finds the pieces neither here nor there.
    let Ok(mut core) = thread_cache.inner.core(Operation::Free) else { return };
    let mut cache = thread_cache.lock();
    let (old, stream) = (cache.take_old(bin, class), cache.stream_of(bin));
    drop(cache);
    old.into_iter().for_each(|piece| core.give(piece, stream));
    core.end_free();
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
