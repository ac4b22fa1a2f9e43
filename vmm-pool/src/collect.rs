//! Collects freed pieces when the work that they wait for is done.

use crate::Fence;
use crate::core::Core;
use crate::stream_order::Turn;
use gpu_vmm_core::Backend;
use std::sync::Arc;

/// The number of pieces that a request looks at. Later requests look at the others.
const LOOKED_AT: usize = 32;

impl<B: Backend> Core<B> {
    /// Collects all pieces whose work is done. Returns true if there was any.
    pub(crate) fn collect_pending(&mut self) -> bool {
        let before = self.pending.list.len();
        let mut index = 0;
        while index < self.pending.list.len() {
            index += usize::from(!self.collect(index));
        }
        self.pending.list.len() < before
    }

    /// Collects finished pieces among the next few.
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
        let done = waiting.turns.iter().all(|turn| self.streams.is_done(*turn))
            && (waiting.is_past
                || waiting.fence.as_ref().is_none_or(|fence| fence.is_done().is_ok_and(|done| done)));
        if done {
            let waiting = self.pending.list.swap_remove(index);
            self.pending.bytes -= waiting.piece.size;
            // The fence covers the work of the piece's own stream too.
            let turn = if waiting.fence.is_some() { Turn::FREE } else { waiting.turn };
            self.give_after(waiting.piece, turn);
        }
        done
    }

    /// Waits for the fences of all pending pieces. Returns false if one cannot be waited for.
    pub(crate) fn wait_for_fences(&self) -> bool {
        let is_past = |fence: &Arc<dyn Fence>| fence.is_done().is_ok_and(|done| done) || fence.wait().is_ok();
        self.pending.fences().iter().all(is_past)
    }
}
