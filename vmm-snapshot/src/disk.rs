//! System calls: a temporary file next to the target that one writer has at a time, and reads and writes at an offset.

use gpu_vmm_core::extend::files::{failed, read_exact_at, start_writing, write_all_at};
use gpu_vmm_core::{Operation, Result};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The destination of a snapshot. Tests use one that fails.
pub(crate) trait Destination: Send + Sync + std::fmt::Debug {
    /// Writes all bytes at an offset of the file.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the system write the file to the disk.
    fn sync(&self) -> io::Result<()>;
    /// Renames the file to the target's name.
    fn publish(&self) -> io::Result<()>;
    /// Makes the system write the name to the disk.
    fn sync_folder(&self) -> io::Result<()>;
    /// Removes the file, if possible.
    fn discard(&self);
}

/// A source of bytes.
pub(crate) trait ReadAt {
    /// Fills all of `bytes` from `offset` on; [`io::ErrorKind::UnexpectedEof`] if the source is shorter.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_exact_at(self, bytes, offset)
    }
}

/// A temporary file next to its target.
#[derive(Debug)]
pub(crate) struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

/// Returns the name of the temporary file for a target. It is hidden, and always the same, so that the next writer overwrites the
/// file that a killed process has left.
pub(crate) fn temporary_of(target: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(target.file_name()?);
    name.push(".partial");
    Some(target.with_file_name(name))
}

/// Returns whether two paths lead to one file, for example by links or on a file system that ignores case.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| real(other) == Some(one))
}

impl Temporary {
    /// Creates the temporary file of a target, empty and locked for this writer.
    pub(crate) fn create(operation: Operation, target: &Path) -> Result<Self> {
        let refused = |path: &Path, kind, why: &'static str| {
            failed(operation, "open", path, &io::Error::new(kind, why))
        };
        let Some(path) = temporary_of(target) else {
            return Err(refused(target, io::ErrorKind::InvalidInput, "a snapshot needs a file name"));
        };
        match fs::symlink_metadata(target) {
            Ok(found) if !found.is_file() => {
                let why = "the path is not a regular file, and is not replaced";
                return Err(refused(target, io::ErrorKind::AlreadyExists, why));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(operation, "stat", target, &error));
            }
            _ => {}
        }
        // Another writer may rename or remove the file between opening and locking. The locked file then no longer has the name.
        loop {
            let file = open_alone(&path).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let why = "another process, or another writer of this one, is writing this snapshot";
                    failed(operation, "lock", &path, &io::Error::new(error.kind(), why))
                }
                _ => failed(operation, "open", &path, &error),
            })?;
            let metadata = file.metadata().map_err(|error| failed(operation, "stat", &path, &error))?;
            if !metadata.is_file() {
                return Err(refused(&path, io::ErrorKind::AlreadyExists, "the path is not a regular file"));
            }
            if is_linked(&metadata) {
                let why = "the file has other names (hard links) and would be overwritten";
                return Err(refused(&path, io::ErrorKind::AlreadyExists, why));
            }
            if has_name(&metadata, &path) {
                file.set_len(0).map_err(|error| failed(operation, "truncate", &path, &error))?;
                keep_private(&file, target).map_err(|error| failed(operation, "fchmod", &path, &error))?;
                return Ok(Self { file, path, target: target.to_owned() });
            }
        }
    }
}

