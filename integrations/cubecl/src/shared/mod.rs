//! The types for one version of cubecl. These files are compiled once for each version.

use super::cubecl_server;

mod addresses;
mod errors;
mod memory;
mod modes;
mod report;
mod resource;
mod slots;
mod storage;

pub use addresses::Addresses;
pub use memory::PoolMemory;
pub use resource::PoolResource;
pub use storage::PoolStorage;
