//! A server in a process of its own, and clients in others, on host memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod budget;
mod epochs;
mod failures;
mod files;
mod handover;
mod kills;
mod lease;
mod programs;
mod programs_killed;
mod programs_threads;
mod rights;
mod support;
mod writers_killed;
mod wrong;
