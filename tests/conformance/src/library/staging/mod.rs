//! What contents go through on their way out of devices and back: page-locked memory and queues of copies, and lists of
//! addresses in a device's memory, which show that what came back is where it was.
//!
//! | file | subject |
//! |---|---|
//! | `lanes` | page-locked memory, and copies between it and devices |
//! | `locked` | page-locked memory that a region is written from and read into |
//! | `returned` | memory that goes back while its addresses stay |
//! | `lists` | lists that a device walks along |

mod lanes;
mod lists;
mod locked;
mod returned;

use crate::case::Case;
use gpu_vmm_core::Workbench;

/// The cases of this group.
pub(crate) fn cases<B: Workbench>() -> Vec<Case<B>> {
    [lanes::cases(), locked::cases(), returned::cases(), lists::cases()].concat()
}
