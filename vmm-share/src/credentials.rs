//! The identity of the peer of a channel, and the peers that a caller allows.
#![allow(unsafe_code)]

use crate::PeerError;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Error, Operation, Result};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The identity of a process, as the kernel reports it (`SO_PEERCRED`): at the time when it connected, listened, or created
/// the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process, or 0 if it is in a PID namespace that this process cannot see, such as another container's.
    pub pid: u32,
    /// Its effective user ID, or the kernel's overflow ID (65534) if it has none in this process's user namespace.
    pub uid: u32,
    /// Its effective group ID.
    pub gid: u32,
}

impl Credentials {
    /// Returns the credentials of the process at the other end of a connected Unix socket.
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
            return Err(failed(operation, "getsockopt(SO_PEERCRED)", errno, "the credentials of the peer"));
        }
        Ok(Self { pid: found.pid.unsigned_abs(), uid: found.uid, gid: found.gid })
    }
}

/// The processes that may be at the other end of a channel; [`Allowed::same_user`] by default. A connection to any other
/// process is closed before anything is sent.
///
/// In a user namespace, the kernel reports all users without an ID there by one ID, 65534. A peer with that ID is not allowed, unless
/// the namespace has an ID for every user: it may be any user of the machine, root included.
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_share as share; }
/// use gpu_vmm::share::Allowed;
///
/// assert_eq!(Allowed::default(), Allowed::same_user());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed(AllowedProcesses);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum AllowedProcesses {
    #[default]
    SameUser,
    User(u32),
    Process(u32),
    Any,
}

impl Allowed {
    /// Allows processes of this process's effective user. Processes of root are not allowed, unless this process is root's too.
    #[must_use]
    pub const fn same_user() -> Self {
        Self(AllowedProcesses::SameUser)
    }

    /// Allows processes of the effective user `uid`.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self(AllowedProcesses::User(uid))
    }

    /// Allows one process of the same user, by its ID in this process's PID namespace.
    ///
    /// For a channel over `socketpair` the kernel reports the process that created the pair, whichever has the other end now.
    #[must_use]
    pub const fn process(pid: u32) -> Self {
        Self(AllowedProcesses::Process(pid))
    }

    /// Allows every process. The caller decides what each one may do, by its [credentials](crate::Channel::peer).
    #[must_use]
    pub const fn any() -> Self {
        Self(AllowedProcesses::Any)
    }

    /// Fails if `peer` is not allowed.
    pub(crate) fn check(self, operation: Operation, peer: Credentials) -> Result<()> {
        let Credentials { pid, uid, .. } = peer;
        let us = geteuid().as_raw();
        let why = match self.0 {
            AllowedProcesses::Any => return Ok(()),
            AllowedProcesses::SameUser if uid != us => format!("only processes of user {us} are"),
            AllowedProcesses::User(user) if uid != user => format!("only processes of user {user} are"),
            AllowedProcesses::Process(process) if pid != process || uid != us => {
                format!("only process {process} of user {us} is")
            }
            _ if is_unmapped_user(uid) => {
                format!("user {uid} stands for every user without an ID in this process's user namespace")
            }
            _ => return Ok(()),
        };
        Err(Error::of_extension(operation, PeerError::NotAllowed { pid, uid, why }))
    }
}

/// Returns true for the ID of a peer that may be any user of the machine: one without an ID in this process's user namespace.
#[must_use]
pub fn is_unmapped_user(uid: u32) -> bool {
    uid == overflow_user() && !every_user_has_an_id()
}

/// Returns the further groups of the peer, as the kernel reports them (`SO_PEERGROUPS`).
///
/// # Errors
///
/// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) with the kernel's error.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    const SO_PEERGROUPS: libc::c_int = 59;
    /// The kernel permits a process no more.
    const MAX_GROUPS: usize = 65536;
    let number = socket.as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut size = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        let target = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `size` bytes to the buffer, which has that many.
        let answer =
            unsafe { libc::getsockopt(number, libc::SOL_SOCKET, SO_PEERGROUPS, target, &raw mut size) };
        let count = size as usize / size_of::<libc::gid_t>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        if errno != Errno::RANGE || groups.len() >= MAX_GROUPS {
            return Err(failed(
                Operation::Accept,
                "getsockopt(SO_PEERGROUPS)",
                errno,
                "the groups of the peer",
            ));
        }
        // The kernel has said how many there are.
        groups.resize(count.clamp(groups.len() + 1, MAX_GROUPS), 0);
    }
}

