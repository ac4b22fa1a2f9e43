//! Which calls wait for running work, and which do not.
//!
//! | file | subject |
//! |---|---|
//! | `waiting` | which waits are made, observed by making them fail |
//! | `in_flight` | calls while work runs |
//! | `contexts` | work in other contexts of a device |
//! | `rounds` | many rounds on several threads |
//! | `streams` | the default streams of devices and of threads |

mod contexts;
mod in_flight;
mod rounds;
mod streams;
mod waiting;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [waiting::cases(), in_flight::cases(), contexts::cases(), streams::cases(), rounds::cases()].concat()
}
