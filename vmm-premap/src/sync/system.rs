//! The types of a normal build: the standard library's.

pub use std::sync::Arc as CountedArc;
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};
pub use std::time::Instant;

use std::thread::JoinHandle;
use std::time::Duration;

/// Threads.
pub mod thread {
    pub use std::thread::sleep;
    pub use std::thread::{Builder, JoinHandle, available_parallelism, current};
}

/// Declares a static variable whose value contains atomics or locks.
macro_rules! shared_static {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $(#[$attribute])* static $name: $kind = $value;
    };
}

/// Declares a thread-local variable.
macro_rules! per_thread {
    (static $name:ident: $kind:ty = $value:expr;) => {
        std::thread_local! { static $name: $kind = const { $value }; }
    };
}

/// A wake-up signal for one thread, implemented by the standard library's thread parking.
#[derive(Debug, Default)]
pub struct Bell;

impl Bell {
    /// Creates a bell that has not rung.
    pub const fn new() -> Self {
        Self
    }

    /// Sleeps until the bell rings. Returns at once if it has rung since this thread last slept. May also return spuriously.
    pub fn wait(&self) {
        std::thread::park();
    }

    /// Sleeps like [`Bell::wait`], but for at most `time`.
    pub fn wait_for(&self, time: Duration) {
        std::thread::park_timeout(time);
    }

    /// Wakes `sleeper`, the thread that waits for this bell.
    pub fn ring(&self, sleeper: &JoinHandle<()>) {
        sleeper.thread().unpark();
    }
}

pub(crate) use {per_thread, shared_static};
