//! One address where several banks of memory are exchanged.

mod add_remove;
mod shown;

use crate::case::Case;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{BankId, BankedRegion, Bytes};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [shown::cases(), add_remove::cases()].concat()
}

/// Creates banks of these sizes in granules, each filled with a pattern for its index.
fn filled<B: TestKit>(subject: &Subject<B>, granules: &[u64]) -> (BankedRegion<B>, Vec<BankId>) {
    let most = granules.iter().max().copied().unwrap_or(1);
    let mut region = BankedRegion::build(subject.space(most)).unwrap();
    let banks: Vec<BankId> =
        granules.iter().map(|count| region.add_bank(subject.granules(*count)).unwrap()).collect();
    for (place, bank) in (0..).zip(&banks) {
        region.select(*bank, idle()).unwrap();
        let length = region.region().end();
        region.write_pattern(subject.device, Bytes(0), length, seed(place)).unwrap();
    }
    (region, banks)
}

fn seed(place: u64) -> u64 {
    1000 << (8 * place)
}

/// Checks that the selected bank contains its pattern.
#[track_caller]
fn check<B: TestKit>(subject: &Subject<B>, region: &BankedRegion<B>, place: u64) {
    subject.check(region.region(), Bytes(0), region.region().end(), seed(place));
}