impl Destination for Temporary {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_all_at(&self.file, bytes, offset)?;
        let ready = ready_after(offset, bytes.len() as u64);
        if !ready.is_empty() {
            start_writing(&self.file, ready.start, ready.end - ready.start);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn publish(&self) -> io::Result<()> {
        // The new snapshot gets the permissions of the one that it replaces.
        if let Ok(found) = fs::metadata(&self.target) {
            self.file.set_permissions(found.permissions())?;
        }
        fs::rename(&self.path, &self.target)
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_folder(folder_of(&self.target))
    }

    fn discard(&self) {
        // If it stays, the next writer overwrites it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The size of the steps in which the file is written to the disk.
const STEP: u64 = 16 << 20;

/// Returns the range that should be on its way to the disk when a write ends, so that the last wait is short: the step before each
/// one that the write completes, since other threads may still write to the step itself.
fn ready_after(offset: u64, length: u64) -> Range<u64> {
    let before = |offset: u64| (offset / STEP).saturating_sub(1) * STEP;
    before(offset)..before(offset + length)
}

/// Returns the folder that contains a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
mod system {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    use std::fs::{Metadata, Permissions};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

    /// Opens a file for writing, or creates it, and locks it. Returns [`io::ErrorKind::WouldBlock`] if another writer has locked
    /// it.
    pub(in super::super) fn open_alone(path: &Path) -> io::Result<File> {
        // Another user's link must not be followed, and opening a pipe must not block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags)
            .open(path)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Opens a file for reading; opening a pipe does not block.
    pub(in super::super) fn open_to_read(path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    /// Returns whether the path still leads to the opened file.
    pub(in super::super) fn has_name(opened: &Metadata, path: &Path) -> bool {
        let same = |named: Metadata| (named.dev(), named.ino()) == (opened.dev(), opened.ino());
        fs::symlink_metadata(path).is_ok_and(same)
    }

    /// Sets the target's permissions on the file, so that no other user can read the new contents. The owner can always write it,
    /// so that a later writer can use the file if this one is killed.
    pub(in super::super) fn keep_private(file: &File, target: &Path) -> io::Result<()> {
        match fs::metadata(target) {
            Ok(found) => file.set_permissions(Permissions::from_mode(found.mode() & 0o777 | 0o600)),
            Err(_) => Ok(()),
        }
    }

    /// Returns whether the opened file has other names (hard links).
    pub(in super::super) fn is_linked(opened: &Metadata) -> bool {
        opened.nlink() > 1
    }

    pub(in super::super) fn sync_folder(folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

#[cfg(windows)]
mod system {
    use super::*;
    use std::fs::Metadata;
    use std::os::windows::fs::OpenOptionsExt;

    /// The sharing mode: other processes may rename and remove the file (`FILE_SHARE_DELETE`), as its own writer does.
    const SHARE_DELETE: u32 = 4;
    /// `ERROR_SHARING_VIOLATION`.
    const SHARING_VIOLATION: i32 = 32;

    /// Opens a file for writing, or creates it. Returns [`io::ErrorKind::WouldBlock`] if another writer has it open.
    pub(in super::super) fn open_alone(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).share_mode(SHARE_DELETE);
        options.open(path).map_err(|error| match error.raw_os_error() {
            Some(SHARING_VIOLATION) => io::ErrorKind::WouldBlock.into(),
            _ => error,
        })
    }

    pub(in super::super) fn open_to_read(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    /// On Windows opening also locks.
    pub(in super::super) fn has_name(_: &Metadata, _: &Path) -> bool {
        true
    }

    /// A new file inherits its folder's permissions.
    pub(in super::super) fn keep_private(_: &File, _: &Path) -> io::Result<()> {
        Ok(())
    }

    /// The standard library does not report links here.
    pub(in super::super) fn is_linked(_: &Metadata) -> bool {
        false
    }

    /// A folder cannot be synced on Windows; the file system's journal covers renames.
    pub(in super::super) fn sync_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) use system::open_to_read;
use system::{has_name, is_linked, keep_private, open_alone, sync_folder};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_written_one_behind() {
        let block = 1 << 20;
        let header = 64;
        let ranges = (0..100).map(|number| ready_after(header + number * block, block));
        let ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        assert_eq!(ranges.len(), 100 / 16 - 1);
        assert_eq!(ranges[0], 0..STEP);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(ready_after(STEP, 4 * STEP), 0..4 * STEP, "a large block");
        assert!(ready_after(0, 64).is_empty());
    }

    /// Another writer may rename or replace the file after this one has opened it.
    #[cfg(unix)]
    #[test]
    fn only_opened_file_has_the_name() {
        let folder = crate::tests::Folder::new("names");
        let (path, published) = (folder.file("a"), folder.file("b"));
        let opened = open_alone(&path).unwrap().metadata().unwrap();
        assert!(has_name(&opened, &path));
        fs::rename(&path, &published).unwrap();
        assert!(!has_name(&opened, &path), "no file has the name");
        fs::write(&path, b"").unwrap();
        assert!(!has_name(&opened, &path), "another file has the name");
        assert!(has_name(&opened, &published));
    }
}
