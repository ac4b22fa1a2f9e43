//! The file behind all physical memory of one backend that stays in this process.
//!
//! One sparse memfd for all, instead of one for each handle: a hundred thousand handles then need one descriptor,
//! where a process has 1024 by default. Pieces that lie behind each other in the file and in the addresses share one
//! mapping of the kernel's, of which a process has 65530 by default. A piece that is given back is punched out: its
//! pages go back to the machine, and whoever gets the same part next reads zeros.

use crate::extents::Extents;
use crate::share::new_file;
use gpu_vmm_core::extend::system::answer;
use gpu_vmm_core::{Bytes, DriverError};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A sparse file, and which parts of it are in use.
#[derive(Debug)]
pub(crate) struct Store {
    file: OwnedFd,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    extents: Extents,
    /// How long the file is; it never shrinks, which costs nothing.
    length: u64,
}

impl Store {
    pub(crate) fn open() -> Result<Self, DriverError> {
        Ok(Self { file: new_file(MemfdFlags::empty(), Bytes::ZERO)?, parts: Mutex::default() })
    }

    /// Takes `size` bytes that read as zero, and gives their offset in the file.
    pub(crate) fn take(&self, size: Bytes) -> Result<u64, DriverError> {
        let mut parts = self.parts();
        let offset = parts.extents.take(size.0).ok_or_else(|| answer("ftruncate", Errno::FBIG))?;
        let end = parts.extents.end();
        if end > parts.length {
            if let Err(errno) = ftruncate(&self.file, end) {
                parts.extents.give_back(offset, size.0);
                return Err(answer("ftruncate", errno));
            }
            parts.length = end;
        }
        Ok(offset)
    }

    /// Gives the pages back to the machine, and then the part to whoever asks next. Where the kernel does not take
    /// the pages the part stays in use, since it would not read as zero.
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
