//! Contents in several files, one for each of several disks.

use super::file::File;
use super::store::Store;
use crate::types::{Bytes, Operation, Result};
use std::ops::Range;
use std::path::PathBuf;

/// The number of bytes in a row that one file has: what a thread of a ring usually writes at a time.
const STRIPE: u64 = 4 << 20;

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
    /// Creates a file in each directory, with disk space for its part of `size` bytes.
    pub(super) fn new(operation: Operation, directories: &[PathBuf], size: Bytes) -> Result<Self> {
        let count = directories.len();
        let with_size = |(number, directory): (usize, &PathBuf)| {
            File::new(operation, directory, Bytes(size_of(number, count, size.0)))
        };
        directories.iter().enumerate().map(with_size).collect::<Result<_>>().map(Self)
    }

    fn parts(&self, at: Bytes, length: usize) -> impl Iterator<Item = (&File, Bytes, Range<usize>)> {
        parts(self.0.len(), at.0, length)
            .map(|Part { file, offset, range }| (&self.0[file], Bytes(offset), range))
    }
}

/// Returns the size of one of `count` files of a stream of `size` bytes.
fn size_of(number: usize, count: usize, size: u64) -> u64 {
    let (number, count) = (number as u64, count as u64);
    let (stripes, rest) = (size / STRIPE, size % STRIPE);
    let whole = stripes / count + u64::from(number < stripes % count);
    whole * STRIPE + if number == stripes % count { rest } else { 0 }
}

/// Splits a range of a stream in `count` files at the boundaries of stripes.
fn parts(count: usize, at: u64, length: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (stripe, within) = ((at + done as u64) / STRIPE, (at + done as u64) % STRIPE);
        let end = length.min(done + (STRIPE - within) as usize);
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
        self.0.iter().try_for_each(Store::settle)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const S: u64 = STRIPE;

    #[test]
    fn each_byte_has_a_place_of_its_own_in_one_file() {
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
}
