//! The library layer: what gpu-vmm promises, through its public API, the same on every backend.

mod access;
mod alias;
mod data;
mod grow;
mod lifetime;
mod map;
mod peer;
mod physical;
mod plain;
mod process;
mod refused;
mod reserve;
mod tools;
mod unmap;
mod vec;
mod waiting;

use crate::case::Case;
use gpu_vmm_core::Workbench;

/// All cases, group by group.
pub(crate) fn cases<B: Workbench>() -> Vec<Case<B>> {
    [
        reserve::cases(),
        physical::cases(),
        map::cases(),
        access::cases(),
        grow::cases(),
        alias::cases(),
        unmap::cases(),
        lifetime::cases(),
        peer::cases(),
        data::cases(),
        vec::cases(),
        refused::cases(),
        process::cases(),
        waiting::cases(),
    ]
    .concat()
}
