//! What loom and shuttle have: locks, atomics and threads that give other threads a turn, and a time that a schedule alone
//! decides.

#[cfg(loom)]
use loom as model;
#[cfg(shuttle)]
use shuttle as model;

pub use model::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};

use model::sync::Condvar;
use std::cell::Cell;
use std::ops::{Add, Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;
use thread::JoinHandle;

/// Threads.
pub mod thread {
    pub use super::model::thread::{Builder, JoinHandle, current};
    use std::num::NonZero;

    /// The same on every machine, so that a schedule can be replayed on another.
    pub fn available_parallelism() -> std::io::Result<NonZero<usize>> {
        Ok(const { NonZero::new(2).unwrap() })
    }

    /// Lets the others go on first.
    pub fn sleep(_: std::time::Duration) {
        super::model::thread::yield_now();
    }
}

/// Declares a static variable whose value has atomics or locks. Every schedule begins with a new one.
#[macro_export]
macro_rules! shared_static {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $crate::lazy_static! { $(#[$attribute])* static ref $name: $kind = $value; }
    };
}

/// Declares a variable of which each thread of a model has its own.
#[macro_export]
macro_rules! per_thread {
    (static $name:ident: $kind:ty = $value:expr;) => {
        $crate::thread_local! { static $name: $kind = $value; }
    };
}
pub use model::{lazy_static, thread_local};

/// A lock with the interface of spin's.
#[derive(Debug)]
pub struct SpinMutex<T>(Mutex<T>);

/// A locked [`SpinMutex`].
#[derive(Debug)]
pub struct SpinMutexGuard<'a, T>(MutexGuard<'a, T>);

impl<T> SpinMutex<T> {
    /// A new lock.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> SpinMutexGuard<'_, T> {
        SpinMutexGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Deref for SpinMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for SpinMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// What one thread sleeps on until another wakes it. Not the model's own parking: loom takes a thread that waits for a
/// lock for one that is parked.
#[derive(Debug, Default)]
pub struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    /// One that has not rung.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sleeps until the bell rings, or has rung since this thread last slept.
    pub fn wait(&self) {
        let mut has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*has_rung {
            has_rung = self.rings.wait(has_rung).unwrap_or_else(PoisonError::into_inner);
        }
        *has_rung = false;
    }

    /// As if the time were over at once: how long others take meanwhile is the schedule's to decide.
    pub fn wait_for(&self, _: Duration) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
        model::thread::yield_now();
    }

    /// Wakes the thread that sleeps here.
    pub fn ring(&self, _: &JoinHandle<()>) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_one();
    }
}

/// A moment of a clock that goes on by [`TICK`] whenever it is read, so that the same schedule reads the same times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

/// More than half of the time after which the thread that maps ahead sleeps: it naps once.
const TICK: Duration = Duration::from_millis(600);

impl Instant {
    /// The time now.
    pub fn now() -> Self {
        // All threads of a model are coroutines of one thread of the system, so that they have one clock.
        std::thread_local! {
            static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        }
        NOW.with(|now| {
            now.set(now.get() + TICK);
            Self(now.get())
        })
    }

    /// The time since then.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// The moment after a time, unless it cannot be represented.
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
