//! Errors that the server answers.

use crate::name::MAX_NAME;
use gpu_vmm_core::extend::ExtensionError;
use gpu_vmm_core::{Bytes, ErrorKind};
use serde::{Deserialize, Serialize};

/// An error of the server, or of the exchange with it. [`Error::extension`](gpu_vmm_core::Error::extension) returns it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no such region, or this user may not see it.
    #[error("the server has no region {name:?} that this user may open")]
    NotFound {
        /// The region.
        name: String,
    },
    /// There is such a region already, or another client is creating it.
    #[error("the server has a region {name:?} already; drop it first, or write to it")]
    Exists {
        /// The region.
        name: String,
    },
    /// The user may read the region, but not do this.
    #[error(
        "user {user} may not {action} the region {name:?}, which is of user {owner} and has mode {mode:03o}"
    )]
    Denied {
        /// The region.
        name: String,
        /// What the client requested.
        action: String,
        /// The client's user.
        user: u32,
        /// The region's owner.
        owner: u32,
        /// The region's mode.
        mode: u16,
    },
    /// The server's budget is used up.
    #[error(
        "the server's budget of {} has no room for {}: it holds {}, of which {} belong to earlier epochs that clients still use",
        Bytes(*budget), Bytes(*requested), Bytes(*held), Bytes(*old)
    )]
    OverBudget {
        /// The size of the requested memory, in bytes.
        requested: u64,
        /// The memory that the server holds or has promised, in bytes.
        held: u64,
        /// The part of it that is in no region any more, in bytes.
        old: u64,
        /// The budget, in bytes.
        budget: u64,
    },
    /// The driver could not create the memory.
    #[error("the server could not create {}: {why}", Bytes(*requested))]
    NoMemory {
        /// The size of the requested memory, in bytes.
        requested: u64,
        /// The driver's error.
        why: String,
    },
    /// The addresses of a new region are those of another one.
    #[error("the addresses {address:#x} to {end:#x} are those of another region of the server")]
    AddressTaken {
        /// The first address.
        address: u64,
        /// The end.
        end: u64,
    },
    /// The lease was not free in time.
    #[error("the {lease} lease of the region {name:?} was not free within {waited_ms} ms: {why}")]
    Busy {
        /// The region.
        name: String,
        /// `read` or `write`.
        lease: String,
        /// The client's limit.
        waited_ms: u64,
        /// What the lease waits for.
        why: String,
    },
    /// The region was dropped from the server. The memory that a client has mapped stays.
    #[error("the region {name:?} was dropped from the server")]
    Dropped {
        /// The region.
        name: String,
    },
    /// The lease permits only reads.
    #[error("the lease of {name:?} is a read lease; open the region to write")]
    ReadLease {
        /// The region.
        name: String,
    },
    /// The server has as many of these as it permits.
    #[error("the server has its limit of {limit} {what}")]
    Limit {
        /// What there are too many of.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// No version of the protocol is known to both sides.
    #[error(
        "the client speaks versions {client_lowest} to {client_highest} of the protocol, and the server {server_lowest} to {server_highest}"
    )]
    Version {
        /// The client's lowest version.
        client_lowest: u16,
        /// The client's highest version.
        client_highest: u16,
        /// The server's lowest version.
        server_lowest: u16,
        /// The server's highest version.
        server_highest: u16,
    },
    /// This process uses the addresses of the region.
    #[error(
        "the region {name:?} is at {address:#x} to {end:#x} in every process, and here these addresses are in use{}",
        user.as_ref().map(|user| format!(" by {user}")).unwrap_or_default()
    )]
    AddressInUse {
        /// The region.
        name: String,
        /// Its address.
        address: u64,
        /// Its end.
        end: u64,
        /// What the kernel has mapped there first, if it says so.
        user: Option<String>,
    },
    /// A file cannot be loaded or written.
    #[error("{path}: {why}")]
    BadFile {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The request is wrong in itself.
    #[error("{why}")]
    BadRequest {
        /// What is wrong.
        why: String,
    },
    /// A request for more of a device's budget than there is, although programs were asked.
    #[error(
        "the server's budget of {} for the device has no {} more: {} are free{}{}{}",
        Bytes(*budget), Bytes(*requested), Bytes(*free), after(*waited_ms), listed("; ", holders), listed("; not asked, since the last question was not answered: ", unanswered)
    )]
    NoRoom {
        /// What was requested, in bytes.
        requested: u64,
        /// The device's budget, in bytes.
        budget: u64,
        /// What is free of it, in bytes.
        free: u64,
        /// How long the request has waited.
        waited_ms: u64,
        /// Who holds the most, with the sizes.
        holders: String,
        /// The programs that did not answer.
        unanswered: String,
    },
    /// A user or a program would have more than its limit.
    #[error("the limit of {whose} is {}, and it has {}: no room for {}", Bytes(*limit), Bytes(*has), Bytes(*requested))]
    OverLimit {
        /// The user or the program.
        whose: String,
        /// The limit, in bytes.
        limit: u64,
        /// What it has, in bytes.
        has: u64,
        /// What was requested, in bytes.
        requested: u64,
    },
}

