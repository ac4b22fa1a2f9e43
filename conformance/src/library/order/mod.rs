//! Which calls wait for running work, and which do not.

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
