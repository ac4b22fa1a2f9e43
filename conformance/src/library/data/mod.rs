//! Bytes in and out, through the devices that own the memory.
//!
//! | file | subject |
//! |---|---|
//! | `bytes` | between the host and a region, and what kernels see of it |
//! | `copies` | between regions and plain allocations |

mod bytes;
mod copies;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [bytes::cases(), copies::cases()].concat()
}
