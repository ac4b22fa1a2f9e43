//! The file behind all physical memory of a backend that is not shareable.
//!
//! All handles use one sparse memfd instead of one each: a hundred thousand handles then need one descriptor, where a process has
//! 1024 by default. Pieces that are adjacent in the file and in the addresses share one kernel mapping, of which a process has
//! 65530 by default. Releasing a piece punches a hole: its pages return to the machine, and the next owner of the same part reads
//! zeros.

use crate::extents::Extents;
use crate::share::new_file;
use gpu_vmm_core::extend::files::check_size;
use gpu_vmm_core::extend::system::answer;
use gpu_vmm_core::{Bytes, DriverError};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A sparse file and its free extents.
#[derive(Debug)]
pub(crate) struct Store {
    file: OwnedFd,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    extents: Extents,
    /// The length of the file. It never shrinks, which costs nothing.
    length: u64,
}

impl Store {
    pub(crate) fn open() -> Result<Self, DriverError> {
        Ok(Self { file: new_file(MemfdFlags::empty(), Bytes::ZERO)?, parts: Mutex::default() })
    }

    /// Takes `size` bytes that read as zero, and returns their offset in the file.
    pub(crate) fn take(&self, size: Bytes) -> Result<u64, DriverError> {
        let mut parts = self.parts();
        let offset = parts.extents.take(size.0).ok_or_else(|| answer("ftruncate", Errno::FBIG))?;
        let end = parts.extents.end();
        if end > parts.length {
            if let Err(errno) = check_size(end).and_then(|()| ftruncate(&self.file, end)) {
                parts.extents.give_back(offset, size.0);
                return Err(answer("ftruncate", errno));
            }
            parts.length = end;
        }
        Ok(offset)
    }

    /// Returns the pages to the machine and marks the part as free. If the kernel does not take the pages, the part stays in use,
    /// since it would not read as zero.
    pub(crate) fn give_back(&self, offset: u64, size: Bytes) -> Result<(), DriverError> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| fallocate(&self.file, punch, offset, size.0))
            .map_err(|errno| answer("fallocate", errno))?;
        self.parts().extents.give_back(offset, size.0);
        Ok(())
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
