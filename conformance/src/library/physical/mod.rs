//! Physical memory on its own: its size, its owner and its contents.

mod adopted;
mod counted;
mod kept;
mod page_list;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [adopted::cases(), counted::cases(), kept::cases(), page_list::cases()].concat()
}
