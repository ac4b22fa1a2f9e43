//! For crates with a protocol of their own over a [`Channel`]: `gpu-vmm-serve`.

pub use crate::channel::ChannelState;
pub use crate::credentials::{is_unmapped_user, peer_groups, peer_process};
pub use crate::manifest::printable;
pub use crate::memory::import;
pub use crate::message::MAX_DESCRIPTORS;
pub use crate::socket::Wait;

use crate::{Channel, Listener};
use gpu_vmm_core::{Operation, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Sends a message with descriptors, of which the peer receives duplicates, within the channel's time limit. A message that timed out was
/// not sent at all, and can be sent again.
///
/// # Errors
///
/// [`PeerError::Gone`](crate::PeerError::Gone), [`PeerError::TimedOut`](crate::PeerError::TimedOut), or
/// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) for a message of more than 32 KiB or more than [`MAX_DESCRIPTORS`].
pub fn send(
    channel: &mut Channel,
    operation: Operation,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    channel.send(operation, message, descriptors)
}

/// Waits for a message. Receives one that has arrived even if the wait is over. The caller checks the number of its descriptors.
///
/// # Errors
///
/// [`PeerError::Gone`](crate::PeerError::Gone), [`PeerError::TimedOut`](crate::PeerError::TimedOut);
/// [`PeerError::BadMessage`](crate::PeerError::BadMessage), after which nothing more is accepted.
pub fn receive<M: DeserializeOwned>(channel: &mut Channel, wait: &Wait) -> Result<(M, Vec<OwnedFd>)> {
    channel.receive_as(wait)
}

/// Returns the inode of a process, which no other process of this system ever has, from a pidfd. `None` before Linux 6.9.
#[must_use]
pub fn process_inode(pidfd: BorrowedFd<'_>) -> Option<u64> {
    crate::pidfd::inode_of(pidfd).ok().flatten()
}

/// Returns what another process needs to go on with a channel, beside the socket; `None` if the channel accepts no more messages. Only one
/// of the two may go on.
#[must_use]
pub fn channel_state(channel: &Channel) -> Option<ChannelState> {
    channel.state()
}

/// Goes on with a channel of another process.
///
/// # Errors
///
/// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) if the socket is not connected.
pub fn resume_channel(operation: Operation, socket: OwnedFd, state: ChannelState) -> Result<Channel> {
    Channel::resume(operation, socket, state)
}

/// Returns the identity of the path that a listener removes when it is dropped, if it removes one.
#[must_use]
pub fn listener_path(listener: &Listener) -> Option<(u64, u64)> {
    listener.bound
}

/// Gives up the path of a listener: dropping it removes nothing.
pub fn leave_path(listener: &mut Listener) {
    listener.bound = None;
}

/// Takes over the path of another process's listener, with what [`listener_path`] returned there.
pub fn take_path(listener: &mut Listener, path: PathBuf, bound: Option<(u64, u64)>) {
    (listener.path, listener.bound) = (path, bound);
}

/// Keeps descriptors of the peer that the caller has no use for until the channel is dropped, as it keeps the descriptors of a message that
/// it has refused. Returns the number that it keeps. Closing another process's descriptor can take as long as that process likes.
pub fn keep(channel: &mut Channel, descriptors: Vec<OwnedFd>) -> usize {
    channel.keep(descriptors)
}
