//! The conformance suite of [gpu-vmm](https://docs.rs/gpu-vmm). It records what each driver of virtual memory really does, and
//! checks what gpu-vmm guarantees on top of it.
//!
//! The suite is generic over the backend, so that it runs with any backend that implements gpu-vmm's traits; [`targets()`]
//! returns gpu-vmm's own. The command `gpu-vmm conformance` and this crate's tests use it.

// The suite forks its processes, and they end with the process that requested them. Only Linux supports that.
#![cfg(target_os = "linux")]
// A case reports a violation by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod case;
mod counts;
mod driver;
mod fake_driver;
mod fork_server;
mod leaks;
mod library;
mod outcome;
mod panics;
mod peer;
mod refusals;
pub mod report;
mod run;
mod subject;
mod suite;
mod target;
mod targets;
mod work;

pub use outcome::{Outcome, Verdict};
pub use run::Event;
pub use suite::{Item, Layer, Suite};
pub use target::Target;
pub use targets::targets;
