//! Memory as a kernel sees it: words, through the page walk of its GPU.
#![allow(unsafe_code)] // reaches memory by address

use crate::memory::{Fault, Need, State, state};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;

const WORD: usize = size_of::<u64>();

/// A GPU while it runs a kernel.
pub(super) struct Gpu {
    agent: usize,
    state: MutexGuard<'static, State>,
}

impl Gpu {
    /// A GPU. Until it is dropped nothing else changes what is mapped.
    pub(super) fn of(agent: usize) -> Self {
        Self { agent, state: state() }
    }

    /// Words that follow each other, in the pieces that they are in memory. Others may write to them meanwhile, so they
    /// are atomic.
    pub(super) fn words(&self, at: u64, count: u64, need: Need) -> Result<Vec<&[AtomicU64]>, Fault> {
        let start = at as usize;
        if !start.is_multiple_of(WORD) {
            return Err(Fault { at: start, why: "Misaligned: words are at multiples of 8 bytes here" });
        }
        let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(WORD));
        let size = size.ok_or(Fault { at: start, why: "Address overflow" })?;
        let parts = self.state.walk(self.agent, start, size, need)?;
        // SAFETY: the walk found so many bytes, whole pages but for the first and last, so words do not cross parts;
        // the lock behind `state` keeps them mapped; atomics may be shared with anyone.
        let pieces = parts
            .into_iter()
            .map(|part| unsafe { std::slice::from_raw_parts(part.at.cast::<AtomicU64>(), part.size / WORD) });
        Ok(pieces.collect())
    }

    /// One word.
    pub(super) fn word(&self, at: u64, need: Need) -> Result<&AtomicU64, Fault> {
        let pieces = self.words(at, 1, need)?;
        let first = pieces.into_iter().flatten().next();
        first.ok_or(Fault { at: at as usize, why: "Page not present" })
    }
}
