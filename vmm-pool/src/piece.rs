//! What lies in front of threads and behind blocks: an address and where it comes from.

use crate::slabs::SlabIndex;
use crate::space::RangeIndex;

/// Memory that has been taken from the pool's common books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    /// How much it takes, rounded as it is.
    pub(crate) size: u64,
    pub(crate) origin: Origin,
}

/// Where a piece goes back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A slot of a slab.
    Slot(SlabIndex, u16),
    /// A range of a space.
    Range(u16, RangeIndex),
}
