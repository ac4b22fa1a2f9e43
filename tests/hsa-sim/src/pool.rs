//! Memory pools: the memory of each agent, and the agents that may get access to it.
//!
//! Rules: `hsa_amd_memory_pool_info_t` and `hsa_amd_agent_memory_pool_info_t` in `hsa_ext_amd.h`.
#![allow(unsafe_code)] // exported to C, with pointers for the results

use crate::abi::{Agent, Pool, Status};
use crate::agent;
use crate::memory::PAGE;
use crate::settings::settings;
use crate::system::Answer;
use std::ffi::c_void;

const FIRST: u64 = 0xB001_0000;
const STEP: u64 = 0x10;

/// The purpose of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Fine-grained: coherent while kernels run.
    Fine,
    /// The host's pool for the arguments of kernels.
    Kernarg,
    /// Coarse-grained: the memory of `hipMalloc` and `hipMemCreate`.
    Coarse,
    /// Shared by the threads of a work group; cannot be allocated.
    Group,
}

const OF_CPU: [Kind; 3] = [Kind::Fine, Kind::Kernarg, Kind::Coarse];
const OF_GPU: [Kind; 3] = [Kind::Coarse, Kind::Fine, Kind::Group];

const fn pools(agent: usize) -> &'static [Kind; 3] {
    if agent == 0 { &OF_CPU } else { &OF_GPU }
}

/// Returns the handle of an agent's pool.
pub(crate) const fn handle(agent: usize, kind: Kind) -> Pool {
    Pool(FIRST + STEP * agent as u64 + kind as u64)
}

/// Returns the agent and the kind of a pool, if the handle is one.
pub(crate) fn parts(pool: Pool) -> Option<(usize, Kind)> {
    let offset = pool.0.checked_sub(FIRST)?;
    let agent = usize::try_from(offset / STEP).ok().filter(|agent| agent::all().contains(agent))?;
    let kind = pools(agent).iter().find(|kind| **kind as u64 == offset % STEP)?;
    Some((agent, *kind))
}

/// `hsa_amd_memory_pool_global_flag_t`: kernarg 1, fine-grained 2, coarse-grained 4.
pub(crate) const fn flags(kind: Kind) -> u32 {
    match kind {
        Kind::Fine => 2,
        Kind::Kernarg => 3,
        Kind::Coarse => 4,
        Kind::Group => 0,
    }
}

/// Returns the allocation granularity of an agent's pools.
pub(crate) fn granule(agent: usize) -> usize {
    if agent == 0 { PAGE } else { settings().granule }
}

/// `hsa_amd_memory_pool_access_t`: never 0, by default 1, on request 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Reach {
    Never,
    Always,
    OnRequest,
}

/// Returns whether an agent can get access to memory of a pool.
pub(crate) fn reach(agent: usize, owner: usize, kind: Kind) -> Reach {
    let closed = kind == Kind::Group
        || (agent == 0 && !settings().large_bar)
        || (agent > 0 && owner > 0 && !settings().p2p);
    match (agent == owner, closed) {
        (true, _) => Reach::Always,
        (false, true) => Reach::Never,
        (false, false) => Reach::OnRequest,
    }
}

fn size(agent: usize, kind: Kind) -> usize {
    if kind == Kind::Group {
        64 << 10
    } else if agent > 0 {
        settings().memory
    } else {
        let host = rustix::system::sysinfo();
        host.totalram as usize * host.mem_unit as usize
    }
}

fn answer(agent: usize, kind: Kind, attribute: u32) -> Option<Answer> {
    let gpu = agent > 0;
    Some(match attribute {
        0 => if kind == Kind::Group { 3u32 } else { 0 }.into(), // SEGMENT: group, global
        1 => flags(kind).into(),                                // GLOBAL_FLAGS
        2 | 16 => size(agent, kind).into(),                     // SIZE, ALLOC_MAX_SIZE
        5 => (kind != Kind::Group).into(),                      // RUNTIME_ALLOC_ALLOWED
        6 | 7 => granule(agent).into(), // RUNTIME_ALLOC_GRANULE, RUNTIME_ALLOC_ALIGNMENT
        15 => (!gpu).into(),            // ACCESSIBLE_BY_ALL
        17 => u32::from(gpu).into(),    // LOCATION: CPU, GPU
        18 => if gpu { settings().recommended_granule } else { PAGE }.into(), // RUNTIME_ALLOC_REC_GRANULE
        _ => return None,
    })
}

/// Returns `hsa_amd_memory_pool_link_info_t`: seven words, the fifth of which has three flags (atomics of 32 bits, of 64,
/// coherence). Between GPUs it is xGMI (4), to the CPU PCIe (2).
fn link(agent: usize, owner: usize) -> [u32; 7] {
    let kind = if agent > 0 && owner > 0 { 4 } else { 2 };
    [0, 0, 0, 0, 0x0001_0101, kind, 20]
}

hsa! {
    /// Calls a function for each pool of an agent.
    pub unsafe fn hsa_amd_agent_iterate_memory_pools(
        agent: Agent,
        callback: extern "C" fn(Pool, *mut c_void) -> Status,
        data: *mut c_void,
    ) {
        let Some(agent) = agent::index(agent) else { return Status::INVALID_AGENT };
        pools(agent).iter().map(|kind| callback(handle(agent, *kind), data))
            .find(|status| *status != Status::SUCCESS).unwrap_or(Status::SUCCESS)
    }

    /// Returns an attribute of a pool.
    pub unsafe fn hsa_amd_memory_pool_get_info(pool: Pool, attribute: u32, value: *mut u8) {
        let Some((agent, kind)) = parts(pool) else { return Status::INVALID_MEMORY_POOL };
        match answer(agent, kind, attribute) {
            // SAFETY: the caller guarantees space for the attribute.
            Some(answer) => unsafe { answer.write(value) },
            None => {
                trace!("hsa_amd_memory_pool_get_info({attribute}): unknown");
                Status::INVALID_ARGUMENT
            }
        }
    }

    /// Returns an attribute of an agent's access to a pool.
    pub unsafe fn hsa_amd_agent_memory_pool_get_info(
        agent: Agent,
        pool: Pool,
        attribute: u32,
        value: *mut u8,
    ) {
        let Some(agent) = agent::index(agent) else { return Status::INVALID_AGENT };
        let Some((owner, kind)) = parts(pool) else { return Status::INVALID_MEMORY_POOL };
        let answer = match attribute {
            0 => Answer::from(reach(agent, owner, kind) as u32), // ACCESS
            1 => u32::from(agent != owner).into(),               // NUM_LINK_HOPS
            2 if agent == owner => return Status::SUCCESS,       // LINK_INFO: one per hop
            2 => link(agent, owner).into(),
            _ => return Status::INVALID_ARGUMENT,
        };
        // SAFETY: the caller guarantees space for the attribute.
        unsafe { answer.write(value) }
    }
}
