//! The process at the other end of a connection.

use gpu_vmm_core::Result;
use gpu_vmm_share::Channel;
use gpu_vmm_share::extend::{is_unmapped_user, peer_groups, peer_process};
use std::os::fd::{AsFd, OwnedFd};

/// The process at the other end of a connection, as the kernel reported it when it connected.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its number, or 0 if it is not in this process's namespace.
    pub(super) process: u32,
    /// Its user; `None` for a user without an ID in this process's namespace, who has the rights of others alone.
    pub(super) user: Option<u32>,
    pub(super) group: u32,
    /// Its further groups.
    groups: Vec<u32>,
    /// Tells when the process has ended. Absent before Linux 6.5.
    pub(super) handle: Option<OwnedFd>,
}

impl Peer {
    pub(super) fn of(channel: &Channel) -> Result<Self> {
        let found = channel.peer();
        let user = (!is_unmapped_user(found.uid)).then_some(found.uid);
        let groups = peer_groups(channel.as_fd())?;
        Ok(Self { process: found.pid, user, group: found.gid, groups, handle: peer_process(channel.as_fd()) })
    }

    /// Returns the user's number in texts and records.
    pub(super) fn user_number(&self) -> u32 {
        self.user.unwrap_or(u32::MAX)
    }

    pub(super) fn is_in(&self, group: u32) -> bool {
        self.user.is_some() && (self.group == group || self.groups.contains(&group))
    }

    /// Returns true for a user with all rights.
    pub(super) fn is_root(&self) -> bool {
        self.user == Some(0)
    }
}
