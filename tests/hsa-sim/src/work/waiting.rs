//! Waiting. One condition variable stands for every signal: a change of any wakes all who wait.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

static CHANGES: Mutex<u64> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// A program may write to a signal's memory without telling, so one looks again after this.
const PATIENCE: Duration = Duration::from_millis(2);

/// The time, in nanoseconds since the machine was started.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Says that something has changed.
pub(crate) fn wake() {
    *CHANGES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    CHANGED.notify_all();
}

/// Sleeps until `ready` gives something.
pub(crate) fn wait_until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    loop {
        let seen = *CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = ready() {
            return result;
        }
        let changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        if *changes == seen {
            drop(CHANGED.wait_timeout(changes, PATIENCE));
        }
    }
}
