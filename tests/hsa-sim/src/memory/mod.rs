//! Ordinary memory, and a GPU's access to any memory.
//!
//! Memory of a pool has its own address, at which the CPU reads it too (a large BAR). Memory of the virtual memory API (see
//! [`vmem`](crate::vmem)) is mapped elsewhere: the program's address is only valid for an agent with access. In both cases a
//! GPU's accesses go through `walk`.
//!
//! There is one lock. Copies and kernels hold it while they work, so that no mapping changes meanwhile.

pub mod allocation;
pub mod copy;
pub mod dmabuf;
pub mod information;
pub mod lock;
pub(crate) mod pages;
mod ranges;
pub(crate) mod walk;

use crate::settings::{AGENTS, settings};
use crate::vmem::Vmem;
use allocation::Allocation;
pub(crate) use pages::PAGE;
pub(crate) use ranges::holding;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
pub(crate) use walk::{Fault, Need, fault, faults};

/// All memory that the simulator knows.
#[derive(Default)]
pub(crate) struct State {
    /// Keyed by their first addresses.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    used: [usize; AGENTS],
    pub(crate) vmem: Vmem,
}

/// Takes the lock.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the free memory of an agent.
pub(crate) fn available(agent: usize) -> usize {
    settings().memory.saturating_sub(state().used[agent])
}

impl State {
    /// Takes memory of an agent if there is enough. The host's has no limit here.
    pub(crate) fn charge(&mut self, agent: usize, size: usize) -> bool {
        let used = self.used[agent].saturating_add(size);
        let fits = agent == 0 || used <= settings().memory;
        if fits {
            self.used[agent] = used;
        }
        fits
    }

    /// Returns memory to an agent.
    pub(crate) fn discharge(&mut self, agent: usize, size: usize) {
        self.used[agent] = self.used[agent].saturating_sub(size);
    }
}
