//! Waiting for signals. Each waiter names its signals, and a change of one wakes only its waiters: there are many threads,
//! most of them idle, and waking all of them for each change would cost many times the work itself.

use crate::abi::SignalHandle;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A program may write to a signal's memory without a call. So a waiter checks again after this time, and then whenever the
/// time has doubled.
const PATIENCE: Duration = Duration::from_millis(2);
const MAX_PATIENCE: Duration = Duration::from_millis(64);

struct Sleeper {
    thread: Thread,
    signals: Vec<SignalHandle>,
}

fn sleepers() -> MutexGuard<'static, Vec<Sleeper>> {
    static SLEEPERS: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time in nanoseconds since the machine was started.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Wakes the waiters of a changed signal. After other changes, the worker's thread is unparked.
pub(crate) fn wake(signal: SignalHandle) {
    for sleeper in sleepers().iter().filter(|sleeper| sleeper.signals.contains(&signal)) {
        sleeper.thread.unpark();
    }
}

/// Sleeps until `ready` returns a value. Calls it whenever one of the signals has changed or the thread was unparked, and at
/// the deadline, if there is one.
pub(crate) fn wait_until<T>(
    signals: impl Fn() -> Vec<SignalHandle>,
    end: Option<Instant>,
    mut ready: impl FnMut() -> Option<T>,
) -> T {
    if let Some(result) = ready() {
        return result;
    }
    let this = thread::current();
    let mut patience = PATIENCE;
    loop {
        // Registered before the check: a later change ends the sleep, or prevents it.
        let sleeper = Sleeper { thread: this.clone(), signals: signals() };
        sleepers().push(sleeper);
        let result = ready();
        if result.is_none() {
            let left = end.map_or(patience, |end| end.saturating_duration_since(Instant::now()));
            thread::park_timeout(patience.min(left));
            patience = (patience * 2).min(MAX_PATIENCE);
        }
        sleepers().retain(|sleeper| sleeper.thread.id() != this.id());
        if let Some(result) = result {
            return result;
        }
    }
}
