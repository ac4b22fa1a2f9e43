//! Memory from the view of a kernel: words, through the page walk of its GPU.
#![allow(unsafe_code)] // reaches memory by address

use crate::memory::{Fault, Need, State, state};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;

const WORD: usize = size_of::<u64>();

/// A GPU that runs a kernel.
pub(super) struct Gpu {
    agent: usize,
    state: MutexGuard<'static, State>,
}

impl Gpu {
    /// Creates it for an agent. It locks the mappings until it is dropped.
    pub(super) fn of(agent: usize) -> Self {
        Self { agent, state: state() }
    }

    /// Returns consecutive words, in their contiguous pieces of memory. They are atomic, because other threads may write to
    /// them.
    pub(super) fn words(&self, at: u64, count: u64, need: Need) -> Result<Vec<&[AtomicU64]>, Fault> {
        let start = at as usize;
        if !start.is_multiple_of(WORD) {
            return Err(Fault { at: start, why: "Misaligned: words are at multiples of 8 bytes here" });
        }
        let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(WORD));
        let size = size.ok_or(Fault { at: start, why: "Address overflow" })?;
        let parts = self.state.walk(self.agent, start, size, need)?;
        // SAFETY: the walk found memory of this size, in whole pages except for the first and last, so no word crosses two
        // parts; the lock behind `state` keeps them mapped; atomics may be shared.
        let pieces = parts
            .into_iter()
            .map(|part| unsafe { std::slice::from_raw_parts(part.at.cast::<AtomicU64>(), part.size / WORD) });
        Ok(pieces.collect())
    }

    /// Returns one word.
    pub(super) fn word(&self, at: u64, need: Need) -> Result<&AtomicU64, Fault> {
        let pieces = self.words(at, 1, need)?;
        let first = pieces.into_iter().flatten().next();
        first.ok_or(Fault { at: at as usize, why: "Page not present" })
    }
}
