//! Physical memory by itself: what it takes, whose it is, what it holds.
//!
//! | file | subject |
//! |---|---|
//! | `counted` | what a device has left, at each step |
//! | `kept` | size, owner and bytes of a piece |

mod counted;
mod kept;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [counted::cases(), kept::cases()].concat()
}
