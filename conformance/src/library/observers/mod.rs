//! Observers, which are called before and after the memory behind a region's addresses changes.
//!
//! | file | subject |
//! |---|---|
//! | `calls` | the calls of each operation that succeeds, and the operations that make none |
//! | `ends` | the end of a region, which cannot be refused, and forked children |
//! | `paths` | operations that fail or are refused, at every driver call; panics |

mod calls;
mod ends;
mod paths;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [calls::cases(), paths::cases(), ends::cases()].concat()
}
