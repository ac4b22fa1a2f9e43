//! Reading, writing and copying bytes through the devices that own the memory.

mod bytes;
mod copies;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [bytes::cases(), copies::cases()].concat()
}
