//! Child processes for tests.
#![allow(unsafe_code)] // fork, setresuid
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

/// How long a child may take, which does next to nothing.
const SECONDS: u32 = 60;

/// Runs a test in a process of its own. Children that other tests fork have copies of what is open here, for as long as
/// they run; they have none of what is opened there.
pub fn alone(test: impl FnOnce()) {
    Child::fork(test).finish();
}

/// Who is root becomes another user, for good. For a child with one thread.
pub fn give_up_root() {
    if rustix::process::geteuid().is_root() {
        // SAFETY: the process has nothing that depends on its user.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    }
}

/// The user that nobody is.
pub const NOBODY: u32 = 65534;

/// A forked child. Killed and waited for when dropped.
#[derive(Debug)]
pub struct Child(libc::pid_t);

impl Child {
    /// A child that runs this and ends.
    ///
    /// Other threads of this process are not in the child: it calls gpu-vmm and the system, and the C library's heap,
    /// which a fork leaves whole.
    pub fn fork(body: impl FnOnce()) -> Self {
        // SAFETY: see above.
        match unsafe { libc::fork() } {
            -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: a child that waits without end is ended by this.
                unsafe { libc::alarm(SECONDS) };
                // What a test says is kept by the parent, which does not hear of this.
                set_hook(Box::new(|why| {
                    let _ = rustix::io::write(std::io::stderr(), format!("child: {why}\n").as_bytes());
                }));
                let failed = catch_unwind(AssertUnwindSafe(body)).is_err();
                // SAFETY: it ends without the parent's exit handlers.
                unsafe { libc::_exit(failed.into()) }
            }
            pid => Self(pid),
        }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Waits until it has done all that it was to do.
    pub fn finish(self) {
        let status = self.wait();
        std::mem::forget(self);
        assert_eq!(status, 0, "a child failed; what it said went to the standard error");
    }

    fn wait(&self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the child is this process's own, and was not waited for.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child is this process's own, and its number is its as long as it was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}
