//! The library layer: what gpu-vmm promises, through its public API, the same on every backend.

mod access;
mod alias;
mod bad_input;
mod data;
mod device_vec;
mod grow;
mod physical;
mod place;
mod process;
mod waiting;

use crate::case::Case;
use gpu_vmm_core::Workbench;

/// All cases, group by group.
pub(crate) fn cases<B: Workbench>() -> Vec<Case<B>> {
    [
        access::cases(),
        alias::cases(),
        bad_input::cases(),
        data::cases(),
        device_vec::cases(),
        grow::cases(),
        physical::cases(),
        place::cases(),
        process::cases(),
        waiting::cases(),
    ]
    .concat()
}
