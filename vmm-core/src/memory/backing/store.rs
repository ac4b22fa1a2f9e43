//! The stores that contents reach through a staging ring: ordinary memory and files.

use super::pages::Pages;
use crate::memory::files::{failed, read_exact_at, write_all_at};
use crate::types::{Bytes, Detail, Error, OffsetRange, Operation, Result};
use enum_dispatch::enum_dispatch;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream of bytes that several threads write and read, each in its own range.
#[enum_dispatch]
pub(super) trait Store {
    fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()>;

    fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()>;

    /// The largest number of bytes that should be written at a time.
    fn write_size(&self) -> Bytes {
        Bytes(u64::MAX)
    }

    /// Waits until the written data is stable.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// Any of the stores.
#[enum_dispatch(Store)]
#[derive(Debug)]
pub(super) enum AnyStore {
    Pages,
    File,
}

pub(super) fn outside(at: Bytes) -> Error {
    Error::new(
        Operation::KeepContents,
        Detail::OutOfRange { range: OffsetRange { offset: at, length: Bytes(1) }, limit: at },
    )
}

/// A file that the operating system deletes when this value is dropped or the process ends. It has no name, except on Windows.
#[derive(Debug)]
pub(super) struct File {
    operation: Operation,
    path: PathBuf,
    file: std::fs::File,
}

impl File {
    pub(super) fn new(operation: Operation, directory: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".gpu-vmm-{}-{number}.suspended", std::process::id()));
            match create(&path) {
                Ok(file) => return Ok(Self { operation, path, file }),
                // The file belongs to a process of another machine, or to one that was killed before it removed the name.
                Err((_, error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err((call, error)) => return Err(failed(operation, call, &path, &error)),
            }
        }
    }

    fn failed(&self, call: &'static str, error: &io::Error) -> Error {
        failed(self.operation, call, &self.path, error)
    }
}

#[cfg(unix)]
fn create(path: &Path) -> Result<std::fs::File, (&'static str, io::Error)> {
    use std::os::unix::fs::OpenOptionsExt;
    // Other users must not read the contents of a device's memory.
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // If the file system supports it, the file never has a name, so that no file can be left behind.
    #[cfg(target_os = "linux")]
    if let Some(Ok(file)) = path.parent().map(|folder| {
        let flags = libc::O_TMPFILE | libc::O_EXCL;
        options.clone().custom_flags(flags).open(folder)
    }) {
        return Ok(file);
    }
    let file = options.create_new(true).open(path).map_err(|error| ("open", error))?;
    match std::fs::remove_file(path) {
        // `NotFound`: another process has removed the name already.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(("unlink", error)),
        _ => Ok(file),
    }
}

#[cfg(windows)]
fn create(path: &Path) -> Result<std::fs::File, (&'static str, io::Error)> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    options.open(path).map_err(|error| ("CreateFile", error))
}

impl Store for File {
    fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
        write_all_at(&self.file, bytes, at.0).map_err(|error| self.failed("write", &error))
    }

    fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, bytes, at.0).map_err(|error| self.failed("read", &error))
    }

    fn settle(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.failed("fdatasync", &error))
    }
}
