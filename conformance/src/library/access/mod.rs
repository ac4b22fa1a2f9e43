//! Access: set for whole mappings, to whom it was asked for and to no one else.
//!
//! | file | subject |
//! |---|---|
//! | `levels` | none, read, read and write, on one mapping |
//! | `parts` | different access on different mappings of a region |

mod levels;
mod parts;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [levels::cases(), parts::cases()].concat()
}
