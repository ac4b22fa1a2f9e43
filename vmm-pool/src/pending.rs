//! Pieces that were freed and wait for other streams, or for a fence.

use crate::Fence;
use crate::core::Core;
use crate::piece::Piece;
use crate::turn::{StreamIndex, Turn};
use gpu_vmm_core::{Backend, Error};

#[derive(Debug, Default)]
pub(crate) struct Pending {
    list: Vec<Waiting>,
    bytes: u64,
}

/// A piece that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) piece: Piece,
    pub(crate) stream: StreamIndex,
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
    /// Frees what has waited long enough, or all of it after waiting. The first error of a fence; its piece waits on.
    pub(crate) fn collect_pending(&mut self, wait: bool) -> Result<(), Error> {
        let mut first = Ok(());
        let mut index = 0;
        while let Some(waiting) = self.pending.list.get(index) {
            let done = waiting.turns.iter().all(|turn| self.streams.is_done(*turn));
            let fence = waiting.fence.as_ref().map_or(Ok(true), |fence| {
                if wait && done { fence.wait().map(|()| true) } else { fence.is_done() }
            });
            if done && matches!(fence, Ok(true)) {
                let waiting = self.pending.list.swap_remove(index);
                self.pending.bytes -= waiting.piece.size;
                // Behind a fence everything is done, whichever stream it was on.
                let turn =
                    if waiting.fence.is_some() { Turn::FREE } else { self.streams.free(waiting.stream) };
                self.give_after(waiting.piece, turn);
            } else {
                first = first.and(fence.map(drop));
                index += 1;
            }
        }
        first
    }
}
