//! Pages of this process, for memory and for reserved addresses.
#![allow(unsafe_code)] // maps and unmaps

use crate::settings::settings;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// The CPU's page size.
pub(crate) const PAGE: usize = 4096;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// The number of junk words at each end of new memory.
const JUNK: usize = (8 << 20) / size_of::<u64>();
const QUIET: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A range of this process's addresses that the simulator owns; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    at: *mut c_void,
    size: usize,
}

// SAFETY: it owns addresses, which are valid on every thread.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps memory, all zero.
    pub(crate) fn anonymous(size: usize) -> Result<Self, Errno> {
        Self::at_any_place(size, READ_WRITE)
    }

    fn at_any_place(size: usize, protection: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free address.
        let at = unsafe { mmap_anonymous(null_mut(), size, protection, QUIET) }?;
        Ok(Self { at, size })
    }

    /// Maps the content of a file, shared with its other users.
    pub(crate) fn of_file(file: BorrowedFd<'_>, size: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free address.
        let at = unsafe { mmap(null_mut(), size, READ_WRITE, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at, size })
    }

    /// Reserves addresses without memory at a requested place, if it is free.
    pub(crate) fn reserve_at(hint: usize, size: usize) -> Option<Self> {
        let wanted = std::ptr::with_exposed_provenance_mut(hint);
        let flags = QUIET | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the flags forbid to replace existing mappings.
        let at = unsafe { mmap_anonymous(wanted, size, ProtFlags::empty(), flags) }.ok()?;
        // A kernel before 4.17 treats the place as a hint.
        Some(Self { at, size }).filter(|pages| pages.at == wanted)
    }

    /// Reserves addresses without memory, at a multiple of `alignment`.
    pub(crate) fn reserve(size: usize, alignment: usize) -> Option<Self> {
        let mut whole = Self::at_any_place(size.checked_add(alignment)?, ProtFlags::empty()).ok()?;
        let before = whole.start().next_multiple_of(alignment) - whole.start();
        let inner = Self { at: whole.at.wrapping_byte_add(before), size };
        let after = Self { at: inner.at.wrapping_byte_add(size), size: alignment - before };
        whole.size = before;
        drop((whole, after));
        Some(inner)
    }

    pub(crate) fn start(&self) -> usize {
        self.at.expose_provenance()
    }

    pub(crate) const fn pointer(&self) -> *mut u8 {
        self.at.cast()
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Maps a file's content over the pages at `offset`, or removes it again.
    pub(crate) fn show(
        &self,
        offset: usize,
        size: usize,
        content: Option<(BorrowedFd<'_>, ProtFlags)>,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
        if end > self.size || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let at = self.at.wrapping_byte_add(offset);
        // SAFETY: this object owns the range, to which the simulator has no reference.
        unsafe {
            match content {
                None => mmap_anonymous(at, size, ProtFlags::empty(), QUIET | MapFlags::FIXED),
                Some((file, protection)) => {
                    mmap(at, size, protection, MapFlags::SHARED | MapFlags::FIXED, file, 0)
                }
            }
        }
        .map(drop)
    }

    /// Unmaps a part, so that anything can be mapped there. Dropping the object unmaps that part again.
    pub(crate) fn leave(&self, offset: usize, size: usize) -> Result<(), Errno> {
        let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
        if end > self.size || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        // SAFETY: this object owns the range, to which the simulator has no reference.
        unsafe { munmap(self.at.wrapping_byte_add(offset), size) }
    }

    /// Fills it with nonzero numbers that no kernel writes, if the settings say so: a real GPU's new memory holds old data.
    /// Large memory is filled at its ends only, since filling all of it takes most of a test's time.
    pub(crate) fn fill_with_junk(&self) {
        if !settings().junk {
            return;
        }
        let words = self.size / size_of::<u64>();
        // SAFETY: this object owns the memory, which is not shared yet; it begins at a page.
        let words = unsafe { std::slice::from_raw_parts_mut(self.at.cast::<u64>(), words) };
        let (first, rest) = words.split_at_mut(words.len().min(JUNK));
        let last = rest.len().saturating_sub(JUNK);
        for (index, word) in first.iter_mut().chain(&mut rest[last..]).enumerate() {
            *word = (index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1;
        }
    }

    /// Replaces all of it by the content of a file.
    pub(crate) fn become_file(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.show(0, self.size, Some((file, READ_WRITE)))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: this object owns the addresses; a later use is the program's error.
            let _ = unsafe { munmap(self.at, self.size) };
        }
    }
}
