//! Pages: physical memory as memory files, and ranges of addresses as inaccessible mappings.

use crate::c::{Answer, HipError, stop};
use crate::settings::{SETTINGS, bucket};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::without_provenance_mut;
use std::sync::OnceLock;

pub(crate) const PAGE: usize = 4096;
/// ROCr's own alignment of ranges of at least this size, and the unit that RDNA4 can map without faulting.
pub(crate) const UNIT: usize = 2 << 20;

const OPEN: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANYWHERE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Physical memory.
pub(crate) struct Memory {
    file: File,
    pub(crate) size: usize,
    /// Its device; `None` for memory of the host, and for memory of another process, which counts it.
    pub(crate) device: Option<usize>,
    /// The descriptor that the runtime keeps for exports. It is a number: a caller may have closed it.
    kept: OnceLock<RawFd>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(number) = self.kept.get() {
            // SAFETY: a number, which the runtime takes for its own.
            unsafe { libc::close(*number) };
        }
    }
}

impl Memory {
    pub(crate) fn new(size: usize, device: Option<usize>) -> io::Result<Self> {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"fake-hip".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size as u64)?;
        Ok(Self { file, size, device, kept: OnceLock::new() })
    }

    /// Returns the memory behind a descriptor of any process, if this library created it.
    pub(crate) fn of_descriptor(fd: c_int) -> Option<Self> {
        let path = format!("/proc/self/fd/{fd}");
        if !std::fs::read_link(&path).ok()?.to_str()?.starts_with("/memfd:fake-hip") {
            return None;
        }
        let file = File::options().read(true).write(true).open(path).ok()?;
        let size = file.metadata().ok()?.len() as usize;
        Some(Self { file, size, device: None, kept: OnceLock::new() })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let identity = |memory: &Self| memory.file.metadata().map(|data| (data.dev(), data.ino())).ok();
        identity(self) == identity(other)
    }

    /// Returns the number of its file.
    pub(crate) fn number(&self) -> u64 {
        self.file.metadata().map_or(0, |data| data.ino())
    }

    /// Returns a new descriptor.
    pub(crate) fn descriptor(&self) -> Answer<File> {
        self.file.try_clone().map_err(|_| HipError::OUT_OF_MEMORY)
    }

    /// Returns the number of a descriptor for a caller.
    pub(crate) fn exported(&self) -> Answer<RawFd> {
        let new = || self.descriptor().map(IntoRawFd::into_raw_fd);
        match self.kept.get() {
            Some(kept) => Ok(*kept),
            None if bucket().export_is_kept => new().map(|number| *self.kept.get_or_init(|| number)),
            None => new(),
        }
    }

    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        if let Err(error) = self.file.read_exact_at(to, at as u64) {
            stop(format_args!("memory cannot be read: {error}"));
        }
    }

    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        if let Err(error) = self.file.write_all_at(from, at as u64) {
            stop(format_args!("memory cannot be written: {error}"));
        }
    }

    /// Gives the CPU access to the memory through one of our addresses.
    pub(crate) fn show(&self, at: usize) -> Answer {
        let open = |file: &File| {
            pages(at, self.size, OPEN, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd()).map(drop)
        };
        if SETTINGS.host_faults {
            // Pages behind the end of a file raise SIGBUS.
            return open(&Self::new(0, None).map_err(|_| HipError::OUT_OF_MEMORY)?.file);
        }
        open(&self.file)
    }
}

fn pages(at: usize, size: usize, protection: c_int, flags: c_int, fd: c_int) -> Answer<usize> {
    // SAFETY: new pages, at a free address or over our own pages.
    let start = unsafe { libc::mmap(without_provenance_mut(at), size, protection, flags, fd, 0) };
    if start == libc::MAP_FAILED { Err(HipError::OUT_OF_MEMORY) } else { Ok(start.expose_provenance()) }
}

fn closed(at: usize, size: usize, flags: c_int) -> Answer<usize> {
    pages(at, size, libc::PROT_NONE, ANYWHERE | flags, -1)
}

/// Allocates pages of the host.
pub(crate) fn plain(size: usize) -> Answer<usize> {
    pages(0, size, OPEN, ANYWHERE, -1)
}

/// Reserves a range: at the hint if all of it is free, otherwise where the system chooses. Never aligned more than by ROCr
/// itself, so that code which relies on more fails.
pub(crate) fn reserve(hint: usize, size: usize) -> Answer<usize> {
    if hint != 0
        && hint.is_multiple_of(PAGE)
        && let Ok(base) = closed(hint, size, libc::MAP_FIXED_NOREPLACE)
    {
        if base == hint {
            return Ok(base);
        }
        free(base, size);
    }
    let alignment = size.min(UNIT).next_power_of_two();
    let room = size.checked_add(2 * alignment).ok_or(HipError::OUT_OF_MEMORY)?;
    let start = closed(0, room, 0)?;
    let mut base = start.next_multiple_of(alignment);
    if base.is_multiple_of(2 * alignment) {
        base += alignment;
    }
    free(start, base - start);
    free(base + size, start + room - base - size);
    Ok(base)
}

/// Removes the host's view of a mapping.
pub(crate) fn hide(at: usize, size: usize) -> Answer {
    closed(at, size, libc::MAP_FIXED).map(drop)
}

pub(crate) fn free(at: usize, size: usize) {
    if size != 0 {
        // SAFETY: pages that this module mapped, without any Rust object.
        unsafe { libc::munmap(without_provenance_mut(at), size) };
    }
}

/// Reads the number at an address, if there is one, by a system call that does not crash.
pub(crate) fn peek(at: usize) -> Option<c_int> {
    let mut number: c_int = 0;
    let to = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: size_of::<c_int>() };
    let from = libc::iovec { iov_base: without_provenance_mut(at), ..to };
    // SAFETY: the target is valid for writing; the system checks the source.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (read == to.iov_len as isize).then_some(number)
}
