//! Ordinary memory of the host, directly from the operating system.
#![allow(unsafe_code)]

use crate::types::{Bytes, Operation, Result};
use std::ptr::NonNull;
use std::thread;

/// The number of threads above which the host's memory was not filled faster on an H200's host.
const MAX_THREADS: usize = 16;

/// Each thread should provide at least this much: starting one takes some 20 µs, in which another provides 0.1 MiB.
const SHARE: Bytes = Bytes::mib(16);

/// Returns the number of threads that should fill memory of the host: the cores that this process may use, at most 16.
pub(crate) fn copy_threads() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_THREADS))
}

/// Memory of the host in large pages, where the system has them. Dropping it returns it to the system, and not to a heap that may
/// keep it. On systems other than Unix, it comes from the heap.
#[derive(Debug)]
pub struct HostPages {
    start: NonNull<u8>,
    length: Bytes,
    /// Owns the memory.
    system: system::Memory,
}

// SAFETY: this value owns the memory, which is bound to no thread; it is accessed through raw pointers alone.
unsafe impl Send for HostPages {}
// SAFETY: as above.
unsafe impl Sync for HostPages {}

impl HostPages {
    /// The size of a large page: 511 page faults less.
    pub const LARGE: Bytes = Bytes::mib(2);

    /// Takes `length` bytes, which are not provided before they are used or [populated](Self::populate).
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfMemory`](crate::Detail::OutOfMemory) of the host, or any other error of the system.
    pub fn new(operation: Operation, length: Bytes) -> Result<Self> {
        let (start, system) = system::Memory::new(operation, length)?;
        Ok(Self { start, length, system })
    }

    /// Returns the first address, at which a large page can begin. The initial contents are unspecified.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length that [`new`](Self::new) was given.
    #[must_use]
    pub const fn length(&self) -> Bytes {
        self.length
    }

    /// Provides all pages now, if the system can, and keeps them out of forked children: for memory that a driver will page-lock.
    pub fn populate(&self) {
        self.system.keep_from_children();
        let share = Bytes(self.length.0.div_ceil(copy_threads() as u64)).max(SHARE).min(self.length);
        let share = Bytes(share.0.div_ceil(Self::LARGE.0).max(1) * Self::LARGE.0);
        thread::scope(|scope| {
            let starts = (0..self.length.0).step_by(share.0 as usize).map(Bytes);
            for start in starts.skip(1) {
                // What no thread provides, the first use does.
                let _ = thread::Builder::new().spawn_scoped(scope, move || self.provide(start, share));
            }
            self.provide(Bytes::ZERO, share);
        });
    }

    /// Provides the pages of one share.
    fn provide(&self, start: Bytes, share: Bytes) {
        let place = self.start.as_ptr().wrapping_add(start.0 as usize);
        self.system.provide(place, share.min(self.length - start));
    }
}

#[cfg(unix)]
mod system {
    use super::HostPages;
    use crate::driver::host_memory::host_out_of_memory;
    use crate::types::{Bytes, Operation, Result, system};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ffi::c_void;
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub(super) struct Memory {
        mapped: *mut c_void,
        size: usize,
    }

    impl Memory {
        pub(super) fn new(operation: Operation, length: Bytes) -> Result<(NonNull<u8>, Self)> {
            // Addresses that are mapped in addition for the alignment have no memory.
            let size = (length + HostPages::LARGE).to_usize().unwrap_or(usize::MAX);
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the call maps new pages at an address that the system chooses.
            let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, MapFlags::PRIVATE) };
            let failed = |errno| match errno {
                Errno::NOMEM => host_out_of_memory(operation, length, system::answer("mmap", errno)),
                _ => system::failed(operation, "mmap", errno, format_args!("{length}")),
            };
            let memory = Self { mapped: mapped.map_err(failed)?, size };
            memory.advise_large();
            let start = memory.mapped.cast::<u8>();
            let start = start.wrapping_add(start.align_offset(HostPages::LARGE.0 as usize));
            // The system gives no memory at address 0.
            let start = NonNull::new(start).ok_or_else(|| failed(Errno::NOMEM))?;
            Ok((start, memory))
        }

        fn advise_large(&self) {
            #[cfg(target_os = "linux")]
            // SAFETY: the call only advises on this value's pages. The system may refuse large pages.
            let _ = unsafe { rustix::mm::madvise(self.mapped, self.size, rustix::mm::Advice::LinuxHugepage) };
        }

        pub(super) fn keep_from_children(&self) {
            #[cfg(target_os = "linux")]
            // SAFETY: no child of the process has this value's pages then. It may not use them: it did not create them.
            let _ = unsafe { rustix::mm::madvise(self.mapped, self.size, rustix::mm::Advice::LinuxDontFork) };
        }

        /// Provides pages of this value. Before Linux 5.14, and if the call fails, the first use of each page does.
        pub(super) fn provide(&self, place: *mut u8, length: Bytes) {
            debug_assert!(length.0 as usize <= self.size);
            #[cfg(target_os = "linux")]
            // SAFETY: the call provides pages of this value, which exist, and changes no contents.
            let _ = unsafe {
                let all = rustix::mm::Advice::LinuxPopulateWrite;
                rustix::mm::madvise(place.cast(), length.0 as usize, all)
            };
            let _ = place;
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: this value owns the pages. If the call fails, the pages leak.
            let _ = unsafe { munmap(self.mapped, self.size) };
        }
    }
}

#[cfg(not(unix))]
mod system {
    use crate::types::{Bytes, Detail, DriverError, Error, Operation, Result};
    use std::alloc::{Layout, alloc, dealloc};
    use std::io;
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub(super) struct Memory {
        start: NonNull<u8>,
        layout: Layout,
    }

    impl Memory {
        pub(super) fn new(operation: Operation, length: Bytes) -> Result<(NonNull<u8>, Self)> {
            let no_memory = || {
                let source = DriverError::system("allocate", &io::ErrorKind::OutOfMemory.into());
                Error::new(operation, Detail::Driver { source, context: length.to_string() })
            };
            let size = length.to_usize().ok_or_else(no_memory)?;
            let layout = Layout::from_size_align(size.max(1), 4096).map_err(|_| no_memory())?;
            // SAFETY: the layout's size is not zero.
            let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(no_memory)?;
            Ok((start, Self { start, layout }))
        }

        pub(super) fn keep_from_children(&self) {}

        pub(super) fn provide(&self, _: *mut u8, _: Bytes) {}
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: `new` allocated the memory with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn pages_are_large_page_aligned_and_complete() {
        for length in [Bytes(1), Bytes::mib(3), SHARE + Bytes(1)] {
            let pages = HostPages::new(Operation::PinMemory, length).unwrap();
            assert_eq!(pages.start().as_ptr() as usize % (2 << 20), 0);
            pages.populate();
            let last = pages.start().as_ptr().wrapping_add(length.0 as usize - 1);
            // SAFETY: the byte is the last one of the memory.
            unsafe {
                last.write(7);
                assert_eq!(last.read(), 7);
            }
        }
        let none = HostPages::new(Operation::PinMemory, Bytes::ZERO).unwrap();
        none.populate();
        assert_eq!((none.length(), none.start().as_ptr() as usize % (2 << 20)), (Bytes::ZERO, 0));
        let error = HostPages::new(Operation::PinMemory, Bytes(u64::MAX)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("pin memory: the host is out of memory (requested 18446744073709551615 B, "),
            "{text}"
        );
    }

    /// Returns the addresses with which a line of the system's list of mappings begins.
    #[cfg(target_os = "linux")]
    fn addresses(line: &str) -> Option<std::ops::Range<u64>> {
        let (first, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(first, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn populated_pages_stay_out_of_children() {
        let pages = HostPages::new(Operation::PinMemory, SHARE + SHARE).unwrap();
        // Resident size, and the flags, of the mapping in which the pages lie: "dc" is DONTFORK.
        let at = pages.start().as_ptr() as u64;
        let of = |field: &str| {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut inside = false;
            smaps.lines().find_map(|line| {
                if let Some(range) = addresses(line) {
                    inside = range.contains(&at);
                }
                line.strip_prefix(field).filter(|_| inside).map(str::trim).map(str::to_owned)
            })
        };
        assert!(!of("VmFlags:").unwrap().split(' ').any(|flag| flag == "dc"));
        pages.populate();
        let is_there = || {
            of("Rss:")
                .is_some_and(|rss| rss.trim_end_matches(" kB").parse::<u64>().unwrap() >= 2 * (SHARE.0 >> 10))
                && of("VmFlags:").unwrap().split(' ').any(|flag| flag == "dc")
        };
        assert!(is_there(), "{:?}, {:?}", of("Rss:"), of("VmFlags:"));
        drop(pages);
        assert!(!is_there(), "the pages were not returned to the system");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_drop_unmaps_every_page() {
        let is_mapped = |address: u64| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| addresses(line).unwrap().contains(&address))
        };
        // Another thread may map other memory there meanwhile, but not each time.
        let is_unmapped = (0..100).any(|_| {
            let pages = HostPages::new(Operation::PinMemory, Bytes::mib(3)).unwrap();
            // The part that is mapped in addition for the alignment reaches beyond the end.
            let ends = [0, pages.length().0].map(|offset| pages.start().as_ptr() as u64 + offset);
            assert!(ends.iter().all(|end| is_mapped(*end)));
            drop(pages);
            !ends.iter().any(|end| is_mapped(*end))
        });
        assert!(is_unmapped);
    }
}
