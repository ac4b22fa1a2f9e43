//! The stores that contents reach through a staging ring: ordinary memory and files.
#![allow(unsafe_code)]

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

pub(super) use pages::Pages;

#[cfg(unix)]
mod pages {
    use super::Store;
    use crate::types::{Bytes, Operation, Result, system};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ffi::c_void;

    /// Pages mapped directly from the operating system, so that dropping them returns them to it and not to a heap.
    #[derive(Debug)]
    pub(crate) struct Pages {
        start: *mut u8,
        length: Bytes,
    }

    // SAFETY: this value owns the pages, and no two threads get the same range of them.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    impl Pages {
        pub(crate) fn new(operation: Operation, length: Bytes) -> Result<Self> {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let size = length.to_usize().unwrap_or(usize::MAX);
            // SAFETY: the call maps new pages at an address that the system chooses.
            let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, MapFlags::PRIVATE) };
            let start =
                mapped.map_err(|errno| system::failed(operation, "mmap", errno, format_args!("{length}")))?;
            #[cfg(target_os = "linux")]
            // SAFETY: the call only advises on the new pages. Large pages save page faults; the system may refuse them.
            let _ = unsafe { rustix::mm::madvise(start, size, rustix::mm::Advice::LinuxHugepage) };
            Ok(Self { start: start.cast(), length })
        }

        /// Returns the address of a range, or `None` if it exceeds the pages.
        fn part(&self, at: Bytes, length: usize) -> Option<*mut u8> {
            let end = at.checked_add(Bytes(length as u64))?;
            (end <= self.length).then(|| self.start.wrapping_add(at.0 as usize))
        }
    }

    impl Store for Pages {
        fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
            let to = self.part(at, bytes.len()).ok_or_else(|| super::outside(at))?;
            // SAFETY: the range is inside the pages, and no other thread uses it until the ring has finished.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(())
        }

        fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
            let from = self.part(at, bytes.len()).ok_or_else(|| super::outside(at))?;
            // SAFETY: as above; no thread writes to a range that is being read.
            unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            Ok(())
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: this value owns the pages. If the call fails, the pages leak.
            let _ = unsafe { munmap(self.start.cast::<c_void>(), self.length.0 as usize) };
        }
    }
}

#[cfg(not(unix))]
mod pages {
    use super::Store;
    use crate::types::{Bytes, Detail, DriverError, Error, Operation, Result};
    use std::io;
    use std::sync::{PoisonError, RwLock};

    /// Memory from the heap, which returns large allocations to the operating system.
    #[derive(Debug)]
    pub(crate) struct Pages(RwLock<Vec<u8>>);

    impl Pages {
        pub(crate) fn new(operation: Operation, length: Bytes) -> Result<Self> {
            let no_memory = || {
                let source = DriverError::system("allocate", &io::ErrorKind::OutOfMemory.into());
                Error::new(operation, Detail::Driver { source, context: length.to_string() })
            };
            let size = length.to_usize().ok_or_else(no_memory)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size).map_err(|_| no_memory())?;
            bytes.resize(size, 0);
            Ok(Self(RwLock::new(bytes)))
        }
    }

    impl Store for Pages {
        fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let to = all.get_mut(at.0 as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
            to.ok_or_else(|| super::outside(at))?.copy_from_slice(bytes);
            Ok(())
        }

        fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
            let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let from = all.get(at.0 as usize..).and_then(|rest| rest.get(..bytes.len()));
            bytes.copy_from_slice(from.ok_or_else(|| super::outside(at))?);
            Ok(())
        }
    }
}

fn outside(at: Bytes) -> Error {
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
