//! What can go wrong between two processes.

use gpu_vmm_core::ErrorKind;
use gpu_vmm_core::extend::ExtensionError;
use std::time::Duration;

/// What is behind an error that the other process, or its absence, caused.
/// [`Error::extension`](gpu_vmm_core::Error::extension) returns it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A message that is not what the other process of the exchange can have sent: cut, too long, of another version,
    /// out of turn, or not consistent. The exchange is over.
    #[error("the other process sent an invalid message: {why}")]
    BadMessage {
        /// What is wrong with it.
        why: String,
    },
    /// A process that is not allowed to take part.
    #[error("process {pid} of user {uid} is not allowed: {why}")]
    NotAllowed {
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Who would be.
        why: String,
    },
    /// The other process of an exchange is gone, or has closed its end.
    #[error("the other process is gone{}", if why.is_empty() { String::new() } else { format!(": {why}") })]
    Gone {
        /// What the system said, or nothing where the end was just closed.
        why: String,
    },
    /// The other process has answered that it cannot.
    #[error("the other process refused: {why}")]
    Refused {
        /// Its own words.
        why: String,
    },
    /// The other process did not answer in time.
    #[error("no {what} within {waited:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
}

impl ExtensionError for PeerError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAllowed { .. } => ErrorKind::AccessDenied,
            Self::BadMessage { .. } | Self::Gone { .. } | Self::Refused { .. } | Self::TimedOut { .. } => {
                ErrorKind::Peer
            }
        }
    }
}
