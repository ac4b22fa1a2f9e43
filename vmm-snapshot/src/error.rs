//! Errors of a snapshot's file.

use gpu_vmm_core::ErrorKind;
use gpu_vmm_core::extend::ExtensionError;

/// An error of a snapshot's file, returned by [`Error::extension`](gpu_vmm_core::Error::extension).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file is not a snapshot, or is damaged.
    #[error("{path} is not a valid snapshot: {what} (at byte {at})")]
    Invalid {
        /// The path of the file.
        path: String,
        /// The offset in the file.
        at: u64,
        /// The problem found.
        what: String,
    },
    /// The snapshot has a version that this library does not know.
    #[error("{path} is a snapshot of version {version}; this library reads up to {newest}")]
    Newer {
        /// The path of the file.
        path: String,
        /// The file's version.
        version: u32,
        /// The newest version that this library reads.
        newest: u32,
    },
}

impl ExtensionError for SnapshotError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::File
    }
}
