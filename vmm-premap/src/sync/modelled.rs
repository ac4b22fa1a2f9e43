//! The types of loom and shuttle: locks, atomics and threads at which the schedule can switch threads, and a clock that depends
//! only on the schedule.

#[cfg(loom)]
use loom as model;
#[cfg(shuttle)]
use shuttle as model;

pub use model::sync::Arc as CountedArc;
pub use model::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};

use std::cell::Cell;
use std::ops::Add;
use std::sync::PoisonError;
use std::time::Duration;
use thread::JoinHandle;

/// Threads.
pub mod thread {
    pub use super::model::thread::{Builder, JoinHandle, current};
    use std::num::NonZero;

    /// Returns 2 on every machine, so that a schedule can be replayed on another one.
    pub fn available_parallelism() -> std::io::Result<NonZero<usize>> {
        Ok(const { NonZero::new(2).unwrap() })
    }

    /// Yields to other threads and ignores the duration.
    pub fn sleep(_: std::time::Duration) {
        super::model::thread::yield_now();
    }
}

/// Declares a static variable whose value contains atomics or locks. Every schedule begins with a new value.
macro_rules! shared_static {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $crate::sync::lazy_static! { $(#[$attribute])* static ref $name: $kind = $value; }
    };
}

/// Declares a variable of which each thread of a model has its own copy.
macro_rules! per_thread {
    (static $name:ident: $kind:ty = $value:expr;) => {
        $crate::sync::thread_local! { static $name: $kind = $value; }
    };
}
pub(crate) use model::{lazy_static, thread_local};

/// A wake-up signal for one thread. It does not use the model's thread parking, because loom confuses a thread that waits for
/// a lock with one that is parked.
#[derive(Debug, Default)]
pub struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    /// Creates a bell that has not rung.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sleeps until the bell rings. Returns at once if it has rung since this thread last slept.
    pub fn wait(&self) {
        let mut has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*has_rung {
            has_rung = self.rings.wait(has_rung).unwrap_or_else(PoisonError::into_inner);
        }
        *has_rung = false;
    }

    /// Clears the bell and yields, as if the time had passed at once. The schedule decides what other threads do meanwhile.
    pub fn wait_for(&self, _: Duration) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
        model::thread::yield_now();
    }

    /// Wakes the thread that waits for this bell.
    pub fn ring(&self, _: &JoinHandle<()>) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_one();
    }
}

/// A time of a clock that advances by [`TICK`] at each reading, so that the same schedule reads the same times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

/// The step of the clock. It exceeds half of the idle time after which the premap thread sleeps, so that the thread naps only
/// once before.
const TICK: Duration = Duration::from_millis(600);

impl Instant {
    /// Advances the clock and returns the new time.
    pub fn now() -> Self {
        // All threads of a model are coroutines of one thread of the operating system, so they share one clock.
        std::thread_local! {
            static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        }
        NOW.with(|now| {
            now.set(now.get() + TICK);
            Self(now.get())
        })
    }

    /// Returns the time since this one.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Returns this time plus a duration, or `None` if it cannot be represented.
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

pub(crate) use {per_thread, shared_static};
