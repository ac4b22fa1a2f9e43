//! Errors of a snapshot's file.

use gpu_vmm_core::extend::ExtensionError;
use gpu_vmm_core::{AddressRange, DeviceId, DeviceUuid, ErrorKind};

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
    /// The addresses of a region are in use, and it may not lie elsewhere.
    #[error(
        "{path}: region {region}{} was at {was}, which {} uses now; free the addresses; regions that are not a pool's can also be restored \
         elsewhere, with `relocate`",
        tagged(tag), user.as_deref().unwrap_or("other code")
    )]
    AddressTaken {
        /// The path of the file.
        path: String,
        /// The number of the region in the file, from zero on.
        region: usize,
        /// Its tag; empty if it has none.
        tag: String,
        /// The addresses.
        was: AddressRange,
        /// What is mapped there, as the kernel names it: a file, `[heap]`, or memory without a name. `None` if that is unknown.
        user: Option<String>,
    },
    /// The file is a snapshot of regions, without the blocks of a pool.
    #[error("{path} is a snapshot of regions and not of a pool; restore it with `Restore::regions`")]
    NotAPool {
        /// The path of the file.
        path: String,
    },
    /// The target has no device with the UUID of a device in the snapshot.
    #[error(
        "no device here is {device} of the snapshot ({name}, UUID {uuid}); map that one to another device"
    )]
    NoSuchDevice {
        /// The device's ordinal in the snapshot.
        device: DeviceId,
        /// The driver's name of the device.
        name: String,
        /// The UUID.
        uuid: DeviceUuid,
    },
}

fn tagged(tag: &str) -> String {
    if tag.is_empty() { String::new() } else { format!(" {tag:?}") }
}

impl ExtensionError for SnapshotError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } | Self::Newer { .. } | Self::NotAPool { .. } => ErrorKind::File,
            Self::AddressTaken { .. } => ErrorKind::AddressTaken,
            Self::NoSuchDevice { .. } => ErrorKind::NoSuchDevice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_core::{Address, Bytes};

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
            (SnapshotError::NotAPool { path: path() }, "of regions and not of a pool"),
        ];
        for (error, word) in rows {
            assert_eq!(error.kind(), ErrorKind::File);
            let text = error.to_string();
            assert!(text.starts_with("a.snap ") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn taken_addresses_name_their_region_and_user() {
        let was = AddressRange { base: Address(0x7000_0000), size: Bytes::mib(4) };
        let text = |tag: &str, user: Option<&str>| {
            let (tag, user) = (tag.to_owned(), user.map(str::to_owned));
            let error = SnapshotError::AddressTaken { path: "a.snap".to_owned(), region: 3, tag, was, user };
            assert_eq!(error.kind(), ErrorKind::AddressTaken);
            error.to_string()
        };
        let known = text("weights", Some("/lib/libc.so"));
        assert!(known.starts_with("a.snap: region 3 \"weights\" was at "), "{known}");
        for word in ["4 MiB", "0x70000000", ", which /lib/libc.so uses now", "`relocate`"] {
            assert!(known.contains(word), "{known}");
        }
        let unknown = text("", None);
        assert!(unknown.contains("region 3 was at ") && unknown.contains("other code uses"), "{unknown}");
    }
}
