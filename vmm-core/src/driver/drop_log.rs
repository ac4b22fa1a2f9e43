//! A log of failures in destructors, which cannot return errors.

use crate::types::{Error, ErrorKind, Lock, Operation, is_exiting};
use std::sync::atomic::{AtomicU64, Ordering};

/// The log of failures in the destructors of one backend's values.
///
/// Dropping never panics: a failure is logged here. Resources that cannot be released safely are leaked until the process
/// ends. In a forked child, no failure is logged and there is no latest failure, because the values belong to the parent. While
/// the process exits, no failure is logged either, because the driver releases everything.
#[derive(Debug, Default)]
pub struct DropLog {
    count: AtomicU64,
    last: Lock<Option<Error>>,
}

impl DropLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs a failure.
    pub fn record(&self, error: Error) {
        if is_exiting() || error.kind() == ErrorKind::Exiting {
            return;
        }
        if let Ok(mut last) = self.last.lock(Operation::LogFailure) {
            self.count.fetch_add(1, Ordering::Relaxed);
            *last = Some(error);
        }
    }

    /// Returns the number of failures since the backend was opened.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Removes and returns the latest failure. Returns `None` if there was none since the last call.
    pub fn take_last(&self) -> Option<Error> {
        self.last.lock(Operation::LogFailure).ok()?.take()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::Detail;

    #[test]
    fn newest_error_is_kept_all_counted() {
        let log = DropLog::new();
        for operation in [Operation::Unmap, Operation::Free] {
            log.record(Error::new(operation, Detail::ZeroSize));
        }
        assert_eq!(log.take_last().unwrap().operation(), Operation::Free);
        assert!(log.take_last().is_none(), "the older error");
        assert_eq!(log.count(), 2);
    }
}
