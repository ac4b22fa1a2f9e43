//! For cubecl 0.11.

use cubecl_server;
// One source for the types of both versions.
#[allow(clippy::duplicate_mod)]
#[path = "shared/mod.rs"]
mod shared;
pub use shared::{Addresses, PoolMemory, PoolResource, PoolStorage};
