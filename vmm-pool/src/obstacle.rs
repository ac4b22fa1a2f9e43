//! What keeps a request from the addresses that it names.

use crate::error::{Occupant, PoolError};
use gpu_vmm_core::AddressRange;

/// Why a request cannot have the addresses that it names.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// The requested addresses.
    pub(crate) range: AddressRange,
    pub(crate) occupant: Occupant,
    /// True if waiting may remove it.
    pub(crate) may_end: bool,
}

impl Obstacle {
    /// Returns the error of a request with a tag.
    pub(crate) fn error(self, tag: Box<str>) -> PoolError {
        PoolError::AddressTaken { requested: self.range, tag, occupant: Box::new(self.occupant) }
    }
}
