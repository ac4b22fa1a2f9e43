//! What can be wrong with a snapshot's file.

use gpu_vmm_core::ErrorKind;
use gpu_vmm_core::extend::ExtensionError;

/// What is behind an error of a snapshot's file. [`Error::extension`](gpu_vmm_core::Error::extension) returns it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A file that is no snapshot, or is one no more.
    #[error("{path} is not a valid snapshot: {what} (at byte {at})")]
    Invalid {
        /// Which file.
        path: String,
        /// Where in the file.
        at: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A snapshot of a version that this library does not know.
    #[error("{path} is a snapshot of version {version}; this library reads up to {newest}")]
    Newer {
        /// Which file.
        path: String,
        /// The file's version.
        version: u32,
        /// The newest that is known.
        newest: u32,
    },
}

impl ExtensionError for SnapshotError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::File
    }
}
