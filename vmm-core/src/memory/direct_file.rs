//! A file whose bytes bypass the system's page cache if the file system supports that (direct I/O).
//!
//! The contents of devices are written once and read once. In the page cache they cost a copy and memory of the host, and the
//! system lets only one thread at a time copy to one file's pages.
//!
//! Direct I/O needs aligned offsets, lengths and addresses. Bytes that are not aligned go through the page cache, and so do all
//! bytes after a refusal. Both ways can be mixed: aligned ranges are whole pages, so no page has bytes of both, and the system
//! writes the cached pages of a range to the disk before it reads the range directly.

use super::files::{read_exact_at, start_writing, write_all_at};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that several threads write and read, each in its own range.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: File,
    direct: Option<Direct>,
    /// True if bytes were written to the page cache.
    cached: AtomicBool,
}

/// The same file, opened for direct I/O.
#[derive(Debug)]
struct Direct {
    file: File,
    /// The unit of offsets and lengths: at least a page.
    unit: u64,
    /// The unit of the addresses of buffers.
    memory: u64,
    /// True if the system has refused to write or read this way.
    refused: AtomicBool,
}

/// Returns true if the directory's file system keeps its files in memory alone (tmpfs).
pub(super) fn is_in_memory(directory: &Path) -> bool {
    system::is_in_memory(directory)
}

impl DirectFile {
    /// The system call of [`reserve`](Self::reserve), for errors.
    pub(super) const RESERVE: &str = if cfg!(windows) { "SetEndOfFile" } else { "fallocate" };

    /// Takes a file that is open for writing and reading.
    pub(super) fn new(file: File) -> Self {
        let direct = system::reopen(&file);
        Self { file, direct, cached: AtomicBool::new(false) }
    }

    /// Allocates the disk space for the file's first `size` bytes. Direct writes that need no space can run in parallel.
    ///
    /// # Errors
    ///
    /// The system's error if the disk has too little space, or the file would exceed a limit. A file system that cannot allocate
    /// space in advance is no error.
    pub(super) fn reserve(&self, size: u64) -> io::Result<()> {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match system::allocate(&self.file, size) {
            Err(error) if matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = self.direct_for(bytes, offset) {
            match write_all_at(&direct.file, bytes, offset) {
                Err(error) if system::is_refusal(&error) => direct.refused.store(true, Ordering::Relaxed),
                answer => return answer,
            }
        }
        self.cached.store(true, Ordering::Relaxed);
        write_all_at(&self.file, bytes, offset)?;
        start_writing(&self.file, offset, bytes.len() as u64);
        Ok(())
    }

    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = self.direct_for(bytes, offset) {
            match read_exact_at(&direct.file, bytes, offset) {
                Err(error) if system::is_refusal(&error) => direct.refused.store(true, Ordering::Relaxed),
                answer => return answer,
            }
        }
        read_exact_at(&self.file, bytes, offset)
    }

