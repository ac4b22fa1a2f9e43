//! The objects of contexts that a program has handles of, but for streams, which `work` has.

use crate::code::{Answer, Code};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Instant;

/// A task. A graph can execute it any number of times.
pub(crate) type Job = Arc<dyn Fn() -> Answer + Send + Sync>;

/// A position in a stream: reached when the stream has completed this number of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) stream: usize,
    pub(crate) number: u64,
}

pub(crate) struct Context {
    pub(crate) device: usize,
    /// The error that ended it: every call that needs the context returns it.
    pub(crate) failed: Option<Code>,
    /// Its default stream.
    pub(crate) default: usize,
    /// The number of times that the device's primary context is retained; 0 for a context that the program created.
    pub(crate) retained: usize,
}

pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) flags: u32,
    pub(crate) recorded: Option<Ticket>,
    /// The capture, and thus the graph, in which it was last recorded.
    pub(crate) captured: Option<usize>,
    pub(crate) time: Arc<OnceLock<Instant>>,
}

/// A kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: usize,
}

pub(crate) struct Module {
    pub(crate) context: usize,
    pub(crate) entries: Vec<Entry>,
}

pub(crate) struct Function {
    pub(crate) context: usize,
    pub(crate) module: usize,
    pub(crate) entry: Entry,
}

/// A capture that has begun.
pub(crate) struct Capture {
    /// Unique among captures.
    pub(crate) name: usize,
    pub(crate) mode: u32,
    pub(crate) by: ThreadId,
    pub(crate) is_spoilt: bool,
    /// The queued work.
    pub(crate) nodes: Vec<Job>,
}
