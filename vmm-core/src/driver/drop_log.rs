//! What failed while something was dropped, where no error can be returned.

use crate::types::{Error, Lock, Operation};
use std::sync::atomic::{AtomicU64, Ordering};

/// The failures of one backend's destructors. Dropping never panics; what fails in it is written down here, and
/// what could not be given back safely is left to the driver until the process ends.
///
/// In a forked child nothing is written down, and there is no latest failure: both are the parent's.
#[derive(Debug, Default)]
pub struct DropLog {
    count: AtomicU64,
    last: Lock<Option<Error>>,
}

impl DropLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a failure down.
    pub fn record(&self, error: Error) {
        if let Ok(mut last) = self.last.lock(Operation::LogFailure) {
            self.count.fetch_add(1, Ordering::Relaxed);
            *last = Some(error);
        }
    }

    /// How many failures there were since the backend was opened.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The latest failure since this was last asked.
    pub fn take_last(&self) -> Option<Error> {
        self.last.lock(Operation::LogFailure).ok()?.take()
    }
}
