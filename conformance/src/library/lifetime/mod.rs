//! When things come and go: in any order, however often, and nothing is left.
//!
//! | file | subject |
//! |---|---|
//! | `order` | who is dropped first |
//! | `close` | giving a region back, with the errors |
//! | `rounds` | how often, how many |

mod close;
mod order;
mod rounds;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [order::cases(), close::cases(), rounds::cases()].concat()
}
