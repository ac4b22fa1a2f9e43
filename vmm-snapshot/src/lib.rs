//! Snapshots: regions saved in a file and restored in another process.
//!
//! A snapshot is written to a temporary file, which is renamed to the target's name when it is completely on the disk. At any time
//! the target is a complete snapshot, the old or the new one. Everything in it has a checksum. `docs/guide/snapshot-format.md`
//! documents every byte of the file.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod capture;
mod check;
mod check_pool;
mod chunks;
mod description;
mod disk;
mod error;
#[doc(hidden)]
pub mod extend;
mod file;
mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod merge;
mod options;
mod parts;
mod plan;
mod planned;
mod pool;
mod records;
mod restore;
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use capture::Snapshot;
pub use description::{
    Description, DeviceRecord, EarlierSnapshot, MappingRecord, MemoryRecord, RegionRecord, SnapshotId,
};
pub use error::SnapshotError;
pub use file::SnapshotFile;
pub use format::VERSION;
pub use options::Restore;
pub use pool::{PoolBlockRecord, PoolRangeRecord, PoolRecord, PoolSpaceRecord};
pub use restore::Restored;
pub use write::{SnapshotWriter, WriteOptions};

use gpu_vmm_core::Bytes;

/// The statistics of a snapshot's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotStats {
    /// The size of all memory, uncompressed.
    pub contents: Bytes,
    /// The size of the file.
    pub file: Bytes,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of blocks of zeros, which are omitted.
    pub zero: u64,
    /// The number of blocks that an earlier snapshot holds, which are omitted.
    pub unchanged: u64,
    /// The number of blocks in the file.
    pub stored: u64,
    /// The number of blocks in the file that are compressed.
    pub compressed: u64,
}

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
