//! Errors that another process causes.

use gpu_vmm_core::ErrorKind;
use gpu_vmm_core::extend::ExtensionError;
use std::time::Duration;

/// An error that the other process caused, or its absence. [`Error::extension`](gpu_vmm_core::Error::extension) returns it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A message was truncated, too long, out of sequence, or inconsistent with earlier ones. The exchange is over.
    #[error("the other process sent an invalid message: {why}")]
    BadMessage {
        /// The fault in the message.
        why: String,
    },
    /// The other process is not one that the caller allows.
    #[error("process {pid} of user {uid} is not allowed: {why}")]
    NotAllowed {
        /// The process.
        pid: u32,
        /// Its effective user.
        uid: u32,
        /// The processes that are allowed.
        why: String,
    },
    /// The other process has died or has closed its end.
    #[error("the other process is gone{}", if why.is_empty() { String::new() } else { format!(": {why}") })]
    Gone {
        /// The system's reason. Empty if the end was closed.
        why: String,
    },
    /// The other process has reported that the operation failed there.
    #[error("the other process refused: {why}")]
    Refused {
        /// The text of its error.
        why: String,
    },
    /// The other process did not send or receive in time.
    #[error("no {what} within {waited:?}")]
    TimedOut {
        /// The event that the call waited for.
        what: &'static str,
        /// The time limit.
        waited: Duration,
    },
    /// No process listens at the path, or not yet.
    #[error("{path}: connect answered ENOENT (2): no process listens there, or not yet")]
    NoListener {
        /// The path of the socket.
        path: String,
    },
    /// The process that listened at the path is gone and has left its socket.
    #[error(
        "{path}: {call} answered {name}: the process that listened there is gone; remove the path, or replace it by a new \
         listener"
    )]
    StaleSocket {
        /// The path of the socket.
        path: String,
        /// The system's call that has found it.
        call: &'static str,
        /// The name and the number of its error.
        name: &'static str,
    },
}

impl ExtensionError for PeerError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAllowed { .. } => ErrorKind::AccessDenied,
            Self::BadMessage { .. } | Self::Gone { .. } | Self::Refused { .. } => ErrorKind::Peer,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::NoListener { .. } => ErrorKind::NoListener,
            Self::StaleSocket { .. } => ErrorKind::StaleSocket,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_kind_and_reason() {
        let why = || "because".to_owned();
        let (what, waited) = ("reply", Duration::from_millis(1500));
        let (call, name, path) = ("bind", "EADDRINUSE (98)", "/tmp/socket".to_owned());
        let rows: [(PeerError, ErrorKind, &[&str]); 7] = [
            (PeerError::BadMessage { why: why() }, ErrorKind::Peer, &["because"]),
            (
                PeerError::NotAllowed { pid: 12, uid: 34, why: why() },
                ErrorKind::AccessDenied,
                &["12", "34", "because"],
            ),
            (PeerError::Gone { why: why() }, ErrorKind::Peer, &["gone: because"]),
            (PeerError::Refused { why: why() }, ErrorKind::Peer, &["refused: because"]),
            (PeerError::TimedOut { what, waited }, ErrorKind::TimedOut, &["no reply", "1.5s"]),
            (
                PeerError::NoListener { path: path.clone() },
                ErrorKind::NoListener,
                &["ENOENT (2)", "/tmp/socket"],
            ),
            (
                PeerError::StaleSocket { path, call, name },
                ErrorKind::StaleSocket,
                &["bind answered EADDRINUSE (98)", "/tmp/socket", "remove the path"],
            ),
        ];
        for (error, kind, words) in rows {
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert_eq!(PeerError::Gone { why: String::new() }.to_string(), "the other process is gone");
    }
}
