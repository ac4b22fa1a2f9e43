//! Reserving addresses: hints are advisory, and gpu-vmm compares the driver's result with the request.

mod below;
mod place;
mod refused;
mod restorable;
mod shape;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [shape::cases(), place::cases(), below::cases(), refused::cases(), restorable::cases()].concat()
}
