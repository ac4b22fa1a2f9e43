//! The page walk: finds the memory at an agent's address, or its fault.
//!
//! Rules: a GPU reaches an allocation if it has access, and a mapping according to its permissions; the CPU reaches all of
//! its own process. On a fault ROCr writes `Memory access fault by GPU node-1 ...` and aborts; the simulator does the same.

use super::{State, holding};
use crate::agent;
use crate::settings::settings;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kind of an access.
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

/// A contiguous part of a range, at the simulator's own address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) at: *mut u8,
    pub(crate) size: usize,
}

impl State {
    /// Returns the contiguous parts of `size` bytes at an address, or the first byte that an agent may not reach.
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

    /// Returns the memory from an address to the end of its allocation or mapping.
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

/// Returns the number of faults.
pub(crate) fn faults() -> u64 {
    FAULTS.load(Relaxed)
}

/// Ends the process as ROCr does, or counts the fault if the settings say so.
pub(crate) fn fault(agent: usize, fault: Fault, what: &str) {
    FAULTS.fetch_add(1, Relaxed);
    let Fault { at, why } = fault;
    eprintln!("hsa-sim: Memory access fault by GPU node-{agent} on address {at:#x} ({what}). Reason: {why}.");
    if settings().abort_on_fault {
        std::process::abort();
    }
}
