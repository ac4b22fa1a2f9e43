//! Freed pieces that wait for other streams or for a fence.

use crate::Fence;
use crate::block_memory::BlockMemory;
use crate::stream_order::FreeAfter;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) list: Vec<Waiting>,
    pub(crate) bytes: u64,
    /// The index of the piece that the next look begins with.
    pub(crate) next: usize,
}

/// A freed piece that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) piece: BlockMemory,
    /// The work of its own stream after which the piece is free.
    pub(crate) free_after: FreeAfter,
    /// The work of other streams that the piece waits for.
    pub(crate) also_after: Vec<FreeAfter>,
    pub(crate) fence: Option<Arc<dyn Fence>>,
    /// True if a wait for the fence has ended.
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

    /// Returns the fences that pieces wait for, the oldest last.
    pub(crate) fn fences(&self) -> Vec<Arc<dyn Fence>> {
        self.list
            .iter()
            .rev()
            .filter(|waiting| !waiting.is_past)
            .filter_map(|one| one.fence.clone())
            .collect()
    }

    /// Notes that a wait for a fence has ended.
    pub(crate) fn note_done(&mut self, fence: &Arc<dyn Fence>) {
        let waits_for = |one: &&mut Waiting| one.fence.as_ref().is_some_and(|own| Arc::ptr_eq(own, fence));
        self.list.iter_mut().filter(waits_for).for_each(|waiting| waiting.is_past = true);
    }
}
