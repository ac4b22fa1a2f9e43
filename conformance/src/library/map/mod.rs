//! Mapping physical memory at addresses.
//!
//! | file | subject |
//! |---|---|
//! | `placed` | offsets in a region, sizes, and orders |
//! | `reused` | one piece at several addresses in turn, several pieces at one address in turn |

mod placed;
mod reused;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [placed::cases(), reused::cases()].concat()
}
