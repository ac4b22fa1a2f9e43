//! Contents in one file, or in several that are written, read and deleted at the same time.

use super::file::File;
use super::store::Store;
use crate::memory::direct_file::is_in_memory;
use crate::memory::threads::{join, start_thread};
use crate::types::{Bytes, Operation, Result};
use std::iter;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;

/// The number of bytes in a row that one file has: what a thread of a ring usually writes at a time.
const STRIPE: u64 = 4 << 20;

/// The largest number of files in a directory whose files are in memory.
const MOST: u64 = 16;

/// The smallest size of one of several files in a directory.
const LEAST: u64 = 64 << 20;

/// A stream of bytes whose stripes are in the files in turn.
#[derive(Debug)]
pub(super) struct Stripes(Vec<File>);

/// A range of a buffer, with its file and the offset in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    file: usize,
    offset: u64,
    range: Range<usize>,
}

impl Stripes {
    /// Creates files in the directories, with space for their parts of `size` bytes.
    pub(super) fn new(operation: Operation, directories: &[PathBuf], size: Bytes) -> Result<Self> {
        let count = files_in(directories, size.0);
        let create = |number: usize| {
            let part = size_of(number, count, size.0);
            File::new(operation, &directories[number % directories.len()], Bytes(part))
        };
        thread::scope(|scope| {
            let start = |number| (number, start_thread(scope, move || create(number)));
            let others: Vec<_> = (1..count).map(start).collect();
            let finish = |(number, thread): (usize, Option<_>)| thread.map_or_else(|| create(number), join);
            let files = iter::once(create(0)).chain(others.into_iter().map(finish));
            files.collect::<Result<_>>().map(Self)
        })
    }

    fn parts(&self, at: Bytes, length: usize) -> impl Iterator<Item = (&File, Bytes, Range<usize>)> {
        parts(self.0.len(), at.0, length)
            .map(|Part { file, offset, range }| (&self.0[file], Bytes(offset), range))
    }
}

impl Drop for Stripes {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for file in self.0.drain(1.min(self.0.len())..) {
                // If no thread can be started, this thread closes the file.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(file));
            }
            self.0.clear();
        });
    }
}

/// Returns the size of one of `count` files of a stream of `size` bytes.
fn size_of(number: usize, count: usize, size: u64) -> u64 {
    let (number, count) = (number as u64, count as u64);
    let (stripes, rest) = (size / STRIPE, size % STRIPE);
    let whole = stripes / count + u64::from(number < stripes % count);
    whole * STRIPE + if number == stripes % count { rest } else { 0 }
}

/// Returns the number of files for `size` bytes in these directories.
///
/// A directory has one, and several if the files of all directories are in memory (tmpfs): the system allocates, writes and frees the
/// pages of one file with one thread at a time.
fn files_in(directories: &[PathBuf], size: u64) -> usize {
    let in_memory = directories.iter().all(|directory| is_in_memory(directory));
    directories.len() * if in_memory { files_for(size / directories.len() as u64) } else { 1 }
}

/// Returns the number of files for `size` bytes in one directory whose files are in memory.
fn files_for(size: u64) -> usize {
    (size / LEAST).clamp(1, MOST) as usize
}

/// Splits a range of a stream in `count` files at the boundaries of stripes.
fn parts(count: usize, at: u64, length: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (stripe, within) = ((at + done as u64) / STRIPE, (at + done as u64) % STRIPE);
        let end = if count == 1 { length } else { length.min(done + (STRIPE - within) as usize) };
        let range = done..end;
        done = end;
        let (file, before) = ((stripe % count as u64) as usize, stripe / count as u64);
        (!range.is_empty()).then_some(Part { file, offset: before * STRIPE + within, range })
    })
}

