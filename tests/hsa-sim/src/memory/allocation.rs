//! Memory of pools, for `hipMalloc` and `hipHostMalloc`, and the agents that may reach it.
//!
//! Rules: `hsa_amd_memory_pool_allocate`, `hsa_amd_memory_pool_free` and `hsa_amd_agents_allow_access` in
//! `hsa_ext_amd.h`. The owner and the CPU always keep their access here.
#![allow(unsafe_code)] // exported to C

use super::pages::Pages;
use super::{PAGE, State, holding, state};
use crate::abi::{Agent, Pool, Status, list};
use crate::agent;
use crate::pool::{self, Kind, Reach};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Memory at its own address.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) size: usize,
    pub(crate) origin: Origin,
    pub(crate) owner: usize,
    pub(crate) kind: Kind,
    /// A bit for each agent that may reach it.
    pub(crate) agents: u32,
}

/// The source of an allocation.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A pool. The descriptor exists once the memory was exported.
    Pool { pages: Pages, file: Option<OwnedFd> },
    /// The loader of code objects, which owns the pages.
    Code,
    /// The program: host memory that it locked.
    Locked,
}

/// Loaded code, and the agents' access.
impl State {
    /// Registers loaded code, so that the GPU can reach its variables.
    pub(crate) fn add_code(&mut self, at: usize, size: usize, owner: usize) {
        let allocation = Allocation {
            size,
            origin: Origin::Code,
            owner,
            kind: Kind::Coarse,
            agents: agent::bit(0) | agent::bit(owner),
        };
        self.allocations.insert(at, allocation);
    }

    fn allow(&mut self, at: usize, bits: u32) -> Status {
        if let Some(status) = self.vmem.allow(at, bits) {
            return status;
        }
        let Some((base, allocation)) = holding(&self.allocations, at, |allocation| allocation.size) else {
            trace!("agents_allow_access({bits:#b}, {at:#x}): unknown address");
            return Status::INVALID_ALLOCATION;
        };
        let (owner, kind) = (allocation.owner, allocation.kind);
        let never = |agent| bits & agent::bit(agent) != 0 && pool::reach(agent, owner, kind) == Reach::Never;
        if agent::all().any(never) {
            return Status::INVALID_ARGUMENT;
        }
        if let Some(allocation) = self.allocations.get_mut(&base) {
            allocation.agents = bits | agent::bit(owner) | agent::bit(0);
        }
        Status::SUCCESS
    }
}

hsa! {
    /// Allocates memory of a pool.
    pub unsafe fn hsa_amd_memory_pool_allocate(
        pool: Pool,
        size: usize,
        flags: u32,
        at: Option<&mut MaybeUninit<usize>>,
    ) {
        let Some((owner, kind)) = pool::parts(pool) else { return Status::INVALID_MEMORY_POOL };
        let Some(at) = at.filter(|_| size > 0 && kind != Kind::Group) else { return Status::INVALID_ARGUMENT };
        let Some(size) = size.checked_next_multiple_of(PAGE) else { return Status::OUT_OF_RESOURCES };
        let mut state = state();
        if !state.charge(owner, size) {
            trace!("memory_pool_allocate({owner}, {size:#x}): out of memory");
            return Status::OUT_OF_RESOURCES;
        }
        let Ok(pages) = Pages::anonymous(size) else {
            state.discharge(owner, size);
            return Status::OUT_OF_RESOURCES;
        };
        if owner > 0 {
            pages.fill_with_junk();
        }
        let start = pages.start();
        trace!("memory_pool_allocate(agent {owner} {kind:?}, {size:#x}, flags {flags:#x}) = {start:#x}");
        let origin = Origin::Pool { pages, file: None };
        state.allocations.insert(start, Allocation { size, origin, owner, kind, agents: agent::bit(0) | agent::bit(owner) });
        at.write(start);
        Status::SUCCESS
    }

    /// Frees memory of a pool.
    pub unsafe fn hsa_amd_memory_pool_free(at: usize) {
        let mut state = state();
        trace!("memory_pool_free({at:#x})");
        match state.allocations.get(&at) {
            Some(Allocation { origin: Origin::Pool { .. }, size, owner, .. }) => {
                let (size, owner) = (*size, *owner);
                state.allocations.remove(&at);
                state.discharge(owner, size);
                Status::SUCCESS
            }
            _ => Status::INVALID_ALLOCATION,
        }
    }

    /// Sets the agents that may reach an allocation, or gives more agents access to mapped memory.
    pub unsafe fn hsa_amd_agents_allow_access(
        count: u32,
        agents: *const Agent,
        _flags: *const u32,
        at: usize,
    ) {
        // SAFETY: the caller's list has `count` agents.
        let agents = unsafe { list(agents, count as usize) };
        match agent::bits(agents) {
            None => Status::INVALID_AGENT,
            Some(bits) => state().allow(at, bits),
        }
    }
}
