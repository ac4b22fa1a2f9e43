//! A process that was asked for, as the one who asked sees it.

use super::{PANICKED, SKIPPED, receive_number};
use crate::peer::Peer;
use crate::subject::skip;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

impl Ended {
    /// What `waitpid` gives.
    pub(crate) fn from_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Exit(libc::WEXITSTATUS(status))
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// How long a case waits for the end of a process that has nothing to do any more.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process takes to die, with what its drivers have to clean up.
const DYING: Duration = Duration::from_secs(10);

/// A process that was asked for. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) peer: Peer,
    /// Its watcher, which kills it when this side of the line ends, in whichever way.
    watcher: UnixStream,
    ended: Option<Ended>,
    output: File,
}

impl Child {
    pub(super) fn new(peer: UnixStream, watcher: UnixStream, output: OwnedFd) -> io::Result<Self> {
        Ok(Self { peer: Peer::new(peer)?, watcher, ended: None, output: File::from(output) })
    }

    /// Waits for its end; when patience ends, it is killed.
    pub(crate) fn wait(&mut self, patience: Duration) -> io::Result<Ended> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let ended = match self.status(patience)? {
            Some(status) => Ended::from_status(status),
            None => {
                self.kill();
                // It may be stuck in a driver, where even that does not reach it.
                self.status(DYING)?;
                Ended::TooLate
            }
        };
        self.ended = Some(ended);
        Ok(ended)
    }

    /// Its status, or `None` where it goes on for longer than that.
    fn status(&mut self, patience: Duration) -> io::Result<Option<i32>> {
        // No time at all would mean for ever.
        self.watcher.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        match receive_number(&mut self.watcher) {
            Ok(status) => Ok(Some(status)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for its end, in a case: it fails, or cannot go on here, where the other side does.
    pub(crate) fn finish(mut self) {
        match self.wait(PATIENCE).expect("an end") {
            Ended::Exit(0) => {}
            ended => self.fail(ended),
        }
    }

    /// Waits for an end by a signal, in a case.
    pub(crate) fn finish_by(mut self, signal: i32) {
        match self.wait(PATIENCE).expect("an end") {
            Ended::Signal(ended) if ended == signal => {}
            ended => self.fail(ended),
        }
    }

    fn fail(&self, ended: Ended) -> ! {
        let said = self.output_from(0);
        if ended == Ended::Exit(SKIPPED) {
            skip(said)
        }
        panic!("the other process: {ended}: {said}")
    }

    /// The other side's answer, in a case. Where there is none, how that process ended is what tells why.
    fn or_fail<T>(&mut self, answer: io::Result<T>) -> T {
        answer.unwrap_or_else(|error| match self.wait(DYING) {
            Ok(ended) => self.fail(ended),
            Err(_) => panic!("the other process: {error}"),
        })
    }

    /// Sends a message, in a case.
    pub(crate) fn send(&mut self, message: impl Serialize) {
        let sent = self.peer.try_send(&message);
        self.or_fail(sent);
    }

    /// Waits for a message, in a case.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> T {
        let received = self.peer.try_receive();
        self.or_fail(received)
    }

    /// Sends a descriptor, in a case.
    pub(crate) fn send_fd(&mut self, fd: impl AsFd) {
        let sent = self.peer.try_send_fd(fd);
        self.or_fail(sent);
    }

    /// Waits for a descriptor, in a case.
    pub(crate) fn receive_fd(&mut self) -> OwnedFd {
        let received = self.peer.try_receive_fd();
        self.or_fail(received)
    }

    /// Ends it now, as `kill -9` does.
    pub(crate) fn kill(&self) {
        // The watcher may have ended with it meanwhile.
        let _ = self.watcher.shutdown(Shutdown::Write);
    }

    /// How much it has printed.
    pub(crate) fn printed(&self) -> u64 {
        self.output.metadata().map_or(0, |metadata| metadata.len())
    }

    /// What it has printed from some byte on.
    pub(crate) fn output_from(&self, start: u64) -> String {
        let mut text = vec![0; self.printed().saturating_sub(start) as usize];
        // Read at a place, since where it writes next is where reading would go on.
        match self.output.read_exact_at(&mut text, start) {
            Ok(()) => String::from_utf8_lossy(&text).trim().to_owned(),
            Err(error) => format!("(its output cannot be read: {error})"),
        }
    }
}

impl Drop for Child {
    /// Kills it, and waits until what it had is given back.
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait(DYING);
    }
}
