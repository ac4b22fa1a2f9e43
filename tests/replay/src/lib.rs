//! Replays what a real program has allocated and freed, on a pool of [gpu-vmm](https://docs.rs/gpu-vmm) or on the driver
//! itself, and measures how much memory that holds and how long it takes.
//!
//! | file | subject |
//! |---|---|
//! | `event` | a trace, ready to be replayed: every decision is made before anything is timed |
//! | `parse`, `input`, `error` | how it is read, from a file or a stream, compressed or not, and what is said of a bad one |
//! | `synthetic` | traces that are made, always the same from the same seed |
//! | `allocator`, `fences`, `streams` | who serves the allocations, and what they are served with |
//! | `watch`, `asked`, `times` | what is looked at in a round: nothing, the memory asked for, the time of each call |
//! | `round`, `worker`, `replay`, `report` | one thread's pass, all of its passes, all threads, and what came of it |
//!
//! # A trace
//!
//! Lines of text, compressed by gzip or not. `a ID BYTES STREAM` allocates; `f ID`: the owner frees; `r ID`: the block may be
//! used again, since the streams that used it are done. Each allocation has an ID of its own; the default stream is 0. Empty
//! lines and those that begin with `#` say nothing.
//!
//! Where `r` follows its `f` at once, or a trace has no `r` at all, the block is freed and no more. Else it is freed at `f` to
//! be used again when a fence is done, which it is at `r`; one that has no `r` is done when the round ends.

mod allocator;
mod asked;
mod error;
mod event;
mod fences;
mod input;
mod parse;
mod replay;
mod report;
mod round;
mod streams;
pub mod synthetic;
mod times;
mod watch;
mod worker;

pub use allocator::{Allocator, Held, Plain, Pooled};
pub use error::{ReplayError, TraceError, Wrong};
pub use event::Trace;
pub use fences::TraceFence;
pub use replay::{Options, Progress, replay};
pub use report::{CallTimes, Outcome, Round};
pub use streams::Streams;
