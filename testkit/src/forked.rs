//! Child processes for tests.
#![allow(unsafe_code)] // fork, setresuid
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use gpu_vmm_core::{Detail, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The time limit of a child, which has little to do.
const SECONDS: u32 = 60;

/// Runs a test in a process of its own. Children that other tests fork inherit the descriptors of this process, but not
/// those that are opened in the new one.
pub fn alone(test: impl FnOnce()) {
    Child::fork(test).finish();
}

/// Returns true if a call has failed because its process was forked.
pub fn is_forked<T>(answer: Result<T>) -> bool {
    answer.is_err_and(|error| matches!(error.detail(), Detail::Forked))
}

/// Changes the user of a root process to [`UNPRIVILEGED`], permanently. Must be called in a child with one thread.
pub fn give_up_root() {
    if rustix::process::geteuid().is_root() {
        // SAFETY: the process has no state that depends on its user.
        assert_eq!(unsafe { libc::setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED) }, 0);
    }
}

/// The ID of a user without privileges.
pub const UNPRIVILEGED: u32 = 65534;

/// A forked child. Dropping it kills the process and waits for it.
#[derive(Debug)]
pub struct Child(libc::pid_t);

impl Child {
    /// Forks a child that runs `body` and exits.
    ///
    /// The child has no other threads of this process. It may call gpu-vmm, the system, and the C library's heap, which
    /// a fork leaves consistent.
    pub fn fork(body: impl FnOnce()) -> Self {
        panic_in_children();
        // SAFETY: see above.
        match unsafe { libc::fork() } {
            -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: the call only sets a timer, which ends a child that hangs.
                unsafe { libc::alarm(SECONDS) };
                IS_CHILD.store(true, Ordering::Relaxed);
                let failed = catch_unwind(AssertUnwindSafe(body)).is_err();
                // SAFETY: the process exits without running the parent's exit handlers.
                unsafe { libc::_exit(failed.into()) }
            }
            pid => Self(pid),
        }
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Waits until the child has finished, and panics if it failed.
    pub fn finish(self) {
        let status = self.wait();
        std::mem::forget(self);
        assert_eq!(status, 0, "a child failed; its messages are on standard error");
    }

    fn wait(&self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the child belongs to this process and has not been waited for.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child belongs to this process, and its ID is valid until it has been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

/// True in forked children.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Lets children write their panics to the standard error. The test harness captures the output of the parent only.
///
/// The hook is set in the parent: a thread that panics during the fork holds the lock of the hook, and in the child no thread
/// releases it.
fn panic_in_children() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let hook_of_parent = take_hook();
        set_hook(Box::new(move |why| {
            if IS_CHILD.load(Ordering::Relaxed) {
                let _ = rustix::io::write(std::io::stderr(), format!("child: {why}\n").as_bytes());
            } else {
                hook_of_parent(why);
            }
        }));
    });
}
