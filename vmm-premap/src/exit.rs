//! No driver is called while the process ends.
//!
//! A driver takes itself apart at the end of its process, and a thread that is inside of it then crashes. So where the
//! process ends with such a thread (a pool in a static variable, or one that was forgotten), its work is let finish
//! first, and no other is begun. On Windows the system has ended all other threads before libraries hear of it.
#![allow(unsafe_code)]

use gpu_vmm_core::extend::Process;
use gpu_vmm_sync::atomic::{AtomicUsize, Ordering};
use gpu_vmm_sync::shared_static;
#[cfg(unix)]
use gpu_vmm_sync::{Instant, thread};
use std::sync::OnceLock;

#[cfg(unix)]
use std::time::Duration;

/// How long the end of the process waits for a driver that does not answer.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(2);

shared_static! {
    static GATE: Gate = Gate { state: AtomicUsize::new(0) };
}
static WATCHED: OnceLock<Process> = OnceLock::new();

/// Sees to it that the end of the process waits. The drivers are open by now: what they do at the end comes after this,
/// since what was registered last is called first.
pub(crate) fn watch() {
    WATCHED.get_or_init(|| {
        // SAFETY: the handler touches nothing but atomics that are never gone. Where it cannot be registered (out of
        // memory), the process ends as it would without.
        #[cfg(all(unix, not(any(loom, shuttle))))]
        unsafe {
            libc::atexit(finish);
        }
        Process::current()
    });
}

#[cfg(unix)]
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
extern "C" fn finish() {
    // What was at work when a process was forked is not there in the child.
    if WATCHED.get().is_some_and(|process| process.is_this()) {
        GATE.close(PATIENCE);
    }
}

/// Does work that may call a driver; none where the process is about to end.
pub(crate) fn unless_exiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    GATE.pass(work)
}

/// Lets work pass until it is closed.
#[derive(Debug)]
struct Gate {
    /// [`CLOSED`], and how often [`ONE`] for what is at work: one number, so that work that begins while the gate is being
    /// closed is either waited for or finds it closed.
    state: AtomicUsize,
}

const CLOSED: usize = 1;
const ONE: usize = 2;

impl Gate {
    /// Does work, unless the gate is closed.
    fn pass<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let before = self.state.fetch_add(ONE, Ordering::Acquire);
        let _passing = Passing(self);
        (before & CLOSED == 0).then(work)
    }

    /// Lets no more work begin, and waits for what has begun, for as long as `patience` lasts.
    #[cfg(unix)]
    fn close(&self, patience: Duration) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        let start = Instant::now();
        while self.state.load(Ordering::Acquire) > CLOSED && start.elapsed() < patience {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Counted also where the work panics.
struct Passing<'a>(&'a Gate);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(ONE, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)] // tests
mod models {
    use super::*;
    use gpu_vmm_sync::models::explore;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    /// The driver, which takes itself apart when the gate is closed.
    struct Driver {
        gate: Gate,
        calls: UnsafeCell<u32>,
    }

    // SAFETY: loom sees to it that no two threads use the cell at once, and fails the test otherwise.
    unsafe impl Sync for Driver {}

    impl Driver {
        fn call(&self) {
            // SAFETY: as above.
            self.calls.with_mut(|calls| unsafe { *calls += 1 });
        }
    }

    #[test]
    fn no_work_is_begun_or_going_on_behind_a_closed_gate() {
        explore("no_work_is_begun_or_going_on_behind_a_closed_gate", 4, || {
            let gate = Gate { state: AtomicUsize::new(0) };
            let driver = Arc::new(Driver { gate, calls: UnsafeCell::new(0) });
            let at_work = Arc::clone(&driver);
            let works = loom::thread::spawn(move || {
                (0..2).filter(|_| at_work.gate.pass(|| at_work.call()).is_some()).count()
            });
            driver.gate.close(Duration::MAX);
            // The driver is taken apart.
            driver.call();
            assert!(driver.gate.pass(|| ()).is_none());
            assert!(works.join().unwrap() <= 2);
        });
    }
}
