//! One address where several banks of memory are exchanged.
//!
//! | file | subject |
//! |---|---|
//! | `shown` | the memory at the address, and the contents of banks that are not mapped |
//! | `sets` | adding and removing banks |

mod sets;
mod shown;

use crate::case::Case;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{BankId, BankedRegion, Bytes};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [shown::cases(), sets::cases()].concat()
}

/// Creates banks of these sizes in granules, each filled with a pattern for its index.
fn filled<B: TestKit>(subject: &Subject<B>, granules: &[u64]) -> (BankedRegion<B>, Vec<BankId>) {
    let most = granules.iter().max().copied().unwrap_or(1);
    let mut slots = BankedRegion::build(subject.space(most)).unwrap();
    let sets: Vec<BankId> =
        granules.iter().map(|count| slots.add_bank(subject.granules(*count)).unwrap()).collect();
    for (place, set) in (0..).zip(&sets) {
        slots.select(*set, idle()).unwrap();
        let length = slots.region().end();
        slots.write_pattern(subject.device, Bytes(0), length, seed(place)).unwrap();
    }
    (slots, sets)
}

fn seed(place: u64) -> u64 {
    1000 << (8 * place)
}

/// Checks that the selected bank contains its pattern.
#[track_caller]
fn check<B: TestKit>(subject: &Subject<B>, slots: &BankedRegion<B>, place: u64) {
    subject.check(slots.region(), Bytes(0), slots.region().end(), seed(place));
}
