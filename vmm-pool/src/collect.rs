//! Pieces that have waited long enough are freed.

use crate::Fence;
use crate::core::Core;
use crate::stream_order::Turn;
use gpu_vmm_core::Backend;
use std::sync::Arc;

/// So many pieces are looked at before a request: the others' turn comes with the next ones.
const LOOKED_AT: usize = 32;

impl<B: Backend> Core<B> {
    /// Frees what has waited long enough. True if that was anything.
    pub(crate) fn collect_pending(&mut self) -> bool {
        let before = self.pending.list.len();
        let mut index = 0;
        while index < self.pending.list.len() {
            index += usize::from(!self.collect(index));
        }
        self.pending.list.len() < before
    }

    /// Frees some of what has waited long enough.
    pub(crate) fn collect_some(&mut self) {
        for _ in 0..LOOKED_AT.min(self.pending.list.len()) {
            if self.pending.next >= self.pending.list.len() {
                self.pending.next = 0;
            }
            let stays = !self.collect(self.pending.next);
            self.pending.next += usize::from(stays);
        }
    }

    /// Frees a piece if it has waited long enough. Where its fence answers with an error it waits on: that is no reason to
    /// refuse somebody else's request.
    fn collect(&mut self, index: usize) -> bool {
        let Some(waiting) = self.pending.list.get(index) else { return false };
        let done = waiting.turns.iter().all(|turn| self.streams.is_done(*turn))
            && (waiting.is_past
                || waiting.fence.as_ref().is_none_or(|fence| fence.is_done().is_ok_and(|done| done)));
        if done {
            let waiting = self.pending.list.swap_remove(index);
            self.pending.bytes -= waiting.piece.size;
            // Behind a fence everything is done, whichever stream it was on.
            let turn = if waiting.fence.is_some() { Turn::FREE } else { waiting.turn };
            self.give_after(waiting.piece, turn);
        }
        done
    }

    /// Waits for the fences of memory that is to go. False where one cannot be waited for.
    pub(crate) fn wait_for_fences(&self) -> bool {
        let is_past = |fence: &Arc<dyn Fence>| fence.is_done().is_ok_and(|done| done) || fence.wait().is_ok();
        self.pending.fences().iter().all(is_past)
    }
}
