//! Access to mappings.
//!
//! Rules: `hsa_amd_vmem_set_access` and `hsa_amd_vmem_get_access` in `hsa_ext_amd.h`: agents that are not named keep their
//! access. From ROCr: a range must begin at a mapping and have no hole; the last mapping may reach beyond its end, and
//! changes as a whole. A query does not distinguish access that was never set from access that was removed. A query of the
//! byte after a mapping still reports the mapping's access if nothing else is there.
#![allow(unsafe_code)] // exported to C

use super::Vmem;
use super::mapping::Mapping;
use crate::abi::{AccessDescription, Agent, Status, list, permission};
use crate::agent;
use crate::memory::{holding, state};
use crate::pool::{self, Reach};
use crate::settings::{AGENTS, settings};
use rustix::mm::ProtFlags;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

impl Vmem {
    /// Gives agents full access to the mapping at an address and to those that follow it without a hole; returns `None` if
    /// none is there. No agent loses access.
    pub(crate) fn allow(&mut self, at: usize, agents: u32) -> Option<Status> {
        let (mut base, _) = holding(&self.mappings, at, |mapping| mapping.size)?;
        while let Some(mapping) = self.mappings.get(&base) {
            let next = base + mapping.size;
            let never = |agent| agents & agent::bit(agent) != 0 && self.never_reaches(agent, mapping);
            if (0..AGENTS).any(never) {
                return Some(Status::INVALID_ARGUMENT);
            }
            for agent in (0..AGENTS).filter(|agent| agents & agent::bit(*agent) != 0) {
                trace!("agents_allow_access({base:#x}, agent {agent})");
                self.grant(base, agent, permission::READ_WRITE);
            }
            base = next;
        }
        Some(Status::SUCCESS)
    }

    /// Returns whether an agent can never get access to the memory of a mapping.
    fn never_reaches(&self, agent: usize, mapping: &Mapping) -> bool {
        let memory = self.physical.get(&mapping.handle);
        memory.is_some_and(|memory| pool::reach(agent, memory.agent, memory.kind) == Reach::Never)
    }

    /// Sets an agent's access to one mapping.
    fn grant(&mut self, start: usize, agent: usize, permissions: u32) {
        let Some(mapping) = self.mappings.get_mut(&start) else { return };
        mapping.access[agent] = permissions;
        mapping.shown |= agent == 0;
        if agent > 0 && !settings().host_access {
            return;
        }
        let protection = match permissions {
            permission::READ => ProtFlags::READ,
            permission::WRITE => ProtFlags::WRITE,
            permission::READ_WRITE => ProtFlags::READ | ProtFlags::WRITE,
            _ => ProtFlags::empty(),
        };
        let (Some(memory), Some(around)) =
            (self.physical.get(&mapping.handle), self.reservations.get(&mapping.reservation))
        else {
            return;
        };
        let file = if settings().host_faults { nothing() } else { memory.file.as_fd() };
        let content = (!protection.is_empty()).then_some((file, protection));
        if let Err(error) = around.pages.show(start - mapping.reservation, mapping.size, content) {
            crate::report::stop(format_args!("the CPU's access cannot be changed: {error}"));
        }
    }
}

/// Returns an empty file. Pages of it, all behind its end, raise SIGBUS.
fn nothing() -> BorrowedFd<'static> {
    static EMPTY: LazyLock<OwnedFd> = LazyLock::new(|| {
        let file = rustix::fs::memfd_create("hsa-sim-nothing", rustix::fs::MemfdFlags::CLOEXEC);
        file.unwrap_or_else(|error| {
            crate::report::stop(format_args!("no file for the CPU's access: {error}"))
        })
    });
    EMPTY.as_fd()
}

hsa! {
    /// Sets the access of some agents to whole mappings.
    pub unsafe fn hsa_amd_vmem_set_access(
        at: usize,
        size: usize,
        descriptions: *const AccessDescription,
        count: usize,
    ) {
        // SAFETY: the caller's list has `count` descriptions.
        let descriptions = unsafe { list(descriptions, count) };
        if descriptions.iter().any(|description| agent::index(description.agent).is_none()) {
            return Status::INVALID_AGENT;
        }
        let mut state = state();
        if state.vmem.reserved_around(at, size).is_none() {
            trace!("vmem_set_access({at:#x}, {size:#x}): not reserved");
            return Status::INVALID_ARGUMENT;
        }
        let Some((starts, _)) = state.vmem.run(at, size) else {
            trace!("vmem_set_access({at:#x}, {size:#x}): not all of it is mapped");
            return Status::INVALID_ALLOCATION;
        };
        // Removing access is permitted even if the agent cannot have any.
        let given = descriptions.iter().filter(|description| description.permissions != permission::NONE);
        let given: Vec<usize> = given.filter_map(|description| agent::index(description.agent)).collect();
        let never = |start: &usize| {
            let mapping = state.vmem.mappings.get(start);
            mapping.is_some_and(|mapping| given.iter().any(|agent| state.vmem.never_reaches(*agent, mapping)))
        };
        if starts.iter().any(never) {
            trace!("vmem_set_access({at:#x}, {size:#x}): an agent never reaches that memory");
            return Status::INVALID_ARGUMENT;
        }
        let cannot_import = |start: &usize| {
            let mapping = state.vmem.mappings.get(start);
            let memory = mapping.and_then(|mapping| state.vmem.physical.get(&mapping.handle));
            memory.is_some_and(|memory| {
                let is_peer = |agent: &usize| *agent != 0 && *agent != memory.agent;
                given.iter().any(is_peer) && !memory.reaches_peers()
            })
        };
        if starts.iter().any(cannot_import) {
            trace!("vmem_set_access({at:#x}, {size:#x}): the descriptor that the runtime keeps is not of that memory");
            return Status::ERROR;
        }
        for start in starts {
            for description in descriptions {
                let Some(agent) = agent::index(description.agent) else { continue };
                trace!("vmem_set_access({start:#x}, agent {agent}): {}", description.permissions);
                state.vmem.grant(start, agent, description.permissions);
            }
        }
        Status::SUCCESS
    }

    /// Returns an agent's access.
    pub unsafe fn hsa_amd_vmem_get_access(at: usize, out: Option<&mut MaybeUninit<u32>>, agent: Agent) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        out.write(permission::NONE);
        let state = state();
        let Some((_, mapping)) = holding(&state.vmem.mappings, at, |mapping| mapping.size + 1) else {
            return Status::INVALID_ALLOCATION;
        };
        let Some(agent) = agent::index(agent) else { return Status::INVALID_AGENT };
        out.write(mapping.access[agent]);
        Status::SUCCESS
    }
}
