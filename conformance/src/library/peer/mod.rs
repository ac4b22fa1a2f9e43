//! Two devices: who owns memory, which device can access it, and which device does the work.

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

/// Writes the pattern of a seed with one device, and checks with the other that it reads this pattern and not another one.
#[track_caller]
fn pass_on<B: TestKit>(region: &mut Region<B>, from: DeviceId, to: DeviceId, length: Bytes, seed: u64) {
    region.write_pattern(from, Bytes(0), length, seed).unwrap();
    assert_eq!(region.count_wrong(to, Bytes(0), length, seed).unwrap(), 0, "from {from} to {to}");
    assert_ne!(region.count_wrong(to, Bytes(0), length, seed + 1).unwrap(), 0);
}
