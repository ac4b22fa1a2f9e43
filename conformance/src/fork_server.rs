//! Processes in which drivers have never been touched, whatever the process that asks for them has done.
//!
//! No driver works in a forked child of a process that has it open. So at the very start, before any driver is loaded and
//! before there is a second thread, one process is forked off that does nothing but fork: whoever needs a clean process
//! asks it for one. A program is not executed anew, so this works where its file cannot be found again.
//!
//! Each process that is asked for has a parent of its own, the watcher, which ends it when it is told to or when nobody
//! is there any more who asked, waits for it, and tells how it ended.
#![allow(unsafe_code)] // fork, and what belongs to it

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

/// What a process is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open a target, and tell what is there.
    Look { target: String },
    /// Run items of a target one after the other, and tell of each.
    Work { target: String, device: u32, items: Vec<usize> },
    /// Run the other side of a case.
    Child { target: String, case: String, device: u32 },
}

/// Longer than any request is.
const MAX_BYTES: usize = 64 << 10;

/// How long a fork may take.
const FORK_PATIENCE: Duration = Duration::from_secs(20);

/// What a panic in a child becomes, as for any Rust program.
const PANICKED: i32 = 101;

/// What a child ends with that cannot do its part here; its last words are the reason.
const SKIPPED: i32 = 77;

/// The line to the process that forks.
#[derive(Debug)]
pub(crate) struct ForkServer {
    line: OwnedFd,
}

impl ForkServer {
    /// Forks the server off. Each later process runs `serve` and ends.
    ///
    /// # Safety
    ///
    /// This process has one thread, and has opened no driver.
    pub(crate) unsafe fn start(serve: impl FnOnce(Request, Peer, Arc<Self>)) -> io::Result<Arc<Self>> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let server = Arc::new(Self { line: ours });
        let parent = rustix::process::getpid();
        // SAFETY: there is one thread, so the child may do whatever this process may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                end_with(parent);
                // Processes that have been asked for may ask for more: they get this end as well.
                be_server(theirs, server, serve);
                // SAFETY: nothing of the parent's is to be run or flushed here.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(server),
        }
    }

    /// Asks for a process.
    pub(crate) fn spawn(&self, request: &Request) -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let (mut watcher, asker) = UnixStream::pair()?;
        let output = rustix::fs::memfd_create("output of a case", rustix::fs::MemfdFlags::CLOEXEC)?;
        let text = serde_json::to_vec(request)?;
        if text.len() > MAX_BYTES {
            return Err(io::Error::other(format!("a request of more than {MAX_BYTES} bytes")));
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

/// A number of the watcher's: the error of the fork or 0, and then the status.
fn receive_number(watcher: &mut UnixStream) -> io::Result<i32> {
    let mut number = [0; 4];
    watcher.read_exact(&mut number)?;
    Ok(i32::from_le_bytes(number))
}

/// Sees to it that this process does not outlive the one that has forked it.
fn end_with(parent: Pid) {
    // Without it a process would be left over where its parent is killed; that is all.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        // SAFETY: the parent is gone already.
        unsafe { libc::_exit(0) }
    }
}

/// Forks for each request. It has both ends of the line, so it is the end of the first process that ends it.
fn be_server(line: OwnedFd, server: Arc<ForkServer>, serve: impl FnOnce(Request, Peer, Arc<ForkServer>)) {
    // Nobody waits for watchers.
    // SAFETY: no handler is set, only that ended children vanish.
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
                // Whoever asks when the server is gone gets an error for it, and no silence.
                drop(line);
                return watch(asker.into(), || run(request, socket, output, server, serve));
            }
            // The line of a fork that failed ends without a number.
            _ => drop((socket, asker, output)),
        }
    }
}

/// Forks once more, and watches over that process.
fn watch(mut asker: UnixStream, run: impl FnOnce()) {
    // SAFETY: as in the server, children can be waited for again.
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
            // The ends that are the child's.
            drop(run);
            // Who asked may be gone; then nobody wants to know.
            let _ = asker.write_all(&0_i32.to_le_bytes());
            let status = wait_or_kill(pid, &asker);
            let _ = asker.write_all(&status.to_le_bytes());
        }
    }
}

/// Waits for a child of this process, and ends it as soon as the asker's side of the line ends.
fn wait_or_kill(pid: i32, asker: &UnixStream) -> i32 {
    // Once the child is waited for, its number can be another process's.
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
        // SAFETY: a structure of numbers, which the system fills; the child is this process's own, and stays to be waited
        // for.
        unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            while libc::waitid(libc::P_PID, pid as u32, &raw mut ended, libc::WEXITED | libc::WNOWAIT) != 0
                && Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::INTR)
            {}
        }
        let mut gone = lock();
        // SAFETY: as above; it has ended, so this does not wait.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        *gone = true;
        drop(gone);
        // The thread is done.
        let _ = asker.shutdown(std::net::Shutdown::Read);
        status
    })
}

/// Does what was asked, with its output in a file.
fn run(
    request: Request,
    socket: OwnedFd,
    output: OwnedFd,
    server: Arc<ForkServer>,
    serve: impl FnOnce(Request, Peer, Arc<ForkServer>),
) {
    for stream in [1, 2] {
        // SAFETY: both numbers are this process's own; what was there is not used here.
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
    // SAFETY: ends the process without exit handlers that were registered before the fork; drivers need none.
    unsafe { libc::_exit(status) }
}
