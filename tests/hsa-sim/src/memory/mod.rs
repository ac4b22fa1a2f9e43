//! Ordinary memory, and how a GPU reaches any memory.
//!
//! Memory of a pool lives at its own address, where the CPU reads it too (a large BAR). Memory of the virtual memory API
//! (see [`vmem`](crate::vmem)) lives elsewhere: the address that the program knows is good only for an agent that was
//! given access. What a GPU does goes through `walk` in either case.
//!
//! There is one lock. Copies and kernels hold it while they work, so that no mapping changes under them.

pub mod allocation;
pub mod copy;
pub mod dmabuf;
pub mod information;
pub mod lock;
pub(crate) mod pages;
pub(crate) mod walk;

use crate::settings::{AGENTS, settings};
use crate::vmem::Vmem;
use allocation::Allocation;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
pub(crate) use walk::{Fault, Need, fault, faults};

/// The page of the CPU.
pub(crate) const PAGE: usize = 4096;

/// All memory that the simulation knows.
#[derive(Default)]
pub(crate) struct State {
    /// By their first addresses.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    used: [usize; AGENTS],
    pub(crate) vmem: Vmem,
}

/// The lock's content.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of an agent's memory is free.
pub(crate) fn available(agent: usize) -> usize {
    settings().memory.saturating_sub(state().used[agent])
}

impl State {
    /// Takes memory of an agent, if there is so much. The host's has no limit here.
    pub(crate) fn charge(&mut self, agent: usize, size: usize) -> bool {
        let used = self.used[agent].saturating_add(size);
        let fits = agent == 0 || used <= settings().memory;
        if fits {
            self.used[agent] = used;
        }
        fits
    }

    /// Gives it back.
    pub(crate) fn discharge(&mut self, agent: usize, size: usize) {
        self.used[agent] = self.used[agent].saturating_sub(size);
    }
}

/// The entry that holds an address, of a map of ranges by their first addresses.
pub(crate) fn holding<T>(
    ranges: &BTreeMap<usize, T>,
    at: usize,
    size: impl Fn(&T) -> usize,
) -> Option<(usize, &T)> {
    let (base, item) = ranges.range(..=at).next_back()?;
    (at - base < size(item)).then_some((*base, item))
}
