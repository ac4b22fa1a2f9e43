//! The versions at which HIP's behaviour changed, as `hipRuntimeGetVersion` returns them.

use gpu_vmm_core::Quirk;

pub(super) const V6_1: u32 = super::OLDEST;
pub(super) const V6_2: u32 = 60_200_000;
pub(super) const V6_3: u32 = 60_300_000;
pub(super) const V6_4: u32 = 60_400_000;
pub(super) const V6_4_2: u32 = 60_443_484;
pub(super) const V7_0: u32 = 70_000_000;
pub(super) const V7_1: u32 = 70_100_000;
pub(super) const V7_2: u32 = 70_200_000;
pub(super) const V7_12: u32 = 71_200_000;
pub(super) const V7_14: u32 = 71_400_000;
pub(super) const V7_15: u32 = 71_500_000;
pub(super) const V7_16: u32 = 71_600_000;
pub(super) const V7_17: u32 = 71_700_000;
pub(super) const UNFIXED: u32 = u32::MAX;

pub(super) const fn quirk(
    id: &'static str,
    versions: (u32, u32),
    effect: &'static str,
    handling: &'static str,
    evidence: &'static str,
) -> Quirk {
    Quirk { id, from: versions.0, below: versions.1, effect, handling, evidence }
}
