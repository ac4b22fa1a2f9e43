//! Replays the allocations and frees of a real program on a pool of [gpu-vmm](https://docs.rs/gpu-vmm) or on the driver
//! itself, and measures the memory that this holds and the time that it takes.
//!
//! # A trace
//!
//! Lines of text, compressed by gzip or not. `a ID BYTES STREAM` allocates a block. `f ID`: the owner frees it. `r ID`: it
//! may be reused, since the streams that used it have finished. Each allocation has its own ID; the default stream is 0.
//! Empty lines and lines that begin with `#` are ignored.
//!
//! If `r` follows its `f` at once, or a trace has no `r` at all, the block is freed for immediate reuse. Otherwise `f` frees
//! it behind a fence, which completes at `r`, or at the end of the round if there is no `r`.
//!
//! Memory snapshots of PyTorch and logs of RMM are traces as well: see [`Recording`].

mod allocator;
mod asked;
mod builder;
mod error;
mod event;
mod fences;
mod input;
mod over_time;
mod parse;
mod pickle;
mod pytorch;
mod recording;
mod replay;
mod report;
mod rmm;
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
pub use over_time::{Moment, over_time};
pub use recording::Recording;
pub use replay::{Options, Progress, replay};
pub use report::{CallTimes, Outcome, Round};
pub use streams::Streams;
