//! The page walk: where an agent finds what is at an address, or the fault that it gets.
//!
//! Rules: a GPU reaches an allocation if it was given access, and a mapping as far as its permissions go; the CPU reaches
//! all of its own process. On a fault ROCr writes `Memory access fault by GPU node-1 ...` and aborts; so does this.

use super::{State, holding};
use crate::agent;
use crate::settings::settings;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
}

/// An access that is not allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) why: &'static str,
}

/// A part of what was asked for: where the simulation itself finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) at: *mut u8,
    pub(crate) size: usize,
}

impl State {
    /// The parts that `size` bytes at an address are in memory, or the first byte that an agent may not reach.
    pub(crate) fn walk(
        &self,
        agent: usize,
        start: usize,
        size: usize,
        need: Need,
    ) -> Result<Vec<Part>, Fault> {
        let end = start.checked_add(size).ok_or(Fault { at: start, why: "Address overflow" })?;
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let found = self.step(agent, at, need)?;
            let size = found.size.min(end - at);
            parts.push(Part { size, ..found });
            at += size;
        }
        Ok(parts)
    }

    /// The memory from an address to the end of what it lies in.
    fn step(&self, agent: usize, at: usize, need: Need) -> Result<Part, Fault> {
        let own = |size| Part { at: std::ptr::with_exposed_provenance_mut(at), size };
        if let Some((base, allocation)) = holding(&self.allocations, at, |allocation| allocation.size) {
            if allocation.agents & agent::bit(agent) == 0 {
                return Err(Fault { at, why: "Page not present: no access to this allocation" });
            }
            return Ok(own(base + allocation.size - at));
        }
        match self.vmem.step(agent, at, need) {
            Some(found) => found,
            None if agent == 0 => Ok(own(usize::MAX - at)),
            None => Err(Fault { at, why: "Page not present or supervisor privilege" }),
        }
    }
}

static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How many faults there were.
pub(crate) fn faults() -> u64 {
    FAULTS.load(Relaxed)
}

/// Ends the process as ROCr does, or counts the fault where the settings say so.
pub(crate) fn fault(agent: usize, fault: Fault, what: &str) {
    FAULTS.fetch_add(1, Relaxed);
    let Fault { at, why } = fault;
    eprintln!("hsa-sim: Memory access fault by GPU node-{agent} on address {at:#x} ({what}). Reason: {why}.");
    if settings().abort_on_fault {
        std::process::abort();
    }
}
