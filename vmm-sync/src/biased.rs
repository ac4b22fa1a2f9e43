//! A lock that costs one thread no atomic operation: the first one that locks it, for as long as hardly any other does.
//!
//! Its owner sets a flag, and then looks whether it still is the owner. Another thread takes the ownership away, makes every
//! running thread of the process pass a memory barrier, and then waits for the flag. The system's call for that is
//! membarrier(2), and takes some microseconds. So the lock is for what one thread does all the time and others do seldom. After
//! [`PATIENCE`] locks by others it has no owner any more, and every thread takes the spin lock inside.
//!
//! The owner's flag and its look at the ownership need no barrier between them but the compiler's: either the other thread's call
//! comes later than the flag, and the thread sees it, or the owner's look comes later than the call, and sees that the ownership is
//! gone.
#![allow(unsafe_code)] // gives the value to the thread that has locked

use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::barrier::{can_wait_for_all, heavy, light};
use crate::{SpinMutex, SpinMutexGuard, relax, this_thread};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The owner of a lock that no thread has locked yet.
const NONE: usize = usize::MAX;

/// The owner of a lock that many threads lock.
const ALL: usize = usize::MAX - 1;

/// The owner while another thread than the owner has locked.
const SUSPENDED: usize = usize::MAX - 2;

/// How many times other threads lock before a lock has no owner any more.
const PATIENCE: u32 = 64;

/// A spin lock that its first user locks without an atomic operation.
pub struct BiasedMutex<T> {
    owner: AtomicUsize,
    /// True while the owner has locked.
    inside: AtomicBool,
    /// Held by every other thread that has locked, and by the owner if it had to wait. The number of locks by others.
    others: SpinMutex<u32>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Send for BiasedMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// Creates a lock.
    pub fn new(value: T) -> Self {
        let owner = if can_wait_for_all() { NONE } else { ALL };
        Self {
            owner: AtomicUsize::new(owner),
            inside: AtomicBool::new(false),
            others: SpinMutex::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the value, spinning while another thread holds it. The first thread that calls this becomes the owner.
    ///
    /// # Panics
    ///
    /// If the owner has locked already. Any other thread that locks twice spins forever.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        if let Some(guard) = self.lock_as_owner() {
            return guard;
        }
        self.lock_without_owner()
    }

    #[inline(never)]
    fn lock_without_owner(&self) -> BiasedGuard<'_, T> {
        // It is final.
        if self.owner.load(Ordering::Relaxed) == ALL {
            return BiasedGuard::new(self, ALL, Some(self.others.lock()));
        }
        self.lock_as_other(false)
    }

    /// Locks the value as [`lock`](Self::lock) does, and leaves the ownership as it is: for calls that are rare, whatever thread
    /// makes them.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    pub fn lock_seldom(&self) -> BiasedGuard<'_, T> {
        self.lock_as_owner().unwrap_or_else(|| self.lock_as_other(true))
    }

    /// Locks the value if this thread is the owner, and no other has locked.
    #[inline]
    fn lock_as_owner(&self) -> Option<BiasedGuard<'_, T>> {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        light();
        // What another thread has changed before it gave the ownership back is visible then.
        if self.owner.load(Ordering::Acquire) == me {
            return Some(BiasedGuard::new(self, me, None));
        }
        self.inside.store(false, Ordering::Relaxed);
        None
    }

    #[cold]
    fn lock_as_other(&self, seldom: bool) -> BiasedGuard<'_, T> {
        let me = this_thread();
        let mut others = self.others.lock();
        // It changes under this lock alone.
        let owner = self.owner.load(Ordering::Relaxed);
        let next = match owner {
            NONE if !seldom => me,
            NONE | ALL => owner,
            owner if owner == me => {
                assert!(!self.inside.load(Ordering::Relaxed), "the thread has locked already");
                owner
            }
            owner => {
                *others += u32::from(!seldom);
                self.owner.store(SUSPENDED, Ordering::Relaxed);
                heavy();
                while self.inside.load(Ordering::Acquire) {
                    relax();
                }
                if *others > PATIENCE { ALL } else { owner }
            }
        };
        BiasedGuard::new(self, next, Some(others))
    }
}

