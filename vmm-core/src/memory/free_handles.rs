//! The handles of a page list: the free ones, and the number of all that exist.

use crate::types::{Lock, Operation, Result};

/// Handles of one size, of which some are free and the others in use, within a budget.
#[derive(Debug)]
pub(crate) struct FreeHandles<H>(Lock<State<H>>);

#[derive(Debug)]
struct State<H> {
    free: Vec<H>,
    /// The number of handles that exist, free or in use.
    held: u64,
    budget: u64,
}

/// The numbers of handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) held: u64,
    pub(crate) free: u64,
    pub(crate) budget: u64,
}

impl<H> FreeHandles<H> {
    pub(crate) fn new(budget: u64) -> Self {
        Self(Lock::new(State { free: Vec::new(), held: 0, budget }))
    }

    /// Takes up to `count` free handles. The missing ones count as held from now on: the caller creates them, or calls
    /// [`forget`](Self::forget). Takes none and returns the counts if the missing ones exceed the budget.
    pub(crate) fn take(
        &self,
        operation: Operation,
        count: u64,
    ) -> Result<std::result::Result<Vec<H>, Counts>> {
        let mut state = self.0.lock(operation)?;
        let free = state.free.len() as u64;
        let missing = count.saturating_sub(free);
        if missing > state.budget.saturating_sub(state.held) {
            return Ok(Err(Counts { held: state.held, free, budget: state.budget }));
        }
        state.held += missing;
        // The result is at most the length.
        let rest = free.saturating_sub(count) as usize;
        Ok(Ok(state.free.split_off(rest)))
    }

    /// Returns a handle to the list, or to the driver if the budget has become smaller.
    pub(crate) fn put(&self, handle: H) {
        // In a forked child the memory is the parent's, and dropping the handle has no effect.
        let Ok(mut state) = self.0.lock(Operation::ReleaseMemory) else { return };
        if state.held <= state.budget {
            state.free.push(handle);
        } else {
            state.held -= 1;
            drop(state);
            drop(handle);
        }
    }

    /// Ceases to count handles that were not created, or that do not return.
    pub(crate) fn forget(&self, count: u64) {
        if let Ok(mut state) = self.0.lock(Operation::ReleaseMemory) {
            state.held -= count;
        }
    }

    /// Changes the budget, and returns free handles beyond it to the driver.
    pub(crate) fn set_budget(&self, operation: Operation, budget: u64) -> Result<()> {
        let mut state = self.0.lock(operation)?;
        state.budget = budget;
        let free = state.free.len();
        let excess = state.held.saturating_sub(budget).min(free as u64);
        state.held -= excess;
        let released = state.free.split_off(free - excess as usize);
        drop(state);
        drop(released);
        Ok(())
    }

    /// Returns the counts; zeros in a forked child.
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock(Operation::QueryMemory).map_or_else(
            |_| Counts::default(),
            |state| Counts { held: state.held, free: state.free.len() as u64, budget: state.budget },
        )
    }
}
