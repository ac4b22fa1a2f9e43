//! The lifetimes of memory, regions and backends: dropped in any order and any number of times, nothing leaks.

mod close;
mod order;
mod rounds;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [order::cases(), close::cases(), rounds::cases()].concat()
}
