//! A requested process, as seen by the process that requested it.

use super::{PANICKED, SKIPPED, receive_number};
use crate::peer::Peer;
use gpu_vmm_testkit::raw::missing;
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
    /// It ended with an exit status.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// It did not end in time and was killed.
    TooLate,
}

impl Ended {
    /// Decodes the status of `waitpid`.
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

/// How long a case waits for the end of a process that has finished its part.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to die, including its drivers' cleanup.
const DYING: Duration = Duration::from_secs(10);

/// A requested process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) peer: Peer,
    /// The watcher, which kills the process when this end of the connection closes for any reason.
    watcher: UnixStream,
    ended: Option<Ended>,
    output: File,
}

impl Child {
    pub(super) fn new(peer: UnixStream, watcher: UnixStream, output: OwnedFd) -> io::Result<Self> {
        Ok(Self { peer: Peer::new(peer)?, watcher, ended: None, output: File::from(output) })
    }

    /// Waits for the process to end, and kills it after `patience`.
    pub(crate) fn wait(&mut self, patience: Duration) -> io::Result<Ended> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let ended = match self.status(patience)? {
            Some(status) => Ended::from_status(status),
            None => {
                self.kill();
                // The process may be stuck in a driver, where even SIGKILL does not end it.
                self.status(DYING)?;
                Ended::TooLate
            }
        };
        self.ended = Some(ended);
        Ok(ended)
    }

    /// Returns the status, or `None` if the process runs for longer than `patience`.
    fn status(&mut self, patience: Duration) -> io::Result<Option<i32>> {
        // A timeout of zero would mean to wait forever.
        self.watcher.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        match receive_number(&mut self.watcher) {
            Ok(status) => Ok(Some(status)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the process to end, in a case: if the process failed or skipped, so does the case.
    pub(crate) fn finish(mut self) {
        match self.wait(PATIENCE).expect("an end") {
            Ended::Exit(0) => {}
            ended => self.fail(ended),
        }
    }

    /// Waits until a signal ends the process, in a case.
    pub(crate) fn finish_by(mut self, signal: i32) {
        match self.wait(PATIENCE).expect("an end") {
            Ended::Signal(ended) if ended == signal => {}
            ended => self.fail(ended),
        }
    }

    fn fail(&self, ended: Ended) -> ! {
        let said = self.output_from(0);
        if ended == Ended::Exit(SKIPPED) {
            missing(said)
        }
        panic!("the other process: {ended}: {said}")
    }

    /// Returns the other process's message, in a case. If none came, the case fails with how that process ended.
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

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&self) {
        // The watcher may already have ended with the process.
        let _ = self.watcher.shutdown(Shutdown::Write);
    }

    /// Returns the number of bytes that the process has printed.
    pub(crate) fn printed(&self) -> u64 {
        self.output.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Returns what the process has printed from byte `start` on.
    pub(crate) fn output_from(&self, start: u64) -> String {
        let mut text = vec![0; self.printed().saturating_sub(start) as usize];
        // A positioned read leaves the file position alone, where the process writes next.
        match self.output.read_exact_at(&mut text, start) {
            Ok(()) => String::from_utf8_lossy(&text).trim().to_owned(),
            Err(error) => format!("(its output cannot be read: {error})"),
        }
    }
}

impl Drop for Child {
    /// Kills the process, and waits until its resources are released.
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait(DYING);
    }
}
