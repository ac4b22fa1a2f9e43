//! What contents go through on their way out of devices and back: page-locked memory and queues of copies, and lists of
//! addresses in a device's memory, which show that what came back is where it was.
//!
//! | file | subject |
//! |---|---|
//! | `copy_streams` | page-locked memory, and copies between it and devices |
//! | `locked` | page-locked memory that a region is written from and read into |
//! | `returned` | memory that goes back while its addresses stay |
//! | `lists` | lists that a device walks along |

mod copy_streams;
mod lists;
mod locked;
mod returned;

use crate::case::Case;
use crate::subject::{Subject, skip};
use gpu_vmm_core::DeviceId;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [copy_streams::cases(), locked::cases(), returned::cases(), lists::cases()].concat()
}

/// A usable device beside the chosen one, whether the two reach each other's memory or not. Ends the case if there is none.
fn another_device<B: TestKit>(subject: &Subject<B>) -> DeviceId {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    let other = usable.map(|device| device.id).find(|device| *device != subject.device);
    let Some(other) = other else { skip(format!("{} is the only one", subject.device)) };
    other
}
