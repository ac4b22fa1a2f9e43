//! Mapping physical memory at addresses.
//!
//! | file | subject |
//! |---|---|
//! | `placed` | where in a region, of which sizes, in which order |
//! | `reused` | one piece at several addresses in turn, several pieces at one |

mod placed;
mod reused;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [placed::cases(), reused::cases()].concat()
}
