//! Guarded regions, which expose invalid accesses: the addresses around them, and the contents of freed memory.
//!
//! The group `fault` shows that an access to a guard is a fault.

mod growth;
mod poison;
mod sides;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [sides::cases(), growth::cases(), poison::cases()].concat()
}
