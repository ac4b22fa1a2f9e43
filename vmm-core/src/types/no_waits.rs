//! Locks under which a thread waits for nothing: a record for tests.

#[cfg(feature = "testkit")]
use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(feature = "testkit")]
thread_local! {
    /// The number of such locks that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };

    /// The number of those among them under which it maps nothing either.
    static STRICT: Cell<u32> = const { Cell::new(0) };
}

/// A note that this thread holds a lock under which it waits for no work and calls no code of the program. For authors of
/// extensions, who keep it as long as the lock. Builds without the feature `testkit` record nothing.
#[derive(Debug)]
#[must_use = "the note ends when it is dropped"]
pub struct NoWaits {
    /// True if nothing is mapped either.
    #[cfg_attr(not(feature = "testkit"), allow(dead_code))]
    is_strict: bool,
    thread: PhantomData<*const ()>,
}

impl NoWaits {
    /// Begins the note. It ends on the same thread.
    #[inline]
    pub fn begin() -> Self {
        Self::new(false)
    }

    /// Begins the note for a lock under which the thread neither creates nor maps memory: these calls take long, and HIP waits in some.
    #[inline]
    pub fn and_no_mapping() -> Self {
        Self::new(true)
    }

    #[inline]
    fn new(is_strict: bool) -> Self {
        #[cfg(feature = "testkit")]
        {
            HELD.set(HELD.get() + 1);
            STRICT.set(STRICT.get() + u32::from(is_strict));
        }
        Self { is_strict, thread: PhantomData }
    }
}

#[cfg(feature = "testkit")]
impl Drop for NoWaits {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        STRICT.set(STRICT.get() - u32::from(self.is_strict));
    }
}

/// Panics if this thread holds a lock under which it must not wait or call code of the program, of which [`NoWaits`] has a note. The
/// testing layers call this in every call that may wait, and tests call it in their observers and callbacks.
#[cfg(feature = "testkit")]
#[track_caller]
pub fn check_may_wait(call: &str) {
    assert_eq!(HELD.get(), 0, "{call} is called under a lock under which nothing may wait");
}

/// Panics if this thread holds a lock under which it must not create or map memory, of which [`NoWaits`] has a note.
#[cfg(feature = "testkit")]
#[track_caller]
pub fn check_may_map(call: &str) {
    assert_eq!(STRICT.get(), 0, "{call} is called under a lock under which nothing is mapped");
}
