//! The memory of blocks and of thread cache entries, with its origin.

use crate::slabs::SlabIndex;
use crate::space::RangeIndex;

/// Memory that was taken from the core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockMemory {
    pub(crate) address: u64,
    /// The occupied size: the requested size, rounded up.
    pub(crate) size: u64,
    pub(crate) origin: Origin,
}

/// The place that a piece returns to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A slot of a slab.
    Slot(SlabIndex, u16),
    /// A range of a space.
    Range(u16, RangeIndex),
}
