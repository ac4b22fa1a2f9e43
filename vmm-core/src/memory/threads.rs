//! Threads that copy or write while the calling thread does the same.

use std::thread::{self, Scope, ScopedJoinHandle};

/// Starts a thread, or returns `None` if the system has none to give, because of a limit for example. Each thread only saves time: the
/// caller then does the work itself.
pub(super) fn start_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work).ok()
}

/// Waits for a thread and returns its result. A panic of the thread continues in the caller.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
