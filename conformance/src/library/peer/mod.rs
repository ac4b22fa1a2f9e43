//! Two devices: whose memory, who may reach it, and who does the work.
//!
//! | file | subject |
//! |---|---|
//! | `access` | access of a device to another one's memory |
//! | `owners` | memory of both devices in one region |
//! | `turns` | memory of one device after the other's at one address |
//! | `apart` | devices that do not reach each other's memory |
//! | `copies` | copies between the devices |
//! | `current` | the device that is the calling thread's current one |

mod access;
mod apart;
mod copies;
mod current;
mod owners;
mod turns;

use crate::case::Case;
use gpu_vmm_core::{Bytes, DeviceId, Region};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [access::cases(), owners::cases(), turns::cases(), copies::cases(), apart::cases(), current::cases()]
        .concat()
}

/// Has one device write the pattern of a seed, and the other one look at it, who must not find another's.
#[track_caller]
fn pass_on<B: TestKit>(region: &mut Region<B>, from: DeviceId, to: DeviceId, length: Bytes, seed: u64) {
    region.write_pattern(from, Bytes(0), length, seed).unwrap();
    assert_eq!(region.count_wrong(to, Bytes(0), length, seed).unwrap(), 0, "from {from} to {to}");
    assert_ne!(region.count_wrong(to, Bytes(0), length, seed + 1).unwrap(), 0);
}
