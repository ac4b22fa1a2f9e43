//! Regions in a file, from which they come back in another process.
//!
//! A snapshot is written beside its target and takes the target's name when all of it is on the disk: whatever happens
//! meanwhile, under that name there is a whole snapshot, the old one or the new one. Everything in it has a checksum.
//! What each byte of the file is, `docs/guide/snapshot-format.md` says.
//!
//! | file | subject |
//! |---|---|
//! | `description` | what a snapshot says of its regions |
//! | `check` | what a description must be like |
//! | `records` | the description as bytes |
//! | `format` | the parts of the file that have a fixed size |
//! | `disk` | what is asked of the system |
//! | `write` | writing a snapshot |
//! | `parts` | what is read of a file, and believed |
//! | `file` | an opened snapshot, and its blocks |
//! | `verify` | reading all of it |
//! | `capture` | regions written to a snapshot |
//! | `options` | how a snapshot is to be restored |
//! | `plan`, `planned` | what is to be made of it here, worked out and checked |
//! | `merge` | pieces that are smaller than the target's unit |
//! | `restore` | regions made again |
//! | `error` | what can be wrong with a file, or with restoring it here |
//! | `chunks` | which bytes that come through the ring are which of the file's |

mod capture;
mod check;
mod chunks;
mod description;
mod disk;
mod error;
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
mod records;
mod restore;
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use capture::Snapshot;
pub use description::{
    Description, DeviceRecord, Earlier, MappingRecord, MemoryRecord, RegionRecord, SnapshotId,
};
pub use error::SnapshotError;
pub use file::SnapshotFile;
pub use format::VERSION;
pub use options::Restore;
pub use restore::Restored;
pub use write::{SnapshotWriter, WriteOptions};

use gpu_vmm_core::Bytes;

/// What the blocks of a snapshot came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotStats {
    /// The bytes of all memory, as it is on the devices.
    pub contents: Bytes,
    /// The bytes of the file.
    pub file: Bytes,
    /// How many blocks there are.
    pub blocks: u64,
    /// How many of them are zeros, and are left out.
    pub zero: u64,
    /// How many are in an earlier snapshot, and are left out.
    pub unchanged: u64,
    /// How many are in the file.
    pub stored: u64,
    /// How many of those in the file are compressed.
    pub compressed: u64,
}
