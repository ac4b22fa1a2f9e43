//! For cubecl 0.12.0-pre.1.

use cubecl_server_0_12 as cubecl_server;
#[path = "storage.rs"]
mod storage;
pub use storage::{PoolResource, PoolStorage};
