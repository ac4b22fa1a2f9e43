//! Descriptors of memory for callers, and the one that ROCr of 7.14 keeps.
#![allow(unsafe_code)] // numbers that a caller may have closed

use crate::abi::Status;
use crate::settings::settings;
use rustix::fs::fstat;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// Duplicates a descriptor.
pub(crate) fn duplicate(file: BorrowedFd<'_>) -> Result<OwnedFd, Status> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| Status::OUT_OF_RESOURCES)
}

/// The descriptor that ROCr of 7.14 makes with memory, returns from every export, and closes with the memory. It is a number:
/// a caller that closes it takes it from the runtime, which later closes the descriptor that has this number by then.
#[derive(Debug)]
pub(super) struct KeptDescriptor(RawFd);

impl KeptDescriptor {
    /// Returns the descriptor of new memory if the setting is on.
    pub(super) fn as_set(file: BorrowedFd<'_>) -> Result<Option<Self>, Status> {
        let kept = settings().keeps_descriptors.then(|| duplicate(file)).transpose()?;
        Ok(kept.map(|kept| Self(kept.into_raw_fd())))
    }

    pub(super) const fn number(&self) -> RawFd {
        self.0
    }

    /// Returns whether the number is still a descriptor of a file.
    pub(super) fn is_of(&self, file: BorrowedFd<'_>) -> bool {
        // SAFETY: integers, for which zero is a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel refuses a number that is not open, and writes one structure otherwise.
        let is_open = unsafe { libc::fstat(self.0, &raw mut stat) } == 0;
        is_open && fstat(file).is_ok_and(|file| file.st_ino == stat.st_ino)
    }
}

impl Drop for KeptDescriptor {
    fn drop(&mut self) {
        // SAFETY: a number, which the simulated runtime takes for its own.
        unsafe { libc::close(self.0) };
    }
}
