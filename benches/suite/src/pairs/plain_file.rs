//! A file that several threads write and read with plain buffers.

use crate::stop::StepResult;
use gpu_vmm_core::Bytes;
use gpu_vmm_core::extend::files::{read_exact_at, write_all_at};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The size of one buffer.
const BUFFER: usize = 4 << 20;

/// The alignment of buffers, which is enough for every disk.
const ALIGNMENT: usize = 4096;

/// How files are written and read.
#[derive(Clone)]
pub(crate) struct PlainFile {
    pub(crate) folder: PathBuf,
    /// A multiple of a buffer's size.
    pub(crate) size: Bytes,
    pub(crate) threads: usize,
    /// Whether the bytes bypass the page cache.
    pub(crate) direct: bool,
    /// Whether a write ends when the bytes are on the disk, and not in its cache or the page cache.
    pub(crate) durable: bool,
}

impl PlainFile {
    pub(crate) fn name(&self) -> String {
        let way = if self.direct { "direct I/O" } else { "the page cache" };
        let synced = if self.durable { ", synced" } else { "" };
        format!("{} threads with plain buffers, {way}{synced}", self.threads)
    }

    /// Writes a new file without a name to the disk.
    pub(crate) fn write(&self) -> StepResult<File> {
        let direct = if self.direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | direct);
        let file = options.open(&self.folder)?;
        fallocate(&file, FallocateFlags::empty(), 0, self.size.0).map_err(io::Error::from)?;
        self.each(|buffer, at| write_all_at(&file, buffer, at))?;
        if self.durable {
            file.sync_data()?;
        }
        Ok(file)
    }

    pub(crate) fn read(&self, file: &File) -> StepResult {
        self.each(|buffer, at| read_exact_at(file, buffer, at))
    }

    /// Calls `act` with a thread's buffer for the offset of each part of the file.
    fn each(&self, act: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync) -> StepResult {
        let next = AtomicU64::new(0);
        let work = || {
            let mut memory = vec![1; BUFFER + ALIGNMENT];
            let first = memory.as_ptr().align_offset(ALIGNMENT);
            let buffer = &mut memory[first..first + BUFFER];
            loop {
                let at = next.fetch_add(BUFFER as u64, Ordering::Relaxed);
                if at >= self.size.0 {
                    return Ok(());
                }
                act(buffer, at)?;
            }
        };
        let answers: io::Result<()> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            ended.fold(Ok(()), Result::and)
        });
        Ok(answers?)
    }
}

/// Removes a file's pages from the page cache, unless the file system has no other place for them.
pub(crate) fn forget_pages(path: &Path) -> StepResult {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from)?)
}