/// Returns a descriptor of the peer's process (`SO_PEERPIDFD`), which becomes readable when the process ends. `None` before
/// Linux 6.5, and for a process that has ended.
#[must_use]
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut found: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_raw_fd();
    // SAFETY: the kernel writes at most `size` bytes to `found`, which has that many.
    let answer = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut found).cast(), &raw mut size)
    };
    // SAFETY: the kernel has made this descriptor for the caller.
    (answer == 0 && found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Returns the ID by which the kernel reports users without an ID in a user namespace.
fn overflow_user() -> u32 {
    const DEFAULT: u32 = 65534;
    let read = fs::read_to_string("/proc/sys/kernel/overflowuid");
    read.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// Returns true if every user of the machine has an ID in this process's user namespace, as in the first one. False without `/proc`.
fn every_user_has_an_id() -> bool {
    // All IDs but the last one, which is none.
    const ALL: u32 = u32::MAX;
    let read = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let counts = read.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u32>().ok());
    counts.into_iter().any(|count| count == ALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channel;
    use gpu_vmm_testkit::forked::{UNPRIVILEGED, alone, give_up_root};
    use rustix::process::getegid;

    #[test]
    fn only_those_who_are_allowed_are() {
        let us = geteuid().as_raw();
        let peer = |pid, uid| Credentials { pid, uid, gid: 0 };
        let check = |allowed: Allowed, peer| allowed.check(Operation::Accept, peer);
        let process = format!("only process 7 of user {us} is");
        for (allowed, other, words) in [
            (Allowed::same_user(), peer(7, us + 1), format!("only processes of user {us} are")),
            (Allowed::user(us + 1), peer(7, us), format!("only processes of user {} are", us + 1)),
            (Allowed::process(7), peer(8, us), process.clone()),
            (Allowed::process(7), peer(7, us + 1), process),
        ] {
            let error = check(allowed, other).unwrap_err();
            let Some(PeerError::NotAllowed { pid, uid, why }) = error.extension() else { panic!("{error}") };
            assert_eq!((*pid, *uid, why), (other.pid, other.uid, &words));
        }
        for (allowed, other) in [
            (Allowed::same_user(), peer(7, us)),
            (Allowed::user(us + 1), peer(7, us + 1)),
            (Allowed::process(7), peer(7, us)),
        ] {
            check(allowed, other).unwrap();
        }
    }

    #[test]
    fn a_peer_has_its_own_numbers() {
        alone(|| {
            // As root, the numbers of the user and of the group differ from then on.
            give_up_root();
            let (one, _other) = Channel::pair().unwrap();
            let Credentials { pid, uid, gid } = one.peer();
            assert_eq!((pid, uid, gid), (std::process::id(), geteuid().as_raw(), getegid().as_raw()));
        });
    }

    #[test]
    fn unmapped_users_are_not_allowed() {
        for id in [UNPRIVILEGED, 1000] {
            alone(|| {
                give_up_root();
                let outside = geteuid().as_raw();
                // A process that changes its user may not write to its own files in /proc.
                // SAFETY: the call has no pointers.
                assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
                // SAFETY: the child has one thread, and nothing in it depends on its namespace.
                if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
                    eprintln!("SKIPPED: no user namespaces here: {}", std::io::Error::last_os_error());
                    return;
                }
                fs::write("/proc/self/uid_map", format!("{id} {outside} 1")).unwrap();
                assert_eq!(geteuid().as_raw(), id);
                let (one, _other) = Channel::pair().unwrap();
                for allowed in [Allowed::same_user(), Allowed::user(id), Allowed::process(std::process::id())]
                {
                    let checked = allowed.check(Operation::Accept, one.peer());
                    assert_eq!(checked.is_ok(), id != UNPRIVILEGED, "{id}, {allowed:?}: {checked:?}");
                }
            });
        }
    }
}
