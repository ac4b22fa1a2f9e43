//! Pages: physical memory as memory files, and ranges of addresses as mappings that nobody may touch.
#![allow(unsafe_code)] // mmap and memfd_create

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::{null_mut, without_provenance_mut};

/// How ROCr aligns a range of that size or more by itself.
const NATURAL: usize = 2 << 20;
pub(crate) const PAGE: usize = 4096;
/// What the files are called, by which a descriptor is known in another process.
const NAME: &str = "fake-hip";

/// Some physical memory.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    pub(crate) size: usize,
}

impl Memory {
    pub(crate) fn new(size: usize) -> io::Result<Self> {
        // SAFETY: the name is a text with its zero byte.
        let fd = unsafe { libc::memfd_create(c"fake-hip".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size as u64)?;
        Ok(Self { file, size })
    }

    /// The memory behind a descriptor of any process, where it is one of ours.
    pub(crate) fn of_descriptor(fd: i32) -> Option<Self> {
        let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        if !target.to_str()?.starts_with(&format!("/memfd:{NAME}")) {
            return None;
        }
        // SAFETY: the system has just named the file behind it; whoever closes it meanwhile gets an error below.
        let file = File::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?);
        let size = file.metadata().ok()?.len() as usize;
        Some(Self { file, size })
    }

    /// Which memory it is, the same for all descriptors of it.
    pub(crate) fn identity(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// A new descriptor, the caller's to close.
    pub(crate) fn descriptor(&self) -> io::Result<i32> {
        Ok(self.file.try_clone()?.into_raw_fd())
    }

    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, at as u64)
    }

    pub(crate) fn write(&self, at: usize, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, at as u64)
    }

    /// Lets the CPU at the memory through an address of ours.
    pub(crate) fn show(&self, at: usize) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is a mapping of a reservation of ours, which nothing but the host's access uses.
        mapped(unsafe {
            libc::mmap(
                without_provenance_mut(at),
                self.size,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                0,
            )
        })
        .map(drop)
    }
}

fn mapped(answer: *mut libc::c_void) -> io::Result<usize> {
    if answer == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(answer.addr()) }
}

fn untouchable(at: usize, size: usize, flags: i32) -> io::Result<usize> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new pages, at a free place or over pages of our own.
    mapped(unsafe { libc::mmap(without_provenance_mut(at), size, libc::PROT_NONE, flags, -1, 0) })
}

/// Reserves a range: at the hint where all of it is free, else where the system likes. Never with more alignment than
/// ROCr gives by itself, so that whoever relies on more is found out.
pub(crate) fn reserve(hint: Option<usize>, size: usize) -> io::Result<usize> {
    if let Some(hint) = hint.filter(|hint| hint.is_multiple_of(PAGE))
        && let Ok(base) = untouchable(hint, size, libc::MAP_FIXED_NOREPLACE)
    {
        if base == hint {
            return Ok(base);
        }
        free(base, size);
    }
    let alignment = size.next_power_of_two().min(NATURAL);
    let room = size.checked_add(2 * alignment).ok_or(io::ErrorKind::OutOfMemory)?;
    let start = untouchable(0, room, 0)?;
    let mut base = start.next_multiple_of(alignment);
    if base.is_multiple_of(2 * alignment) {
        base += alignment;
    }
    free(start, base - start);
    free(base + size, start + room - base - size);
    Ok(base)
}

/// Takes the host's view of a mapping away.
pub(crate) fn hide(at: usize, size: usize) {
    // The range stays reserved whatever comes of it.
    let _ = untouchable(at, size, libc::MAP_FIXED);
}

pub(crate) fn free(at: usize, size: usize) {
    if size != 0 {
        // SAFETY: pages that `reserve` made, in which nothing of Rust's lies.
        unsafe { libc::munmap(without_provenance_mut(at), size) };
    }
}

/// True where a program could read a number of bytes from an address: asked of the system, which does not crash.
pub(crate) fn is_readable(at: usize, size: usize) -> bool {
    let mut buffer = [0u8; 16];
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: size.min(buffer.len()) };
    let remote = libc::iovec { iov_base: without_provenance_mut(at), iov_len: local.iov_len };
    // SAFETY: one range of our own buffer is written; what is read the system checks.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    at != null_mut::<u8>().addr() && read == local.iov_len as isize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_no_more_alignment_than_promised() {
        for size in [PAGE, NATURAL, 3 * NATURAL, 1 << 30] {
            let base = reserve(None, size).unwrap();
            let natural = size.next_power_of_two().min(NATURAL);
            assert!(base.is_multiple_of(natural) && !base.is_multiple_of(2 * natural), "{base:#x}");
            assert_ne!(reserve(Some(base), size).unwrap(), base, "it is taken");
            free(base, size);
            assert_eq!(reserve(Some(base), size).unwrap(), base);
        }
    }

    #[test]
    fn memory_is_known_by_its_descriptor() {
        let memory = Memory::new(PAGE).unwrap();
        memory.write(7, b"bytes").unwrap();
        let again = Memory::of_descriptor(memory.file.as_raw_fd()).unwrap();
        let mut bytes = [0; 5];
        again.read(7, &mut bytes).unwrap();
        assert_eq!((&bytes, again.size, again.identity()), (b"bytes", PAGE, memory.identity()));
        assert!(Memory::of_descriptor(2).is_none() && Memory::of_descriptor(-1).is_none());
    }

    #[test]
    fn what_can_be_read_is_known() {
        let number = 5u32;
        assert!(is_readable((&raw const number).addr(), 4));
        assert!(!is_readable(5, 4) && !is_readable(0, 4));
    }
}
