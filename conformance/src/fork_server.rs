//! Processes in which no driver was ever opened, whatever the process that requests them has done.
//!
//! No driver works in a forked child of a process that has it open. So at the very start, before any driver is loaded and
//! before a second thread exists, the suite forks a server process that only forks. Code that needs a clean process requests
//! it from this server. No program is executed anew, so this works even if the executable file cannot be found again.
//!
//! Each requested process has a parent of its own, the watcher. The watcher kills the process on request, or when the
//! requesting process has ended. It waits for the process and reports how it ended.
#![allow(unsafe_code)] // fork, and the calls that go with it

mod child;
#[cfg(test)]
mod tests;

pub(crate) use child::{Child, Ended};

use crate::peer::{self, Peer};
use gpu_vmm_testkit::raw::Missing;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A request for a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Opens a target and reports its environment.
    Look { target: String },
    /// Runs items of a target one after the other and reports each result.
    Work { target: String, device: u32, items: Vec<usize> },
    /// Runs the part of a case that belongs to the second process.
    Child { target: String, case: String, device: u32 },
}

/// An upper limit for the length of a request.
const MAX_BYTES: usize = 64 << 10;

/// How long a fork may take.
const FORK_PATIENCE: Duration = Duration::from_secs(20);

/// Exit status of a child that panicked, as for any Rust program.
const PANICKED: i32 = 101;

/// Exit status of a child that cannot run its part here; it prints the reason last.
const SKIPPED: i32 = 77;

/// The connection to the process that forks.
#[derive(Debug)]
pub(crate) struct ForkServer {
    line: OwnedFd,
}

impl ForkServer {
    /// Forks the server. Each requested process runs `serve` and ends.
    ///
    /// # Safety
    ///
    /// This process must have one thread and must have opened no driver.
    pub(crate) unsafe fn start(serve: impl FnOnce(Request, Peer, Arc<Self>)) -> io::Result<Arc<Self>> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let server = Arc::new(Self { line: ours });
        let parent = rustix::process::getpid();
        // SAFETY: there is one thread, so the child may do everything that this process may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                end_with(parent);
                // Requested processes may request more processes: they get this end as well.
                be_server(theirs, server, serve);
                // SAFETY: ends the child without the parent's exit handlers and buffers.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(server),
        }
    }

    /// Requests a process.
    pub(crate) fn spawn(&self, request: &Request) -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let (mut watcher, asker) = UnixStream::pair()?;
        let output = rustix::fs::memfd_create("output of a case", rustix::fs::MemfdFlags::CLOEXEC)?;
        let text = serde_json::to_vec(request)?;
        if text.len() > MAX_BYTES {
            return Err(io::Error::other(format!(
                "request of {} bytes exceeds the limit of {MAX_BYTES} bytes",
                text.len()
            )));
        }
        peer::send_with(self.line.as_fd(), &text, &[theirs.as_fd(), asker.as_fd(), output.as_fd()])?;
        drop((theirs, asker));
        watcher.set_read_timeout(Some(FORK_PATIENCE))?;
        match receive_number(&mut watcher)? {
            0 => Child::new(ours, watcher, output),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Receives a number from the watcher: first the error of the fork or 0, then the exit status.
fn receive_number(watcher: &mut UnixStream) -> io::Result<i32> {
    let mut number = [0; 4];
    watcher.read_exact(&mut number)?;
    Ok(i32::from_le_bytes(number))
}

/// Makes the kernel kill this process when the process that forked it ends.
fn end_with(parent: Pid) {
    // If this call fails, a process outlives a parent that is killed. Nothing else depends on it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        // SAFETY: the parent is gone already.
        unsafe { libc::_exit(0) }
    }
}

/// Forks for each request. This process holds both ends of the connection, so the parent's death signal alone ends it.
fn be_server(line: OwnedFd, server: Arc<ForkServer>, serve: impl FnOnce(Request, Peer, Arc<ForkServer>)) {
    // No process waits for watchers.
    // SAFETY: sets no handler. The system only discards ended children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let own = rustix::process::getpid();
    let mut bytes = vec![0; MAX_BYTES];
    loop {
        let Ok((length, fds)) = peer::receive_with(line.as_fd(), &mut bytes) else { return };
        let (Ok(request), Ok([socket, asker, output])) =
            (serde_json::from_slice(&bytes[..length]), <[OwnedFd; 3]>::try_from(fds))
        else {
            return;
        };
        // SAFETY: this process has one thread, so its children may do whatever it may.
        match unsafe { libc::fork() } {
            0 => {
                end_with(own);
                // A request made after the server has ended fails with an error instead of waiting.
                drop(line);
                return watch(asker.into(), || run(request, socket, output, server, serve));
            }
            // If the fork failed, closing the socket reports it: the requesting process reads no number.
            _ => drop((socket, asker, output)),
        }
    }
}

/// Forks once more, and watches that process.
fn watch(mut asker: UnixStream, run: impl FnOnce()) {
    // SAFETY: sets no handler. This process can wait for its children again.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let own = rustix::process::getpid();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => {
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
            let _ = asker.write_all(&error.to_le_bytes());
        }
        0 => {
            end_with(own);
            drop(asker);
            run();
        }
        pid => {
            // Closes the ends that belong to the child.
            drop(run);
            // The requesting process may have ended; then no process reads the result.
            let _ = asker.write_all(&0_i32.to_le_bytes());
            let status = wait_or_kill(pid, &asker);
            let _ = asker.write_all(&status.to_le_bytes());
        }
    }
}

/// Waits for a child of this process, and kills it as soon as the requesting process closes its end.
fn wait_or_kill(pid: i32, asker: &UnixStream) -> i32 {
    // After `waitpid`, the system may assign the child's process number to another process.
    let gone = Mutex::new(false);
    let lock = || gone.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut asker = asker;
            let _ = asker.read(&mut [0]);
            if !*lock() {
                let _ = Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            }
        });
        let mut status = 0;
        // SAFETY: zero bytes are a valid structure of numbers, which the system fills. `WNOWAIT` leaves this process's own
        // child to be waited for below.
        unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            while libc::waitid(libc::P_PID, pid as u32, &raw mut ended, libc::WEXITED | libc::WNOWAIT) != 0
                && Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::INTR)
            {}
        }
        let mut gone = lock();
        // SAFETY: as above. The child has ended, so this call does not block.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        *gone = true;
        drop(gone);
        // Ends the thread's read.
        let _ = asker.shutdown(std::net::Shutdown::Read);
        status
    })
}

/// Serves the request, with its output in a file.
fn run(
    request: Request,
    socket: OwnedFd,
    output: OwnedFd,
    server: Arc<ForkServer>,
    serve: impl FnOnce(Request, Peer, Arc<ForkServer>),
) {
    for stream in [1, 2] {
        // SAFETY: both descriptors belong to this process, and nothing uses what they refer to.
        unsafe { libc::dup2(output.as_raw_fd(), stream) };
    }
    let served = catch_unwind(AssertUnwindSafe(|| {
        let peer = Peer::new(UnixStream::from(socket)).expect("a socket");
        serve(request, peer, server);
    }));
    let status = match served.map_err(|panic| panic.downcast::<Missing>()) {
        Ok(()) => 0,
        Err(Ok(missing)) => {
            let _ = io::stderr().write_all(missing.0.as_bytes());
            SKIPPED
        }
        Err(Err(_)) => PANICKED,
    };
    let _ = io::stdout().flush();
    // SAFETY: ends the process without the exit handlers registered before the fork. Drivers need none.
    unsafe { libc::_exit(status) }
}
