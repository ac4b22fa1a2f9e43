//! Descriptors that are duplicated from another process by its ID, if the kernel permits it.
//!
//! This needs no socket: a [`Token`] is a few numbers, which can travel by any means.

use crate::PeerError;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Detail, Error, Operation, Result};
use rustix::fs::{fstat, fstatfs};
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
    /// Tells the process from a later one with the same ID.
    pub(crate) identity: Identity,
    /// The descriptor's number in that process.
    pub(crate) number: i32,
    /// The file that it is open on.
    pub(crate) file: FileId,
}

/// What tells a process from a later one with the same ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// The inode of its pidfds, which is the same in all namespaces. Linux 6.9 and later.
    Inode(u64),
    /// Its start time, in ticks since boot. A process in another time namespace reads another number.
    StartTime(u64),
}

impl Identity {
    fn of(operation: Operation, pid: u32, pidfd: BorrowedFd<'_>) -> Result<Self> {
        let failed = |errno| failed(operation, "fstat", errno, format!("the pidfd of process {pid}"));
        match inode_of(pidfd).map_err(failed)? {
            Some(inode) => Ok(Self::Inode(inode)),
            None => start_time(operation, pid).map(Self::StartTime),
        }
    }
}

/// Returns the inode of a process, which no other process of this system ever has, from a pidfd. `None` before Linux 6.9.
pub(crate) fn inode_of(pidfd: BorrowedFd<'_>) -> rustix::io::Result<Option<u64>> {
    /// The file system of pidfds. Earlier kernels give all of them one inode.
    const PIDFS: i64 = 0x5049_4446;
    #[allow(clippy::unnecessary_cast)] // its type differs between architectures
    if fstatfs(pidfd)?.f_type as i64 != PIDFS {
        return Ok(None);
    }
    fstat(pidfd).map(|found| Some(found.st_ino))
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inode(inode) => write!(f, "with inode {inode}"),
            Self::StartTime(ticks) => write!(f, "started at tick {ticks}"),
        }
    }
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
    let identity = match Pid::from_raw(pid.cast_signed()).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => Identity::of(operation, pid, pidfd.as_fd())?,
        // The call may be missing or forbidden here, and a token is for others.
        _ => Identity::StartTime(start_time(operation, pid)?),
    };
    Ok(Token { pid, identity, number: fd.as_raw_fd(), file: FileId::of(operation, fd)? })
}

/// Duplicates another process's descriptor. The duplicate is closed on exec.
///
/// # Errors
///
/// [`Detail::Unsupported`] if the kernel has no such call or does not permit it; [`PeerError::Gone`]; [`Detail::Mismatch`] if
/// another process has the ID now, or the descriptor is closed or open on another file.
pub(crate) fn fetch(operation: Operation, token: &Token) -> Result<OwnedFd> {
    let Token { pid, identity, number, file } = *token;
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
    // If the ID still belongs to the intended process, the pidfd refers to it, and does so whichever process gets the ID later.
    let found = match identity {
        Identity::Inode(_) => Identity::of(operation, pid, process.as_fd())?,
        Identity::StartTime(_) => Identity::StartTime(start_time(operation, pid)?),
    };
    if found != identity {
        let (theirs, ours) =
            (format!("{pid}, {identity}"), format!("the one with that number here, {found}"));
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
        Err(error) => Err(match Errno::from_io_error(&error) {
            // Of this process, not of the system.
            Some(errno @ (Errno::MFILE | Errno::NFILE)) => failed(operation, "open", errno, path),
            _ => unsupported(format!("{path} cannot be read: {error}")),
        }),
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
