//! Who is at the other end of a channel, and who may be.
#![allow(unsafe_code)]

use crate::PeerError;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Error, Operation, Result};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Who a process is, as the kernel says it (`SO_PEERCRED`): what it was when it connected, listened, or made the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process, or 0 where it is in a PID namespace that this process does not see into, as in another container.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Credentials {
    /// Those of the other end of a connected Unix socket.
    pub(crate) fn of_peer(operation: Operation, socket: BorrowedFd<'_>) -> Result<Self> {
        // Not through rustix, whose process number cannot be 0.
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes to `found`, which has that many.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut size,
            )
        };
        if answer != 0 {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
            return Err(failed(operation, "getsockopt(SO_PEERCRED)", errno, "who is at the other end"));
        }
        Ok(Self { pid: found.pid.unsigned_abs(), uid: found.uid, gid: found.gid })
    }
}

/// Who may be at the other end of a channel. The one who is not gets nothing: the connection is closed at once.
///
/// ```
/// use gpu_vmm_share::Allowed;
///
/// assert_eq!(Allowed::default(), Allowed::same_user());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed(Who);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Who {
    #[default]
    SameUser,
    User(u32),
    Process(u32),
    Anyone,
}

impl Allowed {
    /// Processes of the effective user of this process, and so not those of root unless this is one.
    #[must_use]
    pub const fn same_user() -> Self {
        Self(Who::SameUser)
    }

    /// Processes of this effective user.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self(Who::User(uid))
    }

    /// One process, of the same user as this one. Its number is the one that this process sees it under.
    ///
    /// For a channel over `socketpair` the kernel names who made the pair, whoever has the other end now.
    #[must_use]
    pub const fn process(pid: u32) -> Self {
        Self(Who::Process(pid))
    }

    /// Every process that gets at the socket.
    #[must_use]
    pub const fn anyone() -> Self {
        Self(Who::Anyone)
    }

    /// Refuses who is not allowed.
    pub(crate) fn check(self, operation: Operation, peer: Credentials) -> Result<()> {
        let Credentials { pid, uid, .. } = peer;
        let us = geteuid().as_raw();
        let why = match self.0 {
            Who::SameUser if uid != us => format!("only processes of user {us} are"),
            Who::User(user) if uid != user => format!("only processes of user {user} are"),
            Who::Process(process) if pid != process || uid != us => {
                format!("only process {process} of user {us} is")
            }
            _ => return Ok(()),
        };
        Err(Error::of_extension(operation, PeerError::NotAllowed { pid, uid, why }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_are_allowed_are() {
        let us = geteuid().as_raw();
        let peer = |pid, uid| Credentials { pid, uid, gid: 0 };
        let check = |allowed: Allowed, peer| allowed.check(Operation::Accept, peer);
        for (allowed, other) in [
            (Allowed::same_user(), peer(7, us + 1)),
            (Allowed::user(us + 1), peer(7, us)),
            (Allowed::process(7), peer(8, us)),
            (Allowed::process(7), peer(7, us + 1)),
        ] {
            let error = check(allowed, other).unwrap_err();
            let Some(PeerError::NotAllowed { pid, uid, .. }) = error.extension() else { panic!("{error}") };
            assert_eq!((*pid, *uid), (other.pid, other.uid));
        }
        for (allowed, other) in [
            (Allowed::same_user(), peer(7, us)),
            (Allowed::user(us + 1), peer(7, us + 1)),
            (Allowed::process(7), peer(7, us)),
            (Allowed::anyone(), peer(0, us + 1)),
        ] {
            check(allowed, other).unwrap();
        }
    }
}
