//! Asynchronous work: queues and copy engines, and the signals by which they wait for each other.

pub mod copy;
pub mod handler;
mod packets;
pub mod profiling;
pub mod queue;
pub mod signal;
mod waiting;

pub(crate) use waiting::{now, wait_until, wake};
