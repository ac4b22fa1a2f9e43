//! Growth: more memory at the same address, without copying.

mod extended;
mod moved;
mod shrunk;
mod within;

use crate::case::Case;
use crate::subject::Subject;
use gpu_vmm_core::{Placement, Region};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [within::cases(), extended::cases(), moved::cases(), shrunk::cases()].concat()
}

/// Creates a full region with free addresses behind it. Its extensions are as small as possible.
fn full<B: TestKit>(subject: &Subject<B>, units: u64) -> Region<B> {
    let at = Placement::Exact(subject.hole(512));
    let mut region = subject.region(units).at(at).extend_by(subject.unit()).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    region
}

/// Creates a full region, and another one that takes the addresses directly behind it.
fn walled<B: TestKit>(subject: &Subject<B>, units: u64) -> (Region<B>, Region<B>) {
    let region = full(subject, units);
    let behind = Placement::Exact(region.range().end());
    let wall = subject.region(1).at(behind).build().unwrap();
    (region, wall)
}
