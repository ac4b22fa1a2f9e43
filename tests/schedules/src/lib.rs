//! Runs the pool under random schedules of its threads and of a simulated device.
//!
//! The device works in logical time: streams are queues of kernels, and a thread of the schedule completes one after the
//! other. Each kernel uses a range of addresses. The machine knows the physical memory behind them. It panics if memory is
//! unmapped or handed out although a kernel that is not ordered before still uses it.
//!
//! Everything is built with `--cfg shuttle`, so that the pool's own locks are points at which the scheduler may switch
//! threads.

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test, which reports errors as panics

mod backend;
mod chance;
mod event;
mod fence;
mod machine;
mod reservation;
mod run;
mod scenario;

pub use chance::Chance;
pub use run::run;
pub use scenario::{Doing, Scenario};