impl Store for Stripes {
    fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
        self.parts(at, bytes.len()).try_for_each(|(file, at, range)| file.write(at, &bytes[range]))
    }

    fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.parts(at, bytes.len()).try_for_each(|(file, at, range)| file.read(at, &mut bytes[range]))
    }

    fn settle(&self) -> Result<()> {
        self.0.iter().try_for_each(File::settle)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const S: u64 = STRIPE;

    #[test]
    fn each_byte_has_own_file_place() {
        let part = |file, offset, range| Part { file, offset, range };
        let all = |count, at, length| parts(count, at, length).collect::<Vec<_>>();
        let s = S as usize;
        assert_eq!(all(2, S - 1, 2), [part(0, S - 1, 0..1), part(1, 0, 1..2)]);
        assert_eq!(all(2, 3 * S + 5, s), [part(1, S + 5, 0..s - 5), part(0, 2 * S, s - 5..s)]);
        assert_eq!(all(3, 0, 4 * s)[3], part(0, S, 3 * s..4 * s));
        assert_eq!(all(3, 7, 0), []);
    }

    #[test]
    fn files_are_as_long_as_their_stripes() {
        for (size, expected) in
            [(0, [0, 0, 0]), (5, [5, 0, 0]), (S, [S, 0, 0]), (4 * S + 1, [2 * S, S + 1, S]), (3 * S, [S; 3])]
        {
            assert_eq!([0, 1, 2].map(|number| size_of(number, 3, size)), expected, "{size}");
            let last =
                parts(3, 0, size as usize).map(|part| (part.file, part.offset + part.range.len() as u64));
            for (file, end) in last {
                assert!(end <= expected[file], "{size}: file {file} ends at {end}");
            }
        }
    }

    #[test]
    fn one_file_takes_all_bytes_at_once() {
        let all = |at, length| parts(1, at, length).collect::<Vec<_>>();
        assert_eq!(all(S - 1, 3 * S as usize), [Part { file: 0, offset: S - 1, range: 0..3 * S as usize }]);
        assert_eq!(all(5, 0), []);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_has_several_files_disks_one() {
        let counts = [0, 1, 2 * LEAST - 1, 2 * LEAST, 16 * LEAST, 100 * LEAST].map(files_for);
        assert_eq!(counts, [1, 1, 1, 2, 16, 16]);
        let count = |directories: &[&str]| {
            let directories: Vec<PathBuf> = directories.iter().map(PathBuf::from).collect();
            files_in(&directories, 4 * LEAST)
        };
        assert_eq!((count(&["/dev/shm"]), count(&["/dev/shm", "/dev/shm"])), (4, 4));
        // A directory whose file system cannot be asked counts as a disk.
        assert_eq!(count(&[""]), 1);
        assert_eq!(count(&["", "/dev/shm"]), 2, "each directory receives the same amount");
        assert!(!is_in_memory("/proc".as_ref()));
    }

    /// Returns the number of this process's open files in a folder.
    #[cfg(target_os = "linux")]
    fn open_files(folder: &std::path::Path) -> usize {
        let folder = folder.canonicalize().unwrap();
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file.starts_with(&folder))).count()
    }

    #[test]
    fn files_alternate_between_existing_directories() {
        let parent = std::env::temp_dir().join(format!("gpu-vmm-stripes-{}", std::process::id()));
        let directories = ["first", "second", "third"].map(|name| parent.join(name));
        directories.iter().for_each(|directory| std::fs::create_dir_all(directory).unwrap());
        let new = |directories: &[PathBuf]| Stripes::new(Operation::Suspend, directories, Bytes(3 * S));
        let stripes = new(&directories).unwrap();
        assert_eq!(stripes.0.len(), 3);
        for (file, directory) in stripes.0.iter().zip(&directories) {
            let (shown, expected) = (format!("{file:?}"), format!("{directory:?}"));
            assert!(shown.contains(expected.trim_matches('"')), "{shown} in {expected}");
        }
        #[cfg(target_os = "linux")]
        assert!(open_files(&parent) >= 3);
        drop(stripes);
        #[cfg(target_os = "linux")]
        assert_eq!(open_files(&parent), 0, "a file stays open");
        let missing = parent.join("missing");
        for place in 0..3 {
            let mut directories = directories.clone();
            directories[place].clone_from(&missing);
            let error = new(&directories).map(drop).unwrap_err().to_string();
            assert!(error.contains(missing.to_str().unwrap()), "{error}");
        }
        std::fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn bytes_come_back_from_several_files() {
        let directories = [std::env::temp_dir(), std::env::temp_dir()];
        let bytes: Vec<u8> = (0..3 * S + 100).map(|at| (at / 1000) as u8).collect();
        let stripes = Stripes::new(Operation::Suspend, &directories, Bytes(bytes.len() as u64)).unwrap();
        let chunk = (S as usize / 3) * 2;
        for (number, chunk_bytes) in bytes.chunks(chunk).enumerate() {
            stripes.write(Bytes((number * chunk) as u64), chunk_bytes).unwrap();
        }
        stripes.settle().unwrap();
        let mut found = vec![0; bytes.len()];
        stripes.read(Bytes::ZERO, &mut found).unwrap();
        assert!(found == bytes);
        // Each file is as long as its part.
        for (file, end) in stripes.0.iter().zip([2 * S, S + 100]) {
            file.read(Bytes(end - 1), &mut [0]).unwrap();
            file.read(Bytes(end), &mut [0]).unwrap_err();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_file_is_synchronized() {
        for place in 0..2 {
            let mut files =
                vec![File::new(Operation::Suspend, &std::env::temp_dir(), Bytes::kib(64)).unwrap()];
            files.insert(place, File::without_disk());
            let stripes = Stripes(files);
            stripes.write(Bytes(S - 1), &[1, 2]).unwrap();
            let error = stripes.settle().unwrap_err().to_string();
            assert!(error.contains("suspend: /dev/null: fdatasync answered EINVAL"), "{error}");
        }
    }
}
