//! Comparison of free memory with the memory in use.

use crate::subject::Subject;
use gpu_vmm_core::{Bytes, DeviceId};
use gpu_vmm_testkit::TestKit;
use std::time::Duration;

pub(super) type Checked<T = ()> = std::result::Result<T, String>;

/// The first words of a report that free memory differs.
pub(super) const FREE: &str = "free memory";

/// Compares free memory with its start value minus the memory in use. Other processes also use a GPU's memory, and some
/// drivers count late, so it is queried several times before a difference is reported.
pub(super) fn steady<B: TestKit>(
    subject: &Subject<B>,
    before: &[Bytes],
    in_use: [u64; 2],
    devices: [DeviceId; 2],
) -> Checked {
    const ASKED: u32 = 4;
    let mut right = before.to_vec();
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    for (free, device) in right.iter_mut().zip(usable) {
        let of = |at: usize| if devices[at] == device.id { in_use[at] } else { 0 };
        let used = if devices[0] == devices[1] { of(0) } else { of(0) + of(1) };
        *free = Bytes(free.0.saturating_sub(used));
    }
    let mut seen = subject.free();
    for _ in 1..ASKED {
        if seen == right {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
        seen = subject.free();
    }
    if seen == right { Ok(()) } else { Err(format!("{FREE} must be {right:?}, and is {seen:?}")) }
}