    /// Waits until the disk has the bytes in the page cache. Otherwise an error of a later write to the disk would be lost. Bytes
    /// that bypassed the page cache are on the disk.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.cached.load(Ordering::Relaxed) { self.file.sync_data() } else { Ok(()) }
    }

    fn direct_for(&self, bytes: &[u8], offset: u64) -> Option<&Direct> {
        let direct = self.direct.as_ref().filter(|direct| !direct.refused.load(Ordering::Relaxed))?;
        let aligned = offset.is_multiple_of(direct.unit)
            && (bytes.len() as u64).is_multiple_of(direct.unit)
            && (bytes.as_ptr().addr() as u64).is_multiple_of(direct.memory);
        aligned.then_some(direct)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::Direct;
    use crate::memory::files::check_size;
    use rustix::fs::{AtFlags, FallocateFlags, StatFs, StatxFlags, fallocate, fstatfs, statfs, statx};
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    /// The alignment that is enough for every disk, for kernels that do not say which one is (before Linux 6.1).
    const UNIT: u32 = 4096;

    /// Opens a file again for direct I/O, or returns `None` if the file system does not support it. tmpfs lets it be opened since
    /// Linux 6.6, but has no place besides the page cache.
    pub(super) fn reopen(file: &File) -> Option<Direct> {
        if is_tmpfs(&fstatfs(file).ok()?) {
            return None;
        }
        // The file can be without a name.
        let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).clone();
        let file = options.open(path).ok()?;
        let reply = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let units = reply.filter(|reply| reply.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        let (offset, memory) =
            units.map_or((UNIT, UNIT), |reply| (reply.stx_dio_offset_align, reply.stx_dio_mem_align));
        let page = rustix::param::page_size() as u64;
        (offset > 0).then(|| Direct {
            file,
            unit: page.max(UNIT.into()).max(offset.into()),
            memory: memory.max(1).into(),
            refused: AtomicBool::new(false),
        })
    }

    /// Returns whether direct I/O may be impossible for the reason of this error. `EFAULT`: the memory belongs to a driver that does
    /// not let disks write to it.
    pub(super) fn is_refusal(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EFAULT))
    }

    pub(super) fn is_in_memory(directory: &Path) -> bool {
        statfs(directory).is_ok_and(|system| is_tmpfs(&system))
    }

    fn is_tmpfs(system: &StatFs) -> bool {
        system.f_type == libc::TMPFS_MAGIC
    }

    pub(super) fn allocate(file: &File, size: u64) -> io::Result<()> {
        check_size(size)?;
        Ok(fallocate(file, FallocateFlags::empty(), 0, size)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Direct;
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub(super) fn reopen(_: &File) -> Option<Direct> {
        None
    }

    pub(super) fn is_refusal(_: &io::Error) -> bool {
        false
    }

    pub(super) fn is_in_memory(_: &Path) -> bool {
        false
    }

    pub(super) fn allocate(file: &File, size: u64) -> io::Result<()> {
        // Elsewhere a file that is set to a larger size has no space for it.
        if cfg!(windows) { file.set_len(size) } else { Ok(()) }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, unsafe_code)] // the limit of a file's size has no safe function
mod tests {
    use super::*;
    use gpu_vmm_testkit::forked::alone;
    use std::fs::{self, OpenOptions};
    use std::sync::atomic::AtomicU64;

    const UNIT: usize = 4096;

    /// An empty file without a name.
    fn file() -> File {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpu-vmm-direct-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        file
    }

    /// A file whose direct I/O goes to another file, which shows the bytes that took that way.
    fn split() -> DirectFile {
        let direct = Direct { file: file(), unit: UNIT as u64, memory: 512, refused: AtomicBool::new(false) };
        DirectFile { file: file(), direct: Some(direct), cached: AtomicBool::new(false) }
    }

    fn lengths(file: &DirectFile) -> (u64, u64) {
        let length = |file: &File| file.metadata().unwrap().len();
        (length(&file.file), length(&file.direct.as_ref().unwrap().file))
    }

    /// Two units of bytes, of which the first is at an address that is a multiple of the unit.
    fn with_aligned(test: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![7; 3 * UNIT];
        let first = bytes.as_ptr().align_offset(UNIT);
        test(&mut bytes[first..first + 2 * UNIT]);
    }

    #[test]
    fn only_aligned_bytes_bypass_the_cache() {
        with_aligned(|bytes| {
            let file = split();
            file.write_all_at(bytes, UNIT as u64).unwrap();
            assert_eq!((lengths(&file), file.cached.load(Ordering::Relaxed)), ((0, 3 * UNIT as u64), false));
            for (part, offset) in [(0..UNIT, 1), (0..UNIT - 1, UNIT), (1..UNIT + 1, 0)] {
                let file = split();
                file.write_all_at(&bytes[part.clone()], offset as u64).unwrap();
                assert_eq!(lengths(&file), ((part.len() + offset) as u64, 0), "{part:?} at {offset}");
                assert!(file.cached.load(Ordering::Relaxed), "nothing waits for the disk");
                file.flush().unwrap();
                // Into the same place: memory at an aligned address would be read around the cache.
                file.read_exact_at(&mut bytes[part], offset as u64).unwrap();
            }
        });
    }

    #[test]
    fn refused_direct_bytes_use_the_cache() {
        with_aligned(|bytes| {
            // The disk wants addresses that are multiples of 4 or more; a file system without direct I/O takes this one.
            let mut file = DirectFile::new(file());
            let Some(direct) = &mut file.direct else { return };
            direct.memory = 1;
            let odd = &mut bytes[1..=UNIT];
            file.write_all_at(odd, 0).unwrap();
            let (refused, cached) = (&file.direct.as_ref().unwrap().refused, &file.cached);
            assert_eq!(refused.load(Ordering::Relaxed), cached.load(Ordering::Relaxed));
            odd.fill(0);
            refused.store(false, Ordering::Relaxed);
            file.read_exact_at(odd, 0).unwrap();
            assert!(odd.iter().all(|byte| *byte == 7));
        });
        with_aligned(|bytes| {
            let file = split();
            file.direct.as_ref().unwrap().refused.store(true, Ordering::Relaxed);
            file.write_all_at(bytes, 0).unwrap();
            assert_eq!(lengths(&file), (bytes.len() as u64, 0));
        });
    }

    #[test]
    fn errors_other_than_refusals_stay_errors() {
        with_aligned(|bytes| {
            let mut file = split();
            let Some(direct) = &mut file.direct else { unreachable!() };
            direct.file = File::open("/dev/null").unwrap();
            assert_eq!(file.write_all_at(bytes, 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
        });
    }

    #[test]
    fn both_ways_reach_one_file() {
        with_aligned(|bytes| {
            let file = DirectFile::new(file());
            file.reserve(4 * UNIT as u64).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            bytes.fill(8);
            file.write_all_at(&bytes[..UNIT + 1], 2 * UNIT as u64).unwrap();
            file.flush().unwrap();
            // Bytes that were written one way are read the other way.
            let mut part = [0; 2];
            file.read_exact_at(&mut part, 2 * UNIT as u64 - 1).unwrap();
            assert_eq!(part, [7, 8]);
            file.read_exact_at(bytes, 2 * UNIT as u64).unwrap();
            assert!(bytes[..UNIT + 1].iter().all(|byte| *byte == 8));
        });
    }

    #[test]
    fn full_disk_error_precedes_first_byte() {
        let file = DirectFile::new(file());
        alone(|| {
            let limit = libc::rlimit { rlim_cur: UNIT as u64, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the process is the test's own; the calls ignore a signal and set a limit.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
            }
            file.reserve(UNIT as u64).unwrap();
            let error = file.reserve(2 * UNIT as u64).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        });
    }
}
