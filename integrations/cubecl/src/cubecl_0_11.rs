//! For cubecl 0.11.

use cubecl_server;
#[path = "storage.rs"]
mod storage;
pub use storage::{PoolResource, PoolStorage};
