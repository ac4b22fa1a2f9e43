//! What a caller can get wrong: each an error of its own kind, with the numbers, before any driver call.
//!
//! | file | subject |
//! |---|---|
//! | `parts` | parts of a region that cannot be worked on |
//! | `numbers` | sizes, offsets, devices, and memory of others |

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

/// Two units mapped, two units not.
fn half_full<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region
}
