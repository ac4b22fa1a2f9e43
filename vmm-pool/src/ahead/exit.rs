//! No driver is called while the process ends.
//!
//! A driver takes itself apart at the end of its process, and a thread that is inside of it then crashes. So where the
//! process ends with such a thread (a pool in a static variable, or one that was forgotten), its work is let finish
//! first, and no other is begun. On Windows the system has ended all other threads before libraries hear of it.
#![allow(unsafe_code)]

use gpu_vmm_core::Process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(unix)]
use std::time::{Duration, Instant};

/// How long the end of the process waits for a driver that does not answer.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(2);

static EXITING: AtomicBool = AtomicBool::new(false);
static WORKING: AtomicUsize = AtomicUsize::new(0);
static WATCHED: OnceLock<Process> = OnceLock::new();

/// Sees to it that the end of the process waits. The drivers are open by now: what they do at the end comes after this,
/// since what was registered last is called first.
pub(super) fn watch() {
    WATCHED.get_or_init(|| {
        // SAFETY: the handler touches nothing but atomics that are never gone. Where it cannot be registered (out of
        // memory), the process ends as it would without.
        #[cfg(unix)]
        unsafe {
            libc::atexit(finish);
        }
        Process::current()
    });
}

#[cfg(unix)]
extern "C" fn finish() {
    // What was at work when a process was forked is not there in the child.
    if !WATCHED.get().is_some_and(|process| process.is_this()) {
        return;
    }
    EXITING.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while WORKING.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Does work that may call a driver; none where the process is about to end.
pub(super) fn unless_exiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _working = Working::begin();
    (!EXITING.load(Ordering::SeqCst)).then(work)
}

/// Counted also where the work panics.
struct Working;

impl Working {
    fn begin() -> Self {
        WORKING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, Ordering::SeqCst);
    }
}
