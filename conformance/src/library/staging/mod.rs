//! The path of contents out of devices and back: page-locked memory and copy streams, memory that is returned while its
//! addresses stay, and lists of device addresses, which show that restored contents are at their old addresses.

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

/// A usable device other than the chosen one, with or without peer access. Skips the case if there is none.
fn another_device<B: TestKit>(subject: &Subject<B>) -> DeviceId {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    let other = usable.map(|device| device.id).find(|device| *device != subject.device);
    let Some(other) = other else { skip(format!("{} is the only usable device", subject.device)) };
    other
}
