//! Whether a callback of C runs on this thread.

use std::cell::Cell;

thread_local! {
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// Returns true while a callback of C runs on this thread.
pub(crate) fn is_running() -> bool {
    RUNNING.get() > 0
}

/// Calls a callback of C.
pub(crate) fn running<T>(call: impl FnOnce() -> T) -> T {
    RUNNING.set(RUNNING.get() + 1);
    let answer = call();
    RUNNING.set(RUNNING.get() - 1);
    answer
}
