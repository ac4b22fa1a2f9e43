//! For cubecl 0.12.0-pre.1.

use cubecl_server_0_12 as cubecl_server;
// One source for the types of both versions.
#[allow(clippy::duplicate_mod)]
#[path = "shared/mod.rs"]
mod shared;
pub use shared::{Addresses, PoolMemory, PoolResource, PoolStorage};
