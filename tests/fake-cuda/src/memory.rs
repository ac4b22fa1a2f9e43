//! Memory of a device or the host: a memfd, which uses pages only once they are written, and which other processes can share.
//! On hardware a descriptor of memory is not a file; only this fake driver can import these.
#![allow(unsafe_code)] // borrows descriptors

use crate::c::{DEVICE_INVALID, Location, access, location};
use crate::pages::{self, Pages};
use crate::settings::settings;
use rustix::fs::{MemfdFlags, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

const NAME: &str = "fake-cuda";

/// The version that introduced the location of memory on a device that the process does not see.
const INVISIBLE_SINCE: u32 = 13_020;

/// The file's inode: the same in every process and for every descriptor.
pub(crate) type Identity = u64;

/// A byte in memory: the memory and an offset.
pub(crate) type Byte = (Arc<Memory>, u64);

/// The location of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    Device(usize),
    /// A NUMA node of the host.
    Node(i32),
    /// A device that this process does not see, such as one of another machine.
    Elsewhere(usize),
}

impl Home {
    /// Returns its device; `None` for memory of the host, or of a device that this process does not see.
    pub(crate) const fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) => Some(device),
            Self::Node(_) | Self::Elsewhere(_) => None,
        }
    }

    pub(crate) fn location(self) -> Location {
        match self {
            Self::Device(device) => Location { kind: location::DEVICE, id: device as i32 },
            Self::Node(node) => Location { kind: location::HOST_NUMA, id: node },
            Self::Elsewhere(_) if settings().version >= INVISIBLE_SINCE => {
                Location { kind: location::INVISIBLE, id: DEVICE_INVALID }
            }
            Self::Elsewhere(device) => Location { kind: location::DEVICE, id: device as i32 },
        }
    }
}

/// The properties with which memory was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) home: Home,
    /// The handle types for export; none for imported memory, which cannot be exported.
    pub(crate) handle_types: u32,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
}

impl Kind {
    /// The properties of a device's memory without special features.
    pub(crate) const fn of_device(device: usize) -> Self {
        Self { home: Home::Device(device), handle_types: 0, compression: 0, rdma: 0 }
    }

    /// The name of the file, from which another process reads these properties: `1.0.0.0`, the numbers of the location, the
    /// compression and RDMA.
    fn file_name(self) -> String {
        let Location { kind, id } = self.home.location();
        format!("{kind}.{id}.{}.{}", self.compression, self.rdma)
    }

    fn of_file_name(name: &str) -> Option<Self> {
        let numbers: Option<Vec<u8>> = name.split('.').map(|number| number.parse().ok()).collect();
        let [kind, id, compression, rdma] = numbers?[..] else { return None };
        let home = match u32::from(kind) {
            location::DEVICE => Home::Device(id.into()),
            location::HOST_NUMA => Home::Node(id.into()),
            _ => return None,
        };
        Some(Self { home, handle_types: 0, compression, rdma })
    }
}

pub(crate) struct Memory {
    file: OwnedFd,
    /// The fake driver's own mapping of it.
    pages: Pages,
    pub(crate) identity: Identity,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
}

impl Memory {
    /// Creates memory, all zero.
    pub(crate) fn new(size: u64, kind: Kind) -> Result<Self, Errno> {
        Self::of_file(new_file(&kind.file_name(), size)?, kind)
    }

    /// Returns the memory behind a descriptor; `None` if the descriptor is something else.
    pub(crate) fn import(file: BorrowedFd<'_>) -> Option<Self> {
        let kind = Kind::of_file_name(&named(file)?)?;
        Self::of_file(duplicate(file).ok()?, kind).ok()
    }

    fn of_file(file: OwnedFd, kind: Kind) -> Result<Self, Errno> {
        let status = fstat(&file)?;
        let size = status.st_size as u64;
        let pages = Pages::of_file(file.as_fd(), size)?;
        Ok(Self { file, pages, identity: status.st_ino, size, kind })
    }

    /// Maps it for the CPU at a reserved address, or protects that address again.
    pub(crate) fn show(&self, at: u64, allowed: u32) -> Result<(), Errno> {
        match allowed {
            access::NONE => pages::close(at, self.size),
            _ => pages::open(at, self.size, self.file.as_fd(), allowed == access::READ_WRITE),
        }
    }

    /// Returns the number of the fake driver's own descriptor of it.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns a descriptor for the program: the lowest free number, and open in programs that it executes, since no
    /// documentation promises anything else.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        rustix::io::dup(&self.file)
    }

    /// Returns the fake driver's pointer to a byte.
    pub(crate) fn pointer(&self, offset: u64) -> *mut u8 {
        self.pages.pointer().wrapping_add(offset as usize)
    }

    /// Returns whether this process has a descriptor of it besides this one.
    pub(crate) fn has_descriptor(&self) -> bool {
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return false };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let is_same = |number: &i32| {
            // SAFETY: the number was open just before; if it is closed now, the call returns an error.
            let file = unsafe { BorrowedFd::borrow_raw(*number) };
            fstat(file).is_ok_and(|status| status.st_ino == self.identity && fcntl_get_seals(file).is_ok())
        };
        numbers.filter(is_same).count() > 1
    }
}

fn duplicate(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(file, 0)
}

/// Creates a memfd of the fake driver.
pub(crate) fn new_file(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let file = memfd_create(format!("{NAME}-{name}"), MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size)?;
    Ok(file)
}

/// Returns the name of a descriptor's memfd, if it is one of the fake driver's.
pub(crate) fn named(file: BorrowedFd<'_>) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    // "/memfd:fake-cuda-1.1.0.0 (deleted)"
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?.strip_prefix('-')?;
    name.split(' ').next().map(ToOwned::to_owned)
}
