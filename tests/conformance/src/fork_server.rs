//! Processes in which drivers have never been touched, whatever the process that asks for them has done.
//!
//! No driver works in a forked child of a process that has it open. So at the very start, before any driver is loaded and
//! before there is a second thread, one process is forked off that does nothing but fork: whoever needs a clean process
//! asks it for one. A program is not executed anew, so this works where its file cannot be found again.
//!
//! Each process that is asked for has a parent of its own, which waits for it and tells how it ended.
#![allow(unsafe_code)] // fork, and what belongs to it

use crate::peer::{self, Peer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
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
const MOST_BYTES: usize = 64 << 10;

/// What a panic in a child becomes, as for any Rust program.
const PANICKED: i32 = 101;

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
    pub(crate) unsafe fn start(serve: impl FnOnce(Request, Peer, Arc<ForkServer>)) -> io::Result<Arc<Self>> {
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
                be_server(&theirs, server, serve);
                // SAFETY: nothing of the parent's is to be run or flushed here.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(server),
        }
    }

    /// Asks for a process.
    pub(crate) fn spawn(&self, request: &Request) -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let (status, told) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let output = rustix::fs::memfd_create("output of a case", rustix::fs::MemfdFlags::CLOEXEC)?;
        let text = serde_json::to_vec(request)?;
        peer::send_with(self.line.as_fd(), &text, &[theirs.as_fd(), told.as_fd(), output.as_fd()])?;
        let mut status = File::from(status);
        drop((theirs, told));
        let mut pid = [0; 4];
        status.read_exact(&mut pid)?;
        let pid = i32::from_le_bytes(pid);
        Ok(Child { peer: Peer::new(ours)?, pid: Pid::from_raw(pid), status, output: File::from(output) })
    }
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

/// Forks for each request, until the line ends.
fn be_server(line: &OwnedFd, server: Arc<ForkServer>, serve: impl FnOnce(Request, Peer, Arc<ForkServer>)) {
    // Nobody waits for the processes in between.
    // SAFETY: no handler is set, only that ended children vanish.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let own = rustix::process::getpid();
    let mut bytes = vec![0; MOST_BYTES];
    loop {
        let Ok((length, fds)) = peer::receive_with(line.as_fd(), &mut bytes) else { return };
        let (Ok(request), Ok([socket, told, output])) =
            (serde_json::from_slice(&bytes[..length]), <[OwnedFd; 3]>::try_from(fds))
        else {
            return;
        };
        // SAFETY: this process has one thread, so its children may do whatever it may.
        match unsafe { libc::fork() } {
            0 => {
                end_with(own);
                return watch(told, || run(request, socket, output, server, serve));
            }
            // A failed fork is told by the pipe that ends without a number.
            _ => drop((socket, told, output)),
        }
    }
}

/// Forks once more, and tells which process it is and then how it ended.
fn watch(told: OwnedFd, run: impl FnOnce()) {
    // SAFETY: as in the server, children can be waited for again.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let own = rustix::process::getpid();
    let mut told = File::from(told);
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => {}
        0 => {
            end_with(own);
            drop(told);
            run();
        }
        pid => {
            let mut status = 0;
            // Who asked may be gone; then nobody wants to know.
            let _ = told.write_all(&pid.to_le_bytes());
            // SAFETY: the child is this process's own.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            let _ = told.write_all(&status.to_le_bytes());
        }
    }
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
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&output), stream) };
    }
    let served = catch_unwind(AssertUnwindSafe(|| {
        let peer = Peer::new(UnixStream::from(socket)).expect("a socket");
        serve(request, peer, server);
    }));
    // SAFETY: ends the process without exit handlers that were registered before the fork; drivers need none.
    unsafe { libc::_exit(if served.is_ok() { 0 } else { PANICKED }) }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With an exit status.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// Not in time; it has been killed.
    TooLate,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(PANICKED) => write!(f, "it panicked"),
            Self::Exit(status) => write!(f, "it ended with status {status}"),
            Self::Signal(signal) => {
                let known = [
                    (libc::SIGABRT, "SIGABRT"),
                    (libc::SIGBUS, "SIGBUS"),
                    (libc::SIGFPE, "SIGFPE"),
                    (libc::SIGILL, "SIGILL"),
                    (libc::SIGKILL, "SIGKILL"),
                    (libc::SIGSEGV, "SIGSEGV"),
                ];
                match known.iter().find(|(number, _)| number == signal) {
                    Some((_, name)) => write!(f, "it was ended by {name}"),
                    None => write!(f, "it was ended by signal {signal}"),
                }
            }
            Self::TooLate => write!(f, "it took too long and was killed"),
        }
    }
}

/// A process that was asked for. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) peer: Peer,
    pid: Option<Pid>,
    status: File,
    output: File,
}

impl Child {
    /// Waits for its end.
    pub(crate) fn wait(&mut self, patience: Duration) -> io::Result<Ended> {
        let timeout = rustix::time::Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.status, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&timeout))?;
        if ready == 0 {
            self.kill();
        }
        let mut status = [0; 4];
        self.status.read_exact(&mut status)?;
        self.pid = None;
        let status = i32::from_le_bytes(status);
        Ok(match (ready, libc::WIFSIGNALED(status)) {
            (0, _) => Ended::TooLate,
            (_, true) => Ended::Signal(libc::WTERMSIG(status)),
            (_, false) => Ended::Exit(libc::WEXITSTATUS(status)),
        })
    }

    /// Waits for its end, in a case, and fails where the other side has failed.
    pub(crate) fn finish(mut self) {
        let ended = self.wait(Duration::from_secs(60)).expect("an end");
        assert_eq!(ended, Ended::Exit(0), "the other process: {ended}: {}", self.output_from(0));
    }

    /// Ends it now, as `kill -9` does.
    pub(crate) fn kill(&self) {
        if let Some(pid) = self.pid {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// How much it has printed.
    pub(crate) fn printed(&self) -> u64 {
        self.output.metadata().map_or(0, |metadata| metadata.len())
    }

    /// What it has printed from some byte on.
    pub(crate) fn output_from(&mut self, start: u64) -> String {
        let mut text = Vec::new();
        let read = self.output.seek(SeekFrom::Start(start)).and_then(|_| self.output.read_to_end(&mut text));
        match read {
            Ok(_) => String::from_utf8_lossy(&text).trim().to_owned(),
            Err(error) => format!("(its output cannot be read: {error})"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
