//! The messages between clients and the server.
//!
//! A connection begins with [`Request::Hello`], to which the server replies with [`Reply::Welcome`]. Each connection then has one
//! purpose: a query, or one lease, which ends with the connection. postcard encodes a variant as its index: variants are only ever
//! added, at the end, together with a new version.

use crate::{Mode, ServeError};
use gpu_vmm_core::DeviceUuid;
use gpu_vmm_share::manifest::{MemoryKind, SharedPiece};
use serde::{Deserialize, Serialize};

/// The versions of the protocol that this version of the crate speaks.
///
/// Version 2 added programs with a part of the budget.
pub(crate) const VERSIONS: (u16, u16) = (1, 2);

/// The first version with programs.
pub(crate) const WITH_PROGRAMS: u16 = 2;

/// The limit of a wait, in milliseconds: a day.
pub(crate) const MAX_WAIT_MS: u64 = 24 * 60 * 60 * 1000;

/// The kind of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LeaseKind {
    /// Any number of clients map the region's last epoch to read it.
    Read,
    /// One client replaces contents. Readers go on meanwhile.
    Write,
}

impl LeaseKind {
    /// Returns its name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A message of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first request: the versions that the client speaks.
    Hello { lowest: u16, highest: u16 },
    /// Requests a lease of a region.
    Open { name: String, kind: LeaseKind, wait_ms: u64 },
    /// Creates a region and requests its write lease.
    Create(Create),
    /// Requests new memory for `count` handles from `first` on. The lease permits writes. The client has unmapped the new memory of earlier
    /// requests for them.
    Renew { first: u32, count: u32 },
    /// Makes the new memory the region's next epoch. With `layout`, a sealed file with the layout comes along.
    Commit { layout: bool },
    /// The client has mapped this epoch and nothing of earlier ones.
    Applied { epoch: u64 },
    /// Makes the write lease a read lease. New memory that was not committed is lost.
    Downgrade,
    /// The client has unmapped everything and ends the lease.
    Release,
    /// Requests the list of regions and the server's state.
    List,
    /// Removes a region.
    Drop { name: String },
    /// The sender replaces the server.
    TakeOver,
    /// The sender has received everything and is the server from now on.
    Taken,
    /// The connection is a pool's that wants a part of the budget.
    Join(Join),
    /// Requests at least `least` more bytes of the budget, and up to `most`. The server asks other programs for them if `asks`, and waits for
    /// them. A later request replaces an earlier one.
    Reserve { number: u64, least: u64, most: u64, wait_ms: u64, asks: bool },
    /// Gives a part of the program's memory back: the reply to [`Reply::Ask`] with this number, or 0.
    Give { ask: u64, bytes: u64 },
    /// What the program has: the reply to [`Reply::Describe`], or news.
    Report(ProgramReport),
}

/// A pool that wants a part of a device's budget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    /// The program's name.
    pub(crate) name: String,
    pub(crate) device: DeviceUuid,
    pub(crate) priority: i8,
    /// The memory that the pool has already, in bytes.
    pub(crate) holds: u64,
}

/// What a program says of its memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgramReport {
    /// The part of its budget that it keeps, whatever others need.
    pub reserved: u64,
    /// The memory that its pool holds.
    pub held: u64,
    /// The memory of its live blocks.
    pub live: u64,
    /// What its tags hold that can sleep and do not yet.
    pub can_sleep: u64,
    /// What of its tags is suspended.
    pub asleep: u64,
}

/// A region to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Create {
    pub(crate) name: String,
    /// In bytes: a multiple of the granularity.
    pub(crate) size: u64,
    /// The address that the client has reserved for it.
    pub(crate) address: u64,
    pub(crate) device: DeviceUuid,
    pub(crate) kind: MemoryKind,
    /// The wanted size of a handle, or 0.
    pub(crate) handle: u64,
    pub(crate) mode: Mode,
    /// The group of the region; the client's own if absent.
    pub(crate) group: Option<u32>,
}

