//! Invalid calls: each is an error of its own kind, with the numbers, before any driver call.

mod numbers;
mod parts;

use crate::case::Case;
use crate::subject::Subject;
use gpu_vmm_core::Region;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [numbers::cases(), parts::cases()].concat()
}

/// A region with two units mapped and two units unmapped.
fn half_full<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region
}
