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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_names_its_file() {
        let path = || "a.snap".to_owned();
        let rows = [
            (
                SnapshotError::Invalid { path: path(), at: 4711, what: "the sum differs".to_owned() },
                ": the sum differs (at byte 4711)",
            ),
            (
                SnapshotError::Newer { path: path(), version: 12, newest: 3 },
                "version 12; this library reads up to 3",
            ),
        ];
        for (error, word) in rows {
            assert_eq!(error.kind(), ErrorKind::File);
            let text = error.to_string();
            assert!(text.starts_with("a.snap ") && text.contains(word), "{text}");
        }
    }
}
