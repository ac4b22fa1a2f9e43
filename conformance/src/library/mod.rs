//! The library layer: what gpu-vmm promises through its public API, the same on every backend.
//!
//! Each module is a group of cases, except for these, which several groups use: `tools`, `plain` (allocations without virtual
//! memory management), `registrar` (an observer that records its calls), `sharing` (memory that another process imports), `flights` (work that runs meanwhile) and `folder`
//! (files).

mod access;
mod alias;
mod at;
mod backend;
mod banks;
mod captures;
mod data;
mod deferred;
mod endurance;
mod event;
mod failures;
mod fault;
mod flights;
mod folder;
mod fork;
mod grow;
mod guard;
mod kinds;
mod kv_cache;
mod lifetime;
mod map;
mod moved;
mod no_vmm;
mod observers;
mod order;
mod peer;
mod physical;
mod plain;
mod pool;
mod premap;
mod refused;
mod registrar;
mod reserve;
mod serve;
mod share;
mod sharing;
mod snapshot;
mod snapshot_file;
mod staging;
mod stress;
mod suspend;
mod swap;
mod threads;
mod tools;
mod unmap;
mod vec;

use crate::case::Case;
pub(crate) use endurance::endurance_time;
use gpu_vmm_testkit::TestKit;
pub(crate) use no_vmm::unsuited;

/// All cases, group by group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [
        backend::cases(),
        reserve::cases(),
        physical::cases(),
        kinds::cases(),
        map::cases(),
        access::cases(),
        grow::cases(),
        guard::cases(),
        alias::cases(),
        at::cases(),
        unmap::cases(),
        lifetime::cases(),
        data::cases(),
        vec::cases(),
        staging::cases(),
        event::cases(),
        refused::cases(),
        peer::cases(),
        order::cases(),
        captures::cases(),
        swap::cases(),
        banks::cases(),
        moved::cases(),
        suspend::cases(),
        premap::cases(),
        deferred::cases(),
        observers::cases(),
        pool::cases(),
        threads::cases(),
        fork::cases(),
        share::cases(),
        serve::cases(),
        snapshot_file::cases(),
        snapshot::cases(),
        fault::cases(),
        failures::cases(),
        kv_cache::cases(),
        no_vmm::cases(),
        stress::cases(),
        endurance::cases(),
    ]
    .concat()
}
