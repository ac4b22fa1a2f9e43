//! Host memory that the program locks so that GPUs can reach it. It stays at its address.
//!
//! Rules: `hsa_amd_memory_lock_to_pool` and `hsa_amd_memory_unlock` in `hsa_ext_amd.h`; without a list of agents, all may
//! reach it.
#![allow(unsafe_code)] // exported to C

use super::allocation::{Allocation, Origin};
use super::{PAGE, state};
use crate::abi::{Agent, Pool, Status, list};
use crate::agent;
use crate::pool::Kind;
use std::mem::MaybeUninit;

hsa! {
    /// Locks whole pages.
    pub unsafe fn hsa_amd_memory_lock_to_pool(
        host: usize,
        size: usize,
        agents: *const Agent,
        count: i32,
        _pool: Pool,
        _flags: u32,
        at: Option<&mut MaybeUninit<usize>>,
    ) {
        let base = host & !(PAGE - 1);
        let end = host.checked_add(size).and_then(|end| end.checked_next_multiple_of(PAGE));
        let (Some(at), Some(end)) = (at.filter(|_| host > 0 && size > 0), end) else {
            return Status::INVALID_ARGUMENT;
        };
        // SAFETY: the caller's list has `count` agents.
        let agents = unsafe { list(agents, usize::try_from(count).unwrap_or(0)) };
        let bits = if agents.is_empty() { Some(u32::MAX) } else { agent::bits(agents) };
        let Some(bits) = bits else { return Status::INVALID_AGENT };
        let size = end - base;
        let locked = Allocation { size, origin: Origin::Locked, owner: 0, kind: Kind::Fine, agents: bits | agent::bit(0) };
        state().allocations.entry(base).and_modify(|there| there.size = there.size.max(size)).or_insert(locked);
        at.write(host);
        trace!("memory_lock({host:#x}, {size:#x})");
        Status::SUCCESS
    }

    /// Unlocks the memory that begins in the same page.
    pub unsafe fn hsa_amd_memory_unlock(host: usize) {
        let mut state = state();
        let base = host & !(PAGE - 1);
        if matches!(state.allocations.get(&base), Some(Allocation { origin: Origin::Locked, .. })) {
            state.allocations.remove(&base);
        }
        Status::SUCCESS
    }

    /// Does nothing: no registration is needed.
    pub unsafe fn hsa_memory_register(_at: usize, _size: usize) {
        Status::SUCCESS
    }

    /// Does nothing: no registration is needed.
    pub unsafe fn hsa_memory_deregister(_at: usize, _size: usize) {
        Status::SUCCESS
    }
}
