//! The errors of a bad trace, and of a replay that cannot continue.

use gpu_vmm_core::{Bytes, Error};
use std::io;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file does not exist, is not permitted, or is damaged.
    #[error("the trace {name} cannot be read{}: {}", after(*.line), reason(.source))]
    Unreadable {
        /// The file.
        name: String,
        /// The number of lines that could be read.
        line: u32,
        /// The error of the system or the decompression.
        source: io::Error,
    },
    /// An invalid line.
    #[error("the trace {name}, line {line}: {wrong}")]
    Line {
        /// The file.
        name: String,
        /// The line, counted from 1.
        line: u32,
        /// The fault in it.
        wrong: Wrong,
    },
    /// A pickle that is damaged, or that is not data alone.
    #[error("the trace {name}, byte {byte}: {why}")]
    Byte {
        /// The file.
        name: String,
        /// The place in it, decompressed, counted from 0.
        byte: u64,
        /// The fault.
        why: String,
    },
    /// A pickle that is no memory snapshot, or that has not the fields of one.
    #[error("the memory snapshot {name}: {wrong}")]
    Snapshot {
        /// The file.
        name: String,
        /// The fault in it.
        wrong: Wrong,
    },
    /// A file of a format that is no trace.
    #[error("the trace {name} is {found}; {FORMATS}")]
    Format {
        /// The file.
        name: String,
        /// What it is.
        found: &'static str,
    },
    /// A device of the recorded program was chosen, but the trace names none.
    #[error("the trace {0} is of one device; --recorded-device is for memory snapshots of PyTorch")]
    NoDevices(String),
    /// A trace without an allocation.
    #[error("the trace {0} has no allocation; {EVENTS}")]
    Empty(String),
}

pub(crate) const EVENTS: &str =
    "a line is `a ID BYTES STREAM` (allocate), `f ID` (free) or `r ID` (may be used again)";

pub(crate) const FORMATS: &str =
    "expected lines `a ID BYTES STREAM`, a pickle of torch.cuda.memory._dump_snapshot, or a log of RMM";

fn after(line: u32) -> String {
    if line == 0 { String::new() } else { format!(" after line {line}") }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends in the middle of its compressed data".to_owned(),
        _ => error.to_string(),
    }
}

/// The fault in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the texts say it
pub enum Wrong {
    #[error("`{text}` is not an event: {why}; {EVENTS}")]
    NotAnEvent { text: String, why: String },
    #[error("`a {id}` allocates 0 bytes; an allocation has at least one")]
    Nothing { id: u64 },
    #[error(
        "`a {id}`: block {id} was allocated at line {before} already; each allocation must have its own ID"
    )]
    AllocatedTwice { id: u64, before: u32 },
    #[error("`{event} {id}`: no block {id} was allocated before")]
    Unknown { event: char, id: u64 },
    #[error("`f {id}`: block {id} was freed at line {before} already")]
    FreedTwice { id: u64, before: u32 },
    #[error("`r {id}`: block {id} of line {allocated} is not freed yet; `f {id}` comes before `r {id}`")]
    InUse { id: u64, allocated: u32 },
    #[error("`r {id}`: block {id} was released for reuse at line {before} already")]
    ReadyTwice { id: u64, before: u32 },
    #[error("the blocks that are allocated here are more than 2^64 - 1 bytes together")]
    TooMuch,
    #[error("`{text}` is not a row of RMM's log: {why}")]
    NotARow { text: String, why: String },
    #[error("{0}")]
    Layout(String),
    #[error("there are more than {limit} {what}")]
    TooMany { limit: u64, what: &'static str },
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// An allocation that failed.
    #[error(
        "allocation {number} of {of}: {bytes} on stream {stream}, with {live} asked for before it{}: {source}",
        thread.map(|thread| format!(" by thread {thread}")).unwrap_or_default()
    )]
    Allocate {
        /// The number of the allocation in the trace.
        number: u64,
        /// The number of allocations.
        of: u64,
        /// The requested size.
        bytes: Bytes,
        /// The stream's number in the trace.
        stream: u64,
        /// The size of all blocks of this thread at that time.
        live: Bytes,
        /// The thread's number, if there are several.
        thread: Option<usize>,
        /// The cause.
        source: Box<Self>,
    },
    /// An error of the pool or the driver.
    #[error(transparent)]
    Pool(#[from] Error),
    /// A thread that panicked.
    #[error("thread {0} of the replay panicked")]
    Panicked(usize),
    /// A thread that could not be started.
    #[error("thread {0} of the replay cannot be started: {1}")]
    NoThread(usize, io::Error),
    /// Another thread failed first.
    #[error("another thread failed")]
    Stopped,
}
