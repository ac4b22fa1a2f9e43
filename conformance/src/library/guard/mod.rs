//! Guarded regions, in which stray accesses are found: what lies beside them, and what becomes of freed memory.
//!
//! | file | subject |
//! |---|---|
//! | `sides` | the addresses before and behind a region |
//! | `growth` | where a region cannot be extended |
//! | `poison` | what is in memory that was freed |
//!
//! That touching the guard is a fault, the group `fault` shows.

mod growth;
mod poison;
mod sides;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [sides::cases(), growth::cases(), poison::cases()].concat()
}
