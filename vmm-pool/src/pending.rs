//! Pieces that were freed and wait for other streams, or for a fence.

use crate::Fence;
use crate::core::Core;
use crate::piece::Piece;
use crate::turn::Turn;
use gpu_vmm_core::Backend;

/// So many pieces are looked at before a request: the others' turn comes with the next ones.
const LOOKED_AT: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    list: Vec<Waiting>,
    bytes: u64,
    /// Which piece is looked at next.
    next: usize,
}

/// A piece that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) piece: Piece,
    /// After which work of its own stream it is free.
    pub(crate) turn: Turn,
    /// After which work of other streams it may be used on its own.
    pub(crate) turns: Vec<Turn>,
    pub(crate) fence: Option<Box<dyn Fence>>,
}

impl Pending {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.list.iter()
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.piece.size;
        self.list.push(waiting);
    }
}

impl<B: Backend> Core<B> {
    /// Frees what has waited long enough, or all of it after waiting.
    pub(crate) fn collect_pending(&mut self, wait: bool) {
        let mut index = 0;
        while index < self.pending.list.len() {
            index += usize::from(!self.collect(index, wait));
        }
    }

    /// Frees some of what has waited long enough.
    pub(crate) fn collect_some(&mut self) {
        for _ in 0..LOOKED_AT.min(self.pending.list.len()) {
            if self.pending.next >= self.pending.list.len() {
                self.pending.next = 0;
            }
            let stays = !self.collect(self.pending.next, false);
            self.pending.next += usize::from(stays);
        }
    }

    /// Frees a piece if it has waited long enough. Where its fence answers with an error it waits on: that is no reason to
    /// refuse somebody else's request.
    fn collect(&mut self, index: usize, wait: bool) -> bool {
        let Some(waiting) = self.pending.list.get(index) else { return false };
        let done = waiting.turns.iter().all(|turn| self.streams.is_done(*turn))
            && waiting.fence.as_ref().is_none_or(|fence| is_past(&**fence, wait));
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
        let mut fences = self.pending.iter().filter_map(|waiting| waiting.fence.as_deref());
        fences.all(|fence| is_past(fence, true))
    }
}

/// Whether a fence is done, or has been waited for.
fn is_past(fence: &dyn Fence, wait: bool) -> bool {
    fence.is_done().is_ok_and(|done| done) || wait && fence.wait().is_ok()
}
