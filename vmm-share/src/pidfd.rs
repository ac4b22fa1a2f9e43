//! Descriptors that are duplicated from another process by its ID, if the kernel permits it.
//!
//! This needs no socket: a [`Token`] is a few numbers, which can travel by any means.

use crate::PeerError;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Detail, Error, Operation, Result};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Identifies a descriptor of another process, as long as that process has it open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    /// The process.
    pub(crate) pid: u32,
    /// The start time of the process, in the kernel's ticks since boot. A later process with the same ID has another.
    pub(crate) start_time: u64,
    /// The descriptor's number in that process.
    pub(crate) number: i32,
    /// The file that it is open on.
    pub(crate) file: FileId,
}

/// The file that a descriptor is open on.
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

/// The rights that `pidfd_getfd` needs.
const NOT_PERMITTED: &str = "pidfd_getfd needs the right to trace the other process: the same user and a process that can be \
    dumped, with kernel.yama.ptrace_scope 0 (or PR_SET_PTRACER there), or else CAP_SYS_PTRACE; a channel needs no such right";

/// Returns the token by which another process can duplicate this process's descriptor.
pub(crate) fn of_this(operation: Operation, fd: BorrowedFd<'_>) -> Result<Token> {
    let pid = std::process::id();
    let start_time = start_time(operation, pid)?;
    Ok(Token { pid, start_time, number: fd.as_raw_fd(), file: FileId::of(operation, fd)? })
}

/// Duplicates another process's descriptor. The duplicate is closed on exec.
///
/// # Errors
///
/// [`Detail::Unsupported`] if the kernel has no such call or does not permit it; [`PeerError::Gone`]; [`Detail::Mismatch`] if
/// another process has the ID now, or the descriptor is closed or open on another file.
pub(crate) fn fetch(operation: Operation, token: &Token) -> Result<OwnedFd> {
    let Token { pid, start_time: started, number, file } = *token;
    let unsupported = |reason: String| Error::new(operation, Detail::Unsupported { reason });
    let fail = |call, errno| match errno {
        Errno::SRCH => gone(operation, pid),
        Errno::NOSYS => unsupported(format!("{call} needs Linux 5.6 or later; a channel does not")),
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
    // The intended process started before its ID was opened here. If the ID still belongs to it, the pidfd refers to it, and
    // does so whichever process gets the ID later.
    let found = start_time(operation, pid)?;
    if found != started {
        let (theirs, ours) =
            (format!("{pid}, started at tick {started}"), format!("that process started at tick {found}"));
        return Err(Error::new(operation, Detail::Mismatch { what: "process", theirs, ours }));
    }
    let mismatch = |ours| {
        let theirs = format!("{number}, open on {file}");
        Err(Error::new(operation, Detail::Mismatch { what: "descriptor", theirs, ours }))
    };
    let fd = match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
        // The pidfd is open, so the descriptor in the other process is not.
        Err(Errno::BADF) => return mismatch("here that descriptor is not open".into()),
        fetched => fetched.map_err(|errno| fail("pidfd_getfd", errno))?,
    };
    let found = FileId::of(operation, fd.as_fd())?;
    if found != file {
        return mismatch(format!("here that descriptor is open on {found}"));
    }
    Ok(fd)
}

fn gone(operation: Operation, pid: u32) -> Error {
    Error::of_extension(
        operation,
        PeerError::Gone { why: format!("there is no process {pid} in this PID namespace") },
    )
}

/// Returns the start time of a process, in ticks since boot.
fn start_time(operation: Operation, pid: u32) -> Result<u64> {
    // Of the first thread, which starts with the process: qemu-user answers /proc/PID/stat of its own process by itself, with the
    // time at which the calling thread started.
    let path = format!("/proc/{pid}/task/{pid}/stat");
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

/// Parses field 22. Field 2 is the program's name in parentheses, which may contain spaces and parentheses itself.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let behind_name = stat.rsplit(|byte| *byte == b')').next()?;
    std::str::from_utf8(behind_name).ok()?.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests;
