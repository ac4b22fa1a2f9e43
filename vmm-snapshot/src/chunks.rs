//! Mapping the ring's byte stream to the memories, and those to the blocks of the file.
//!
//! The ring's chunks are as long as its buffers, and the file's blocks have one size. If a chunk consists of whole blocks, each
//! block is copied between buffer and file directly.

use gpu_vmm_core::{Bytes, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Several memories in sequence, as one stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The beginning of each memory, and the end of the last one.
    borders: Vec<Bytes>,
}

/// A range of bytes of one memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InPiece {
    pub(crate) piece: usize,
    /// The offset of the range in the memory.
    start: Bytes,
    /// The number of bytes.
    pub(crate) length: usize,
    /// The size of the memory.
    whole: Bytes,
}

impl InPiece {
    /// Splits the range at the boundaries of blocks of `unit` bytes.
    pub(crate) fn blocks(self, unit: Bytes) -> impl Iterator<Item = InBlock> {
        blocks(self.whole, unit, self.start, self.length)
    }
}

/// A range of bytes of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InBlock {
    /// The number of the block in the memory.
    pub(crate) block: u64,
    /// The offset of the range in the block.
    pub(crate) start: usize,
    /// The number of bytes.
    pub(crate) length: usize,
    /// The size of the block: the memory's last block can be shorter.
    pub(crate) whole: usize,
}

impl Stream {
    pub(crate) fn new(sizes: impl IntoIterator<Item = Bytes>) -> Self {
        let mut borders = vec![Bytes::ZERO];
        let mut end = Bytes::ZERO;
        for size in sizes {
            end += size;
            borders.push(end);
        }
        Self { borders }
    }

    /// Returns the memory that has the byte, the byte's offset in it, and the memory's size.
    pub(crate) fn at(&self, offset: Bytes) -> (usize, Bytes, Bytes) {
        let piece = self.borders.partition_point(|border| *border <= offset).saturating_sub(1);
        let border = |at: usize| self.borders.get(at).copied().unwrap_or(offset);
        (piece, offset - border(piece), border(piece + 1) - border(piece))
    }

    /// Splits a range of the stream at the boundaries of its memories; bytes beyond the end are left out.
    pub(crate) fn parts(&self, offset: Bytes, length: usize) -> impl Iterator<Item = InPiece> {
        let (mut at, mut left) = (offset, length);
        std::iter::from_fn(move || {
            let (piece, start, whole) = self.at(at);
            let length = (whole - start).to_usize().map_or(left, |here| here.min(left));
            left -= length;
            at += Bytes(length as u64);
            (length > 0).then_some(InPiece { piece, start, length, whole })
        })
    }
}

/// Splits a range of a memory of `size` bytes at the boundaries of its blocks of `unit` bytes.
pub(crate) fn blocks(
    size: Bytes,
    unit: Bytes,
    offset: Bytes,
    length: usize,
) -> impl Iterator<Item = InBlock> {
    let mut at = offset;
    let mut left = length;
    std::iter::from_fn(move || {
        let block = at.0.checked_div(unit.0)?;
        let first = Bytes(block.saturating_mul(unit.0));
        let whole = (size - first).min(unit).to_usize()?;
        let start = (at - first).to_usize()?;
        let length = left.min(whole.saturating_sub(start));
        left -= length;
        at += Bytes(length as u64);
        (length > 0).then_some(InBlock { block, start, length, whole })
    })
}

/// The last blocks that were read for a part only, since another chunk soon needs the rest.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Read>>);

/// A block of a memory, and its bytes: empty until it has been read.
#[derive(Debug)]
struct Read {
    of: (usize, u64),
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Recent {
    /// The number of threads that can read chunks of different blocks without reading a block twice.
    const MAX: usize = 4;

    /// Fills a range of a memory from its blocks of `unit` bytes; `read` reads a whole block.
    pub(crate) fn fill(
        &self,
        part: InPiece,
        unit: Bytes,
        bytes: &mut [u8],
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut rest = bytes;
        for InBlock { block, start, length, whole } in part.blocks(unit) {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(length);
            if length == whole {
                read(block, here)?;
            } else {
                let shared = self.of(part.piece, block);
                // Another thread that needs the same block waits for it here.
                let mut all = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if all.is_empty() {
                    let mut fresh = vec![0; whole];
                    read(block, &mut fresh)?;
                    *all = fresh;
                }
                here.copy_from_slice(&all[start..start + length]);
            }
            rest = behind;
        }
        Ok(())
    }

    fn of(&self, piece: usize, block: u64) -> Arc<Mutex<Vec<u8>>> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (piece, block);
        if let Some(known) = recent.iter().find(|known| known.of == of) {
            return Arc::clone(&known.bytes);
        }
        if recent.len() == Self::MAX {
            recent.pop_front();
        }
        let bytes = Arc::default();
        recent.push_back(Read { of, bytes: Arc::clone(&bytes) });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const BLOCK: Bytes = Bytes(256);

    #[test]
    fn bytes_come_from_their_block_places() {
        let reads = Cell::new(0);
        let read = |block: u64, bytes: &mut [u8]| {
            reads.set(reads.get() + 1);
            for (place, byte) in bytes.iter_mut().enumerate() {
                *byte = (block * 100) as u8 + (place % 100) as u8;
            }
            Ok(())
        };
        let (recent, stream) = (Recent::default(), Stream::new([BLOCK + Bytes(10)]));
        let fill = |offset: Bytes, bytes: &mut [u8]| {
            for part in stream.parts(offset, bytes.len()) {
                recent.fill(part, BLOCK, bytes, read).unwrap();
            }
        };
        let mut bytes = [0; 6];
        fill(BLOCK - Bytes(2), &mut bytes);
        let last = ((BLOCK.0 - 2) % 100) as u8;
        assert_eq!(bytes, [last, last + 1, 100, 101, 102, 103]);
        // A stored block is not read again, and only `MAX` blocks are stored.
        fill(Bytes(1), &mut bytes);
        assert_eq!((bytes, reads.get()), ([1, 2, 3, 4, 5, 6], 2));
        for block in 2..=Recent::MAX as u64 {
            recent.of(0, block);
        }
        fill(Bytes(1), &mut bytes);
        assert_eq!(reads.get(), 3);
        // A whole block is read directly into its destination and is not stored.
        fill(Bytes::ZERO, &mut [0; BLOCK.0 as usize]);
        fill(BLOCK, &mut [0; 10]);
        assert_eq!(reads.get(), 5);
    }

    #[test]
    fn what_cannot_be_read_is_tried_again() {
        let (recent, stream) = (Recent::default(), Stream::new([BLOCK]));
        let part = stream.parts(Bytes::ZERO, 1).next().unwrap();
        let error =
            || Err(gpu_vmm_core::Error::new(gpu_vmm_core::Operation::Read, gpu_vmm_core::Detail::ZeroSize));
        recent.fill(part, BLOCK, &mut [0], |_, _| error()).unwrap_err();
        recent.fill(part, BLOCK, &mut [0], |_, _| error()).unwrap_err();
        recent.fill(part, BLOCK, &mut [0], |_, _| Ok(())).unwrap();
    }
}
