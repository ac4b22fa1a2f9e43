//! Observers, which are called before and after the memory behind a region's addresses changes.

mod calls;
mod ends;
mod paths;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [calls::cases(), paths::cases(), ends::cases()].concat()
}
