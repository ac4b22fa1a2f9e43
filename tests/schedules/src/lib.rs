//! Runs the pool under random schedules of its threads and of a simulated device.
//!
//! The device works in logical time: streams are queues of kernels, and a thread of the schedule completes one after the
//! other. Each kernel uses a range of addresses. The machine knows which physical memory lies there, and panics if memory is
//! unmapped or handed out while a kernel that does not come before is still to use it.
//!
//! Everything is built with `--cfg shuttle`, so that the pool's own locks are places where another thread may go on.
//!
//! | file | subject |
//! |---|---|
//! | `machine` | streams, kernels, captures, and which work uses which memory |
//! | `backend` | a backend over host memory whose streams are the machine's |
//! | `event`, `fence`, `reservation` | its events and fences, and its addresses |
//! | `chance` | calls that fail by chance |
//! | `scenario` | what the threads of a schedule do |
//! | `run` | schedules by their seeds |

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test, and its panics are what it finds

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
