//! Copies and fills by an agent, with its page walk on both sides.
#![allow(unsafe_code)] // reaches memory by address

use super::walk::Part;
use super::{Fault, Need, PAGE, fault, state};
use crate::abi::Status;
use crate::agent;
use rustix::mm::{Advice, madvise};

/// From this size on, the pages of a copy are populated together.
const LONG: usize = 16 * PAGE;

/// An address and the agent that accesses it.
type Side = (usize, usize);

/// Copies as an agent. If either side faults, nothing is copied.
pub(crate) fn copy(agent: usize, to: usize, from: usize, size: usize) -> Result<(), Fault> {
    copy_between((agent, to), (agent, from), size)
}

/// Copies with one agent's page walk for the target and another's for the source.
fn copy_between(to: Side, from: Side, size: usize) -> Result<(), Fault> {
    let state = state();
    let source = state.walk(from.0, from.1, size, Need::Read)?;
    let target = state.walk(to.0, to.1, size, Need::Write)?;
    bring_in(&source, Advice::LinuxPopulateRead);
    bring_in(&target, Advice::LinuxPopulateWrite);
    let (mut source, mut target) = (source.into_iter(), target.into_iter());
    let (mut here, mut there) = (source.next(), target.next());
    while let (Some(read), Some(write)) = (here, there) {
        let size = read.size.min(write.size);
        // SAFETY: the walk found memory of this size on both sides, and the lock keeps it mapped. As with a GPU's copy,
        // concurrent changes of the memory give unspecified data.
        unsafe { std::ptr::copy(read.at, write.at, size) };
        here = rest(read, size).or_else(|| source.next());
        there = rest(write, size).or_else(|| target.next());
    }
    Ok(())
}

/// Populates the pages of long parts in one call each, since a page fault for each takes longer than the copy. A failure does
/// no harm.
fn bring_in(parts: &[Part], advice: Advice) {
    for Part { at, size } in parts.iter().filter(|part| part.size >= LONG) {
        let before = at.addr() % PAGE;
        // SAFETY: the walk found memory of this size, and populating pages does not change them.
        let _ = unsafe { madvise(at.wrapping_sub(before).cast(), size + before, advice) };
    }
}

/// Fills as an agent, with a repeated pattern. If it faults, nothing is written.
pub(crate) fn fill(agent: usize, to: usize, size: usize, pattern: &[u8]) -> Result<(), Fault> {
    let state = state();
    let parts = state.walk(agent, to, size, Need::Write)?;
    let mut bytes = pattern.iter().cycle();
    for part in parts {
        if let [byte] = pattern {
            // SAFETY: the walk found memory of this size, and the lock keeps it mapped.
            unsafe { part.at.write_bytes(*byte, part.size) };
            continue;
        }
        for (offset, byte) in (0..part.size).zip(&mut bytes) {
            // SAFETY: as above.
            unsafe { part.at.add(offset).write(*byte) };
        }
    }
    Ok(())
}

/// Reads as an agent.
pub(crate) fn read(agent: usize, from: usize, size: usize) -> Result<Vec<u8>, Fault> {
    let state = state();
    let parts = state.walk(agent, from, size, Need::Read)?;
    let mut bytes = Vec::with_capacity(size);
    for part in parts {
        // SAFETY: the walk found memory of this size, and the lock keeps it mapped.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(part.at, part.size) });
    }
    Ok(bytes)
}

/// Returns the rest of a part after its first `done` bytes.
fn rest(part: Part, done: usize) -> Option<Part> {
    let size = part.size - done;
    (size > 0).then(|| Part { at: part.at.wrapping_add(done), size })
}

hsa! {
    /// Copies and waits. If an address is not the CPU's, ROCr makes a GPU copy and locks the program's own memory meanwhile.
    /// Here the first agent with access reaches each side.
    pub unsafe fn hsa_memory_copy(to: usize, from: usize, size: usize) {
        let reaches = |at: usize, need: Need| {
            let able = |agent: &usize| state().walk(*agent, at, size, need).is_ok();
            agent::all().find(able).unwrap_or(0)
        };
        let (to, from) = ((reaches(to, Need::Write), to), (reaches(from, Need::Read), from));
        match copy_between(to, from, size) {
            Ok(()) => Status::SUCCESS,
            Err(wrong) => {
                fault(from.0.max(to.0), wrong, "hsa_memory_copy");
                Status::MEMORY_FAULT
            }
        }
    }
}
