//! Threads that copy or write while the calling thread does the same.

use crate::types::{Detail, DriverError, Error, Operation, Result};
use std::thread::{self, Scope, ScopedJoinHandle};

/// Starts a thread. Its error is the operation's, and says what the thread is for.
pub(super) fn start_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    (operation, purpose): (Operation, &str),
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
        Error::new(
            operation,
            Detail::Driver {
                source: DriverError::system("start a thread", &error),
                context: purpose.to_owned(),
            },
        )
    })
}

/// Waits for a thread and returns its result. A panic of the thread continues in the caller.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
