//! What programs have: the standard library's, and spin's lock.

pub use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};
pub use std::time::Instant;

use std::thread::JoinHandle;
use std::time::Duration;

/// A lock of one atomic operation, for what is held for some nanoseconds.
pub type SpinMutex<T> = spin::mutex::SpinMutex<T, spin::relax::Yield>;
/// A locked [`SpinMutex`].
pub type SpinMutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

/// Threads.
pub mod thread {
    pub use std::thread::sleep;
    pub use std::thread::{Builder, JoinHandle, available_parallelism, current};
}

/// Declares a static variable whose value has atomics or locks.
#[macro_export]
macro_rules! shared_static {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $(#[$attribute])* static $name: $kind = $value;
    };
}

/// Declares a variable of which each thread has its own.
#[macro_export]
macro_rules! per_thread {
    (static $name:ident: $kind:ty = $value:expr;) => {
        std::thread_local! { static $name: $kind = const { $value }; }
    };
}

/// What one thread sleeps on until another wakes it: the system's own parking, which each thread has.
#[derive(Debug, Default)]
pub struct Bell;

impl Bell {
    /// One that has not rung.
    pub const fn new() -> Self {
        Self
    }

    /// Sleeps until the bell rings, or has rung since this thread last slept. It may wake for no reason.
    pub fn wait(&self) {
        std::thread::park();
    }

    /// As [`Bell::wait`], for no longer than `time`.
    pub fn wait_for(&self, time: Duration) {
        std::thread::park_timeout(time);
    }

    /// Wakes `sleeper`, the thread that sleeps here.
    pub fn ring(&self, sleeper: &JoinHandle<()>) {
        sleeper.thread().unpark();
    }
}
