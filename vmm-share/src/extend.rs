//! For crates with a protocol of their own over a [`Channel`]: `gpu-vmm-serve`.

pub use crate::credentials::{is_unmapped_user, peer_groups, peer_process};
pub use crate::manifest::printable;
pub use crate::memory::import;
pub use crate::message::MAX_DESCRIPTORS;
pub use crate::socket::Wait;

use crate::Channel;
use gpu_vmm_core::{Operation, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::{BorrowedFd, OwnedFd};

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
