//! Access: it is set for whole mappings, and only for the devices that were named.

mod levels;
mod parts;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [levels::cases(), parts::cases()].concat()
}
