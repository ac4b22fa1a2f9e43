//! Reserving addresses: a hint is a wish, and the driver's answer is compared with what was asked for.
//!
//! | file | subject |
//! |---|---|
//! | `place` | where a region lies: exact, preferred, beside others |
//! | `restorable` | where other processes can have the same addresses |
//! | `shape` | how large it is and how it is aligned |
//! | `refused` | what cannot be asked for |

mod place;
mod refused;
mod restorable;
mod shape;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [shape::cases(), place::cases(), refused::cases(), restorable::cases()].concat()
}
