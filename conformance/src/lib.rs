//! The conformance suite of [gpu-vmm](https://docs.rs/gpu-vmm): what each driver of virtual memory really does, and what
//! gpu-vmm makes of it.
//!
//! | file | subject |
//! |---|---|
//! | `suite`, `case`, `target`, `targets`, `subject` | what there is to run, on what |
//! | `library` | the cases of the library layer: what gpu-vmm promises, the same on every backend |
//! | `driver` | the rules of the driver layer: raw calls beside what the documentation says |
//! | `run`, `work`, `fork_server`, `peer` | running them in processes that may die of them |
//! | `leaks`, `counts`, `fake_driver` | what a case has left behind |
//! | `outcome`, `panics`, `report` | verdicts, panics as verdicts, and the report |
//!
//! Everything is generic over the backend, so that the suite runs with any that implements gpu-vmm's traits; [`targets()`] are
//! those of gpu-vmm. The command `gpu-vmm conformance` and this crate's tests are its two users.

// Its processes are forked, and end with the one that has asked for them, as Linux alone can have it.
#![cfg(target_os = "linux")]
// A case says what does not hold by panicking.
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
