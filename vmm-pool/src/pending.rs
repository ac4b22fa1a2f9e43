//! Pieces that were freed and wait for other streams, or for a fence.

use crate::Fence;
use crate::piece::Piece;
use crate::stream_order::Turn;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) list: Vec<Waiting>,
    pub(crate) bytes: u64,
    /// Which piece is looked at next.
    pub(crate) next: usize,
}

/// A piece that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) piece: Piece,
    /// After which work of its own stream it is free.
    pub(crate) turn: Turn,
    /// After which work of other streams it may be used on its own.
    pub(crate) turns: Vec<Turn>,
    pub(crate) fence: Option<Arc<dyn Fence>>,
    /// True when the fence has been waited for.
    pub(crate) is_past: bool,
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

    /// The fences that pieces wait for, the oldest last.
    pub(crate) fn fences(&self) -> Vec<Arc<dyn Fence>> {
        self.list
            .iter()
            .rev()
            .filter(|waiting| !waiting.is_past)
            .filter_map(|one| one.fence.clone())
            .collect()
    }

    /// Notes that a fence has been waited for.
    pub(crate) fn note_done(&mut self, fence: &Arc<dyn Fence>) {
        let waits_for = |one: &&mut Waiting| one.fence.as_ref().is_some_and(|own| Arc::ptr_eq(own, fence));
        self.list.iter_mut().filter(waits_for).for_each(|waiting| waiting.is_past = true);
    }
}
