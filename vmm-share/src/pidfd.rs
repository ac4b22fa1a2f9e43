//! Descriptors that are taken from another process by its number, where the kernel permits it.
//!
//! What is needed for this is a few numbers, which can go through anything, and no socket.

use crate::PeerError;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Detail, Error, Operation, Result};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A descriptor of some process, for as long as that one has it open: where it is, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    /// The process.
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks since boot: another process of the same number has another.
    pub(crate) start_time: u64,
    /// The descriptor's number there.
    pub(crate) number: i32,
    /// What it is open on.
    pub(crate) file: FileId,
}

/// What a descriptor is open on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FileId {
    /// `st_dev`.
    pub(crate) device: u64,
    /// `st_ino`.
    pub(crate) inode: u64,
}

impl FileId {
    fn of(operation: Operation, fd: BorrowedFd<'_>) -> Result<Self> {
        let found = fstat(fd).map_err(|errno| failed(operation, "fstat", errno, "a descriptor"))?;
        Ok(Self { device: found.st_dev, inode: found.st_ino })
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {} of device {:#x}", self.inode, self.device)
    }
}

/// What the kernel asks of the one who fetches.
const NOT_PERMITTED: &str = "pidfd_getfd needs the right to trace the other process: the same user and a process that can be \
    dumped, with kernel.yama.ptrace_scope 0 (or PR_SET_PTRACER there), or else CAP_SYS_PTRACE; a socket works without";

/// What another process needs to fetch this descriptor of this one.
pub(crate) fn of_this(operation: Operation, fd: BorrowedFd<'_>) -> Result<Token> {
    let pid = std::process::id();
    let start_time = start_time(operation, pid)?;
    Ok(Token { pid, start_time, number: fd.as_raw_fd(), file: FileId::of(operation, fd)? })
}

/// A duplicate of another process's descriptor, which is closed when an exec happens.
///
/// # Errors
///
/// [`Detail::Unsupported`] where the kernel cannot do it or does not permit it, [`PeerError::Gone`], and
/// [`Detail::Mismatch`] where another process has the number now, or another file.
pub(crate) fn fetch(operation: Operation, token: &Token) -> Result<OwnedFd> {
    let Token { pid, start_time: started, number, file } = *token;
    let unsupported = |reason: String| Error::new(operation, Detail::Unsupported { reason });
    let fail = |call, errno| match errno {
        Errno::SRCH => gone(operation, pid),
        Errno::NOSYS => unsupported(format!("{call} is in Linux from 5.6 on; a socket works without")),
        Errno::PERM => unsupported(format!("process {pid}: {NOT_PERMITTED}")),
        _ => failed(operation, call, errno, format!("descriptor {number} of process {pid}")),
    };
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| {
        Error::of_extension(
            operation,
            PeerError::BadMessage { why: format!("no process has the number {pid}") },
        )
    })?;
    if number < 0 {
        return Err(Error::of_extension(
            operation,
            PeerError::BadMessage { why: format!("no descriptor has the number {number}") },
        ));
    }
    let process = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| fail("pidfd_open", errno))?;
    // The process that was meant had started before its number was opened here. If it has the number still, then it is
    // the one that was opened, and what is opened stays the same process whoever gets the number later.
    let found = start_time(operation, pid)?;
    if found != started {
        let (theirs, ours) =
            (format!("{pid}, started at tick {started}"), format!("that one started at {found}"));
        return Err(Error::new(operation, Detail::Mismatch { what: "process", theirs, ours }));
    }
    let fd = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
        .map_err(|errno| fail("pidfd_getfd", errno))?;
    let found = FileId::of(operation, fd.as_fd())?;
    if found != file {
        let (theirs, ours) = (format!("{number}, open on {file}"), format!("that one is open on {found}"));
        return Err(Error::new(operation, Detail::Mismatch { what: "descriptor", theirs, ours }));
    }
    Ok(fd)
}

fn gone(operation: Operation, pid: u32) -> Error {
    Error::of_extension(
        operation,
        PeerError::Gone { why: format!("there is no process {pid} in this PID namespace") },
    )
}

/// When a process started, in ticks since boot.
fn start_time(operation: Operation, pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let unsupported = |reason: String| Error::new(operation, Detail::Unsupported { reason });
    match std::fs::read(&path) {
        Ok(stat) => parse_start_time(&stat).ok_or_else(|| unsupported(format!("{path} has no start time"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_proc_there() => {
            Err(gone(operation, pid))
        }
        Err(error) => Err(unsupported(format!("{path} cannot be read: {error}"))),
    }
}

fn is_proc_there() -> bool {
    std::fs::exists("/proc/self/stat").unwrap_or(false)
}

/// Field 22. The second one is the program's name in parentheses, in which any bytes may be, spaces and parentheses too.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let behind_name = stat.rsplit(|byte| *byte == b')').next()?;
    std::str::from_utf8(behind_name).ok()?.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests;
