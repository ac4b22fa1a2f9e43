//! Physical memory on its own: its size, its owner and its contents.
//!
//! | file | subject |
//! |---|---|
//! | `counted` | the free memory of a device at each step |
//! | `kept` | size, owner and bytes of a piece |

mod counted;
mod kept;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [counted::cases(), kept::cases()].concat()
}