impl<T> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedMutex").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The guard of a locked [`BiasedMutex`].
#[derive(Debug)]
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// The others' lock, unless this thread is the owner.
    others: Option<SpinMutexGuard<'a, u32>>,
    /// The owner after the lock.
    next: usize,
    /// The owner unlocks by its own flag, so that no other thread may.
    _stays: PhantomData<*const ()>,
}

impl<'a, T> BiasedGuard<'a, T> {
    #[inline]
    fn new(mutex: &'a BiasedMutex<T>, next: usize, others: Option<SpinMutexGuard<'a, u32>>) -> Self {
        Self { mutex, others, next, _stays: PhantomData }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.others.is_none() {
            return self.mutex.inside.store(false, Ordering::Release);
        }
        // The others' lock is released after this.
        self.mutex.owner.store(self.next, Ordering::Release);
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread has locked.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has locked, and the guard is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{BiasedMutex, PATIENCE};
    use std::thread;

    /// The lock excludes its owner and others, while there is an owner and when there is none any more.
    #[test]
    fn no_addition_is_lost() {
        for seldom in [false, true] {
            let (lock, rounds) = (BiasedMutex::new(0), if cfg!(miri) { 100 } else { 20_000 });
            let add = |times: u32, seldom: bool| {
                for _ in 0..times {
                    let mut value = if seldom { lock.lock_seldom() } else { lock.lock() };
                    let before = *value;
                    std::hint::black_box(&mut value);
                    *value = before + 1;
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| add(rounds * 10, false));
                scope.spawn(|| add(rounds, seldom));
                scope.spawn(|| add(rounds, seldom));
            });
            assert_eq!(*lock.lock(), rounds * 12);
        }
    }

    #[test]
    #[should_panic(expected = "locked already")]
    fn the_owner_does_not_lock_twice() {
        let lock = BiasedMutex::new(());
        if !super::can_wait_for_all() {
            panic!("without owners, it would spin: not locked already");
        }
        drop(lock.lock());
        let _first = lock.lock();
        drop(lock.lock());
    }

    #[test]
    fn the_first_thread_is_the_owner_until_others_lock_often() {
        let lock = BiasedMutex::new(());
        let by_other = |seldom: bool| {
            thread::scope(|scope| {
                scope.spawn(|| drop(if seldom { lock.lock_seldom() } else { lock.lock() }));
            });
        };
        // A thread that locks seldom owns nothing.
        by_other(true);
        drop(lock.lock());
        let is_owner = || lock.lock().others.is_none();
        if !super::can_wait_for_all() {
            assert!(!is_owner());
            return;
        }
        assert!(is_owner());
        for _ in 0..2 * PATIENCE {
            by_other(true);
        }
        for _ in 0..PATIENCE {
            by_other(false);
        }
        assert!(is_owner());
        by_other(false);
        assert!(!is_owner());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::BiasedMutex;
    use crate::models::{explore, spawn};
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    fn add(lock: &BiasedMutex<UnsafeCell<u32>>, seldom: bool) {
        let guard = if seldom { lock.lock_seldom() } else { lock.lock() };
        // Loom reports two threads that are here at once, and one that does not see what another has written.
        guard.with_mut(|value| unsafe { *value += 1 });
    }

    /// The owner and other threads exclude each other, and see each other's writes.
    #[test]
    fn one_thread_at_a_time_has_a_biased_lock() {
        for seldom in [false, true] {
            explore("one_thread_at_a_time_has_a_biased_lock", 3, move || {
                let lock = Arc::new(BiasedMutex::new(UnsafeCell::new(0)));
                add(&lock, false);
                let others = (0..2).map(|_| Arc::clone(&lock)).map(|lock| spawn(move || add(&lock, seldom)));
                let others: Vec<_> = others.collect();
                add(&lock, false);
                add(&lock, false);
                others.into_iter().for_each(|other| other.join().unwrap());
                lock.lock().with(|value| assert_eq!(unsafe { *value }, 5));
            });
        }
    }
}
