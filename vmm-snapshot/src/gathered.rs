//! The file's bytes, gathered in windows so that they can bypass the page cache.
//!
//! Blocks follow each other without gaps behind a header of 64 bytes, so they are rarely aligned, as direct I/O needs them. The bytes
//! of a window are copied into a buffer, as the page cache would do, and the thread that completes it writes it to the disk. In the
//! page cache, the threads would wait for each other, and for the disk at the end.

use gpu_vmm_core::extend::DirectFile;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of a window: enough for the full speed of most disks with several threads.
const WINDOW: u64 = 2 << 20;

/// The alignment of a window's buffer in memory: that of a page, which is enough for every disk.
const ALIGNMENT: usize = 4096;

/// The disk space that is allocated at a time. A write that needs no space does not wait for others.
const AHEAD: u64 = 64 << 20;

/// A file that several threads write, each byte once.
#[derive(Debug)]
pub(crate) struct Gathered {
    file: DirectFile,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// The windows with some of their bytes, by number.
    begun: BTreeMap<u64, Arc<Mutex<Window>>>,
    /// Buffers of windows that were written.
    spare: Vec<Window>,
    /// The end of the bytes.
    end: u64,
    /// The end of the allocated space.
    reserved: u64,
}

/// The bytes of a window.
#[derive(Debug)]
struct Window {
    buffer: Vec<u8>,
    /// The first aligned byte of the buffer.
    first: usize,
    /// The number of bytes that have come.
    here: u64,
}

impl Gathered {
    pub(crate) fn new(file: DirectFile) -> Self {
        Self { file, books: Mutex::default() }
    }

    /// Takes bytes of the file, and writes the windows that they complete.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (bytes, offset);
        let end = offset + bytes.len() as u64;
        while !rest.is_empty() {
            let (number, within) = (at / WINDOW, (at % WINDOW) as usize);
            let (now, later) = rest.split_at(rest.len().min(WINDOW as usize - within));
            let window = self.window(number, end);
            let mut window = lock(&window);
            window.bytes()[within..within + now.len()].copy_from_slice(now);
            window.here += now.len() as u64;
            if window.here >= WINDOW {
                self.write(number, &mut window)?;
            }
            (rest, at) = (later, at + now.len() as u64);
        }
        Ok(())
    }

    /// Writes the bytes of windows that have not been completed: of the last one, which they begin. Returns the end of all bytes.
    pub(crate) fn write_rest(&self) -> io::Result<u64> {
        let Books { begun, end, .. } = std::mem::take(&mut *lock(&self.books));
        begun.into_iter().try_for_each(|(number, window)| {
            let mut window = lock(&window);
            let length = window.here as usize;
            self.file.write_all_at(&window.bytes()[..length], number * WINDOW)
        })?;
        Ok(end)
    }

    /// Returns a window of which bytes are missing, for bytes up to `end`.
    fn window(&self, number: u64, end: u64) -> Arc<Mutex<Window>> {
        let mut books = lock(&self.books);
        books.end = books.end.max(end);
        if let Some(window) = books.begun.get(&number) {
            return Arc::clone(window);
        }
        let window = Arc::new(Mutex::new(books.spare.pop().unwrap_or_else(Window::new)));
        books.begun.insert(number, Arc::clone(&window));
        let needed = (number + 1) * WINDOW;
        if needed > books.reserved {
            books.reserved = needed + AHEAD;
            // Without the space, the write to it reports the error.
            let _ = self.file.reserve(books.reserved);
        }
        window
    }

    /// Writes a window that is complete, and keeps its buffer.
    fn write(&self, number: u64, window: &mut Window) -> io::Result<()> {
        lock(&self.books).begun.remove(&number);
        self.file.write_all_at(window.bytes(), number * WINDOW)?;
        let spare = Window { buffer: std::mem::take(&mut window.buffer), here: 0, ..*window };
        lock(&self.books).spare.push(spare);
        Ok(())
    }
}

impl Window {
    fn new() -> Self {
        let buffer = vec![0; WINDOW as usize + ALIGNMENT];
        let first = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { buffer, first, here: 0 }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[self.first..self.first + WINDOW as usize]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use gpu_vmm_testkit::Random;
    use std::fs::{self, File, OpenOptions};
    use std::thread;

    fn temporary(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("gpu-vmm-gathered-{}-{name}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        (path, file)
    }

    #[test]
    fn bytes_in_any_order_and_by_several_threads_come_to_their_places() {
        let mut random = Random(7);
        let all: Vec<u8> = (0..5 * WINDOW as usize + 321).map(|at| (at * 31 % 251) as u8).collect();
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < all.len() {
            // Short pieces, and some that are longer than a window.
            let most = if random.below(4) == 0 { WINDOW as usize * 2 } else { WINDOW as usize / 4 };
            let length = (random.below(most) + 1).min(all.len() - at);
            pieces.push((at, length));
            at += length;
        }
        for place in (1..pieces.len()).rev() {
            pieces.swap(place, random.below(place + 1));
        }
        let (path, file) = temporary("order");
        let gathered = Gathered::new(DirectFile::new(file));
        thread::scope(|scope| {
            for pieces in pieces.chunks(pieces.len().div_ceil(3)) {
                let (gathered, all) = (&gathered, &all);
                scope.spawn(move || {
                    for &(at, length) in pieces {
                        gathered.write_at(&all[at..at + length], at as u64).unwrap();
                    }
                });
            }
        });
        assert_eq!(lock(&gathered.books).begun.len(), 1, "windows that are complete were written");
        assert!(lock(&gathered.books).spare.len() <= 5);
        assert_eq!(gathered.write_rest().unwrap(), all.len() as u64);
        let mut written = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        written.truncate(all.len());
        assert!(written == all, "other bytes are in the file");
    }

    #[test]
    fn a_window_that_cannot_be_written_is_an_error() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let gathered = Gathered::new(DirectFile::new(full));
        let error = gathered.write_at(&vec![1; WINDOW as usize], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        gathered.write_at(&[1], 5 * WINDOW).unwrap();
        assert_eq!(gathered.write_rest().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
