//! Mapping physical memory at addresses.

mod placed;
mod reused;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [placed::cases(), reused::cases()].concat()
}
