//! Memory between processes.

pub mod manifest;
#[allow(dead_code)]
mod message;