fn after(waited_ms: u64) -> String {
    if waited_ms == 0 { String::new() } else { format!(" after {waited_ms} ms") }
}

/// Returns a text with what comes before it, if there is one.
fn listed(before: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{before}{text}") }
}

impl ServeError {
    pub(crate) fn bad(why: impl Into<String>) -> Self {
        Self::BadRequest { why: why.into() }
    }

    /// Returns an error that versions before [`WITH_PROGRAMS`](crate::protocol::WITH_PROGRAMS) know.
    pub(crate) fn known_before_programs(self) -> Self {
        match self {
            Self::NoRoom { requested, .. } | Self::OverLimit { requested, .. } => {
                Self::NoMemory { requested, why: self.to_string() }
            }
            other => other,
        }
    }

    /// Returns the error of the other side with texts that are safe to print.
    pub(crate) fn printable(self) -> Self {
        let safe = |text: String| gpu_vmm_share::extend::printable(&text);
        let name = |name: String| safe(name.chars().take(MAX_NAME).collect());
        match self {
            Self::NotFound { name: of } => Self::NotFound { name: name(of) },
            Self::Exists { name: of } => Self::Exists { name: name(of) },
            Self::Denied { name: of, action, user, owner, mode } => {
                Self::Denied { name: name(of), action: safe(action), user, owner, mode }
            }
            Self::NoMemory { requested, why } => Self::NoMemory { requested, why: safe(why) },
            Self::Busy { name: of, lease, waited_ms, why } => {
                Self::Busy { name: name(of), lease: safe(lease), waited_ms, why: safe(why) }
            }
            Self::Dropped { name: of } => Self::Dropped { name: name(of) },
            Self::ReadLease { name: of } => Self::ReadLease { name: name(of) },
            Self::Limit { what, limit } => Self::Limit { what: safe(what), limit },
            Self::BadRequest { why } => Self::BadRequest { why: safe(why) },
            // Errors of clients, which do not come from a server.
            Self::AddressInUse { .. } | Self::BadFile { .. } => Self::bad("an error of another process"),
            Self::NoRoom { requested, budget, free, waited_ms, holders, unanswered } => {
                let (holders, unanswered) = (safe(holders), safe(unanswered));
                Self::NoRoom { requested, budget, free, waited_ms, holders, unanswered }
            }
            Self::OverLimit { whose, limit, has, requested } => {
                Self::OverLimit { whose: safe(whose), limit, has, requested }
            }
            Self::OverBudget { .. } | Self::AddressTaken { .. } | Self::Version { .. } => self,
        }
    }
}

impl ExtensionError for ServeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::Dropped { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::Limit { .. } => ErrorKind::Busy,
            Self::Denied { .. } | Self::ReadLease { .. } => ErrorKind::AccessDenied,
            Self::OverBudget { .. }
            | Self::NoMemory { .. }
            | Self::NoRoom { .. }
            | Self::OverLimit { .. } => ErrorKind::OutOfMemory,
            Self::AddressTaken { .. } | Self::AddressInUse { .. } => ErrorKind::AddressTaken,
            Self::BadFile { .. } => ErrorKind::File,
            Self::Busy { .. } => ErrorKind::TimedOut,
            Self::Version { .. } => ErrorKind::Unsupported,
            Self::BadRequest { .. } => ErrorKind::InvalidArgument,
        }
    }
}
