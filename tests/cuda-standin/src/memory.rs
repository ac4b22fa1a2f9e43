//! A piece of a device's memory: a memfd, which takes room only as far as it is written, and which other processes can
//! have. On hardware what a descriptor stands for is no file; nothing but this stand-in can import these.
#![allow(unsafe_code)] // borrows descriptors

use crate::pages::Pages;
use rustix::fs::{MemfdFlags, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const NAME: &str = "cuda-standin";

/// The file's inode: the same in every process, whatever the descriptor.
pub(crate) type Identity = u64;

/// Memory, and a byte of it.
pub(crate) type Place = (Arc<Memory>, u64);

pub(crate) struct Memory {
    file: OwnedFd,
    /// Where the stand-in itself has it.
    pages: Pages,
    pub(crate) identity: Identity,
    pub(crate) device: usize,
    pub(crate) size: u64,
    pub(crate) handle_types: u32,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
}

impl Memory {
    /// New memory, all zero.
    pub(crate) fn new(device: usize, size: u64) -> Result<Self, Errno> {
        Self::of_file(new_file(&device.to_string(), size)?, device)
    }

    /// The memory that a descriptor stands for, and nothing where it stands for something else.
    pub(crate) fn import(file: BorrowedFd<'_>) -> Option<Self> {
        let device = named(file)?.parse().ok()?;
        Self::of_file(duplicate(file).ok()?, device).ok()
    }

    fn of_file(file: OwnedFd, device: usize) -> Result<Self, Errno> {
        let status = fstat(&file)?;
        let size = status.st_size as u64;
        let pages = Pages::of_file(file.as_fd(), size)?;
        let identity = status.st_ino;
        Ok(Self { file, pages, identity, device, size, handle_types: 0, compression: 0, rdma: 0 })
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        duplicate(self.file.as_fd())
    }

    /// Where the stand-in finds a byte.
    pub(crate) fn pointer(&self, offset: u64) -> *mut u8 {
        self.pages.pointer().wrapping_add(offset as usize)
    }

    /// Whether this process has a descriptor of it beside this one.
    pub(crate) fn has_descriptor(&self) -> bool {
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return false };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let is_same = |number: &i32| {
            // SAFETY: the number was open a moment ago; if it is not any more, the call answers an error.
            let file = unsafe { BorrowedFd::borrow_raw(*number) };
            fstat(file).is_ok_and(|status| status.st_ino == self.identity && fcntl_get_seals(file).is_ok())
        };
        numbers.filter(is_same).count() > 1
    }
}

fn duplicate(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(file, 0)
}

/// A new memfd of the stand-in's.
pub(crate) fn new_file(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let file = memfd_create(format!("{NAME}-{name}"), MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size)?;
    Ok(file)
}

/// The name that a descriptor's memfd was made with, if it is one of the stand-in's.
pub(crate) fn named(file: BorrowedFd<'_>) -> Option<String> {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    // "/memfd:cuda-standin-1 (deleted)"
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?.strip_prefix('-')?;
    name.split(' ').next().map(ToOwned::to_owned)
}
