//! Pages of this process, for memory and for reserved addresses.
#![allow(unsafe_code)] // maps and unmaps

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

const QUIET: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A range of this process's addresses that the fake driver owns; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    at: *mut c_void,
    size: usize,
}

// SAFETY: it owns addresses, which are valid on every thread.
unsafe impl Send for Pages {}
// SAFETY: a reference to it accesses no memory.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the content of a file, shared with its other users.
    pub(crate) fn of_file(file: BorrowedFd<'_>, size: u64) -> Result<Self, Errno> {
        let size = size as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address.
        let at = unsafe { mmap(null_mut(), size, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at, size })
    }

    /// Reserves inaccessible addresses at this place if it is free.
    pub(crate) fn closed_at(place: u64, size: u64) -> Option<Self> {
        let (wanted, size) = (std::ptr::without_provenance_mut(place as usize), size as usize);
        let flags = QUIET | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the flags forbid to replace existing mappings.
        let at = unsafe { mmap_anonymous(wanted, size, ProtFlags::empty(), flags) }.ok()?;
        // A kernel before 4.17 treats the place as a hint.
        Some(Self { at, size }).filter(|pages| pages.at == wanted)
    }

    /// Reserves inaccessible addresses at a multiple of `alignment` that the kernel chooses.
    pub(crate) fn closed(size: u64, alignment: u64) -> Option<Self> {
        let (size, alignment) = (usize::try_from(size).ok()?, usize::try_from(alignment).ok()?);
        let whole = size.checked_add(alignment)?;
        // SAFETY: the kernel chooses a free address.
        let at = unsafe { mmap_anonymous(null_mut(), whole, ProtFlags::empty(), QUIET) }.ok()?;
        let before = at.addr().next_multiple_of(alignment) - at.addr();
        let inner = Self { at: at.wrapping_byte_add(before), size };
        drop(Self { at, size: before });
        drop(Self { at: inner.at.wrapping_byte_add(size), size: alignment - before });
        Some(inner)
    }

    /// Maps pages that the program can use, all zero, at an address that the kernel chooses.
    pub(crate) fn open(size: u64) -> Option<Self> {
        let size = usize::try_from(size).ok()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address.
        let at = unsafe { mmap_anonymous(null_mut(), size, protection, QUIET) }.ok()?;
        Some(Self { at, size })
    }

    pub(crate) fn start(&self) -> u64 {
        self.at.addr() as u64
    }

    pub(crate) const fn pointer(&self) -> *mut u8 {
        self.at.cast()
    }

    pub(crate) const fn size(&self) -> u64 {
        self.size as u64
    }
}

/// Maps a file's content over reserved addresses.
pub(crate) fn open(at: u64, size: u64, file: BorrowedFd<'_>, writable: bool) -> Result<(), Errno> {
    let place = std::ptr::without_provenance_mut(at as usize);
    let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller has checked that this library reserved the addresses and has mapped its own memory there.
    unsafe { mmap(place, size as usize, ProtFlags::READ | write, flags, file, 0) }.map(drop)
}

/// Makes addresses inaccessible again.
pub(crate) fn close(at: u64, size: u64) -> Result<(), Errno> {
    let place = std::ptr::without_provenance_mut(at as usize);
    // SAFETY: as above; a later use is the program's error.
    unsafe { mmap_anonymous(place, size as usize, ProtFlags::empty(), QUIET | MapFlags::FIXED) }.map(drop)
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: this object owns the addresses; a later use is the program's error.
            let _ = unsafe { munmap(self.at, self.size) };
        }
    }
}
