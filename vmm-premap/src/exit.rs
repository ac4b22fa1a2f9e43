//! No driver calls while the process ends.
//!
//! A driver is torn down at the end of its process, and a thread inside a driver call then crashes. If the process ends while
//! such a thread runs (with a pool in a static variable, or with a leaked pool), the exit waits for the thread's current work,
//! and no other work begins. On Windows the system ends all other threads before libraries are notified.
#![allow(unsafe_code)]

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::shared_static;
#[cfg(unix)]
use crate::sync::{Instant, thread};
use gpu_vmm_core::extend::Process;
use std::sync::OnceLock;

#[cfg(unix)]
use std::time::Duration;

/// The longest time that the end of the process waits for a driver call.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(2);

shared_static! {
    static GATE: Gate = Gate { state: AtomicUsize::new(0) };
}
static WATCHED: OnceLock<Process> = OnceLock::new();

/// Registers the wait at the end of the process. The drivers are open by now. Exit handlers run in reverse order of registration,
/// so the drivers' own run after this one.
pub(crate) fn watch() {
    WATCHED.get_or_init(|| {
        // SAFETY: the handler uses only atomics that are never dropped. If it cannot be registered (out of memory), the process
        // ends as without it.
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
    // In a forked child the parent's work does not run.
    if WATCHED.get().is_some_and(|process| process.is_this()) {
        GATE.close(PATIENCE);
    }
}

/// Does work that may call a driver, unless the process is about to end.
pub(crate) fn unless_exiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    GATE.pass(work)
}

/// Returns true while work is running.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) fn is_working() -> bool {
    GATE.state.load(Ordering::Relaxed) >= ONE
}

/// Lets work begin until it is closed.
#[derive(Debug)]
struct Gate {
    /// [`CLOSED`], plus [`ONE`] for each piece of running work. Because it is one number, work that begins while the gate is
    /// being closed is either waited for or sees the gate closed.
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

    /// Lets no more work begin, and waits up to `patience` for the work that runs.
    #[cfg(unix)]
    fn close(&self, patience: Duration) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        let start = Instant::now();
        while self.state.load(Ordering::Acquire) > CLOSED && start.elapsed() < patience {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Running work; it is also counted down if it panics.
struct Passing<'a>(&'a Gate);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(ONE, Ordering::Release);
    }
}

#[cfg(all(test, unix, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A process whose driver call hangs must end all the same.
    #[test]
    fn hanging_work_is_waited_for_briefly() {
        let gate = Gate { state: AtomicUsize::new(0) };
        assert_eq!(
            gate.pass(|| gate.close(Duration::from_millis(1))),
            Some(()),
            "it waits inside of the work"
        );
        assert_eq!(gate.pass(|| ()), None);
    }

    #[test]
    fn work_that_panics_is_over() {
        let gate = Gate { state: AtomicUsize::new(0) };
        let panics = || gate.pass(|| std::panic::resume_unwind(Box::new("in the work")));
        let panicked: std::thread::Result<Option<()>> =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
        assert_eq!(gate.state.load(Ordering::Relaxed), 0, "work counts as running");
        gate.close(Duration::ZERO);
        assert_eq!(gate.state.load(Ordering::Relaxed), CLOSED);
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)] // tests
mod models {
    use super::*;
    use crate::sync::models::explore;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    /// A driver that is torn down when the gate is closed.
    struct Driver {
        gate: Gate,
        calls: UnsafeCell<u32>,
    }

    // SAFETY: loom checks that no two threads use the cell at once, and fails the test otherwise.
    unsafe impl Sync for Driver {}

    impl Driver {
        fn call(&self) {
            // SAFETY: as above.
            self.calls.with_mut(|calls| unsafe { *calls += 1 });
        }
    }

    #[test]
    fn closed_gate_admits_no_work() {
        explore("closed_gate_admits_no_work", 4, || {
            let gate = Gate { state: AtomicUsize::new(0) };
            let driver = Arc::new(Driver { gate, calls: UnsafeCell::new(0) });
            let at_work = Arc::clone(&driver);
            let works = loom::thread::spawn(move || {
                (0..2).filter(|_| at_work.gate.pass(|| at_work.call()).is_some()).count()
            });
            driver.gate.close(Duration::MAX);
            // The driver is torn down.
            driver.call();
            assert!(driver.gate.pass(|| ()).is_none());
            assert!(works.join().unwrap() <= 2);
        });
    }
}
