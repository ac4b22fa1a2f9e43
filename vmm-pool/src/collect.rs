//! Collects freed pieces when the work that they wait for is done.

use crate::Fence;
use crate::core::Core;
use crate::slabs::Ended;
use crate::stream_order::FreeAfter;
use gpu_vmm_core::Backend;
use std::sync::Arc;

/// The number of pieces that a request looks at. Later requests look at the others.
const LOOKED_AT: usize = 32;

impl<B: Backend> Core<B> {
    /// Makes the ranges ready whose work is done. Returns true if slabs have ended, whose ranges are free now.
    pub(crate) fn settle(&mut self) -> bool {
        let mut has_ended = false;
        while let Some(ended) = self.next_ended_slab() {
            self.give_slab(ended);
            has_ended = true;
        }
        let Self { spaces, frames, streams, waiting, .. } = self;
        waiting.retain(|space| {
            spaces[*space].settle(frames, streams);
            spaces[*space].still_waits()
        });
        has_ended
    }

    fn next_ended_slab(&mut self) -> Option<Ended> {
        let Self { slabs, streams, .. } = self;
        slabs.next_ended(|free_after| streams.is_done(free_after))
    }

    /// Collects all pieces whose work is done. Returns true if any memory has become free, after which a place that was found before
    /// may be a part of another range.
    pub(crate) fn collect_pending(&mut self) -> bool {
        let has_ended = self.settle();
        let before = self.pending.list.len();
        let mut index = 0;
        while index < self.pending.list.len() {
            index += usize::from(!self.collect(index));
        }
        has_ended || self.pending.list.len() < before
    }

    /// Collects finished pieces among the next few.
    #[inline]
    pub(crate) fn collect_some(&mut self) {
        for _ in 0..LOOKED_AT.min(self.pending.list.len()) {
            if self.pending.next >= self.pending.list.len() {
                self.pending.next = 0;
            }
            let stays = !self.collect(self.pending.next);
            self.pending.next += usize::from(stays);
        }
    }

    /// Collects a piece if its work is done. If its fence returns an error, the piece keeps waiting: another caller's request
    /// must not fail for it.
    fn collect(&mut self, index: usize) -> bool {
        let Some(waiting) = self.pending.list.get(index) else { return false };
        let done = waiting.also_after.iter().all(|free_after| self.streams.is_done(*free_after))
            && (waiting.is_past
                || waiting.fence.as_ref().is_none_or(|fence| fence.is_done().is_ok_and(|done| done)));
        if done {
            let waiting = self.pending.list.swap_remove(index);
            self.pending.bytes -= waiting.piece.size;
            // The fence covers the work of the piece's own stream too.
            let free_after = if waiting.fence.is_some() { FreeAfter::FREE } else { waiting.free_after };
            self.give_after(waiting.piece, free_after);
        }
        done
    }

    /// Waits for the fences of all pending pieces. Returns false if one cannot be waited for.
    pub(crate) fn wait_for_fences(&self) -> bool {
        let is_past = |fence: &Arc<dyn Fence>| fence.is_done().is_ok_and(|done| done) || fence.wait().is_ok();
        self.pending.fences().iter().all(is_past)
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::{Block, Fence, Pool};
    use gpu_vmm_core::{Bytes, Operation, Result, Stream};
    use gpu_vmm_host::HostConfig;
    use gpu_vmm_testkit::LateWork;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A fence that is done when the test says so.
    #[derive(Debug, Default)]
    struct SettableFence(AtomicBool);

    impl Fence for SettableFence {
        fn is_done(&self) -> Result<bool> {
            Ok(self.0.load(Ordering::Relaxed))
        }

        fn wait(&self) -> Result<()> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }

    /// A request finds a place, asks the streams because it would leave a gap, and learns that a slab before the place has ended.
    #[test]
    fn ended_slab_makes_a_request_search_again() {
        let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), 4);
        let pool = Pool::builder(&backend).build().unwrap();
        let streams = [1, 2].map(|index| backend.stream(index));
        let alloc = |size: Bytes, stream: Stream<'static>| pool.request(size).stream(stream).alloc().unwrap();
        for round in 0..8 {
            // In one slab: the slots that the first one leaves in the thread cache return to it.
            let one = alloc(Bytes::kib(3), streams[0]);
            pool.owner.settle(Operation::Trim, |_, _| true).unwrap();
            let other = alloc(Bytes::kib(3), streams[1]);
            let [gap, end] = [700, 300].map(|size| alloc(Bytes(size * 1024 + 512), streams[0]));
            [1, 2].into_iter().for_each(|index| backend.queue(index));
            drop((one, other, gap));
            pool.owner.settle(Operation::Trim, |_, _| true).unwrap();
            [1, 2].into_iter().for_each(|index| backend.finish(index, 1));
            // What a thread that waits for the streams does, before it locks the core once more.
            pool.owner.inner.wait_for_streams(Operation::Trim).unwrap();
            let block = alloc(Bytes::kib(500), streams[0]);
            let is_apart =
                |one: &Block<_>, other: &Block<_>| one.address() + one.capacity() <= other.address();
            assert!(is_apart(&block, &end) || is_apart(&end, &block), "round {round}");
            drop((block, end));
        }
    }

    /// A look that would begin behind the last piece begins at the first one.
    #[test]
    fn check_after_fence_collects_its_piece() {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let (fence, size) = (Arc::new(SettableFence::default()), Bytes::mib(16));
        pool.alloc(size).unwrap().free_after(Arc::<SettableFence>::clone(&fence));
        let look = || {
            pool.owner.inner.core(Operation::Allocate).unwrap().collect_some();
            pool.stats().pending
        };
        assert_eq!(look(), size.0);
        fence.0.store(true, Ordering::Relaxed);
        assert_eq!(look(), 0);
    }

    /// Later looks begin where the earlier ones have ended.
    #[test]
    fn a_look_is_at_32_pieces() {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let fences: Vec<_> = (0..70).map(|_| Arc::new(SettableFence::default())).collect();
        let size = Bytes::mib(2);
        for fence in &fences {
            pool.alloc(size).unwrap().free_after(Arc::<SettableFence>::clone(fence));
        }
        let look = || {
            pool.owner.inner.core(Operation::Allocate).unwrap().collect_some();
            pool.stats().pending / size.0
        };
        pool.owner.inner.core(Operation::Allocate).unwrap().pending.next = 0;
        fences[64].0.store(true, Ordering::Relaxed);
        assert_eq!([look(), look(), look()], [70, 70, 69]);
        fences.iter().for_each(|fence| fence.0.store(true, Ordering::Relaxed));
        assert_eq!([look(), look(), look()], [37, 5, 0]);
    }
}