/// A message of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The version that both sides speak from now on, and the vendor of the server's memory.
    Welcome { version: u16, vendor: String },
    /// The request has failed. A lease that existed goes on.
    Refused(ServeError),
    /// The lease begins. `changed` handles follow, which are all. With `layout`, the layout's file comes along.
    Granted { kind: LeaseKind, address: u64, size: u64, handles: u32, epoch: u64, layout: bool },
    /// A new epoch. `changed` handles follow. With `layout`, the layout's file comes along, else it is as before.
    Epoch { epoch: u64, changed: u32, layout: bool },
    /// New memory for the writer. `count` handles follow.
    Renewed { count: u32 },
    /// Handles with their descriptors. The number of each is its index in the region.
    Handles(Vec<SharedPiece>),
    /// The new memory is the region's epoch.
    Committed { epoch: u64 },
    /// The lease is a read lease now.
    Downgraded,
    /// The region is no longer on the server. The lease goes on for the memory that the client has.
    Dropped,
    /// A region of the list.
    Region(RegionInfo),
    /// A client of the list.
    Client(ClientInfo),
    /// The end of a list.
    Server(ServerInfo),
    /// The request has been carried out.
    Done,
    /// The state of the server, in a sealed file. `descriptors` follow.
    State { descriptors: u32 },
    /// Descriptors of the state.
    Descriptors { count: u32 },
    /// The program is known from now on.
    Joined,
    /// More of the budget, or why there is none: the reply to the request with this number.
    Budget { number: u64, granted: Result<u64, ServeError> },
    /// Asks a program to give bytes back: what it does not use, and if `sleeps` also what can sleep.
    Ask { ask: u64, bytes: u64, sleeps: bool },
    /// Asks a program for a report.
    Describe,
    /// A program of the list.
    Program(ProgramInfo),
    /// A device of the list.
    Device(DeviceInfo),
}

impl Reply {
    /// Returns the number of its descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Granted { layout, .. } | Self::Epoch { layout, .. } => usize::from(*layout),
            Self::Handles(pieces) => pieces.len(),
            Self::State { .. } => 1,
            Self::Descriptors { count } => *count as usize,
            _ => 0,
        }
    }

    /// Returns its name in errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Welcome { .. } => "a welcome",
            Self::Refused(_) => "a refusal",
            Self::Granted { .. } => "a lease",
            Self::Epoch { .. } => "a new epoch",
            Self::Renewed { .. } => "new memory",
            Self::Handles(_) => "handles",
            Self::Committed { .. } => "a commit",
            Self::Downgraded => "a downgrade",
            Self::Dropped => "the end of the region",
            Self::Region(_) | Self::Client(_) | Self::Server(_) | Self::Program(_) | Self::Device(_) => {
                "a part of a list"
            }
            Self::Done => "the end of a request",
            Self::State { .. } | Self::Descriptors { .. } => "the server's state",
            Self::Joined => "the reply to a program",
            Self::Budget { .. } => "a part of the budget",
            Self::Ask { .. } | Self::Describe => "a question to a program",
        }
    }
}

/// A region of a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Its address in every client.
    pub address: u64,
    /// Its size, in bytes.
    pub size: u64,
    /// The number of its handles.
    pub handles: u32,
    /// The device that owns the memory.
    pub device: DeviceUuid,
    /// Its epoch; 0 before the first commit.
    pub epoch: u64,
    /// The size of its layout, in bytes.
    pub layout: u64,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its mode.
    pub mode: Mode,
    /// The number of clients with a read lease.
    pub readers: u32,
    /// True if a client has the write lease.
    pub has_writer: bool,
    /// The number of clients that wait for a lease.
    pub waiting: u32,
}

/// A client with a lease, or one that waits for a lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientInfo {
    /// Its process, or 0 if the server cannot see it.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// The region.
    pub region: String,
    /// The kind of its lease.
    pub lease: LeaseKind,
    /// True if it waits for the lease.
    pub waits: bool,
    /// The epoch that it has mapped.
    pub epoch: u64,
    /// The memory that it keeps alive or fills, in bytes.
    pub bytes: u64,
    /// True if its connection has ended without notice and its process has not: it may still map the memory.
    pub lingers: bool,
}

/// A pool with a part of a server's budget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// Its process, or 0 if the server cannot see it.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Its name; empty for a program of another user.
    pub name: String,
    /// The device of its pool.
    pub device: DeviceUuid,
    /// Its priority.
    pub priority: i8,
    /// Its part of the budget, in bytes.
    pub granted: u64,
    /// What it has last said of its memory.
    pub report: ProgramReport,
    /// What it has requested and waits for, in bytes.
    pub wants: u64,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
    /// What its request waits for; empty if it has none.
    pub waits_for: String,
    /// False if it has not answered the last question in time. It is not asked again until it does.
    pub answers: bool,
    /// True if its connection has ended without notice and its process has not: it may still hold the memory.
    pub lingers: bool,
}

/// A device of which a server divides the memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device.
    pub device: DeviceUuid,
    /// The name that its driver reports.
    pub name: String,
    /// What regions and programs may have together, in bytes.
    pub budget: u64,
    /// What they have, or was promised to them, in bytes.
    pub held: u64,
    /// The part of it that programs have, in bytes.
    pub granted: u64,
}

/// The state of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The version of gpu-vmm that runs.
    pub version: String,
    /// The vendor of its memory.
    pub vendor: String,
    /// Its process.
    pub process: u32,
    /// The memory that it holds or has promised, in bytes.
    pub held: u64,
    /// The part of it that is in no region any more and that clients still use, in bytes.
    pub old: u64,
    /// Its budget, in bytes.
    pub budget: Option<u64>,
    /// The number of connected clients, this one included.
    pub clients: u32,
}
