//! Contents on their way: which bytes of the ring's stream are which bytes of which memory, and which blocks of the file
//! these are.
//!
//! The ring's chunks are as long as its buffers, and the file's blocks are of one size. Where a chunk is made of whole
//! blocks, a block goes between buffer and file without another copy.

use crate::{Bytes, Result};

/// Several pieces of memory behind each other, as one stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// Where each begins, and where the last one ends.
    borders: Vec<Bytes>,
}

/// Some bytes of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InBlock {
    /// Which block of the memory.
    pub(super) block: u64,
    /// Where they begin in the block.
    pub(super) start: usize,
    /// How many they are.
    pub(super) length: usize,
    /// How long the block is: the memory's last one may be shorter than the others.
    pub(super) whole: usize,
}

impl Stream {
    pub(super) fn new(sizes: impl IntoIterator<Item = Bytes>) -> Self {
        let mut borders = vec![Bytes::ZERO];
        let mut end = Bytes::ZERO;
        for size in sizes {
            end += size;
            borders.push(end);
        }
        Self { borders }
    }

    /// Which piece has the byte, as which of its own, and how long the piece is.
    pub(super) fn at(&self, offset: Bytes) -> (usize, Bytes, Bytes) {
        let piece = self.borders.partition_point(|border| *border <= offset).saturating_sub(1);
        let border = |at: usize| self.borders.get(at).copied().unwrap_or(offset);
        (piece, offset - border(piece), border(piece + 1) - border(piece))
    }
}

/// Some bytes of memory of `size`, from `offset` on, cut at the borders of its blocks of `unit` bytes.
pub(super) fn blocks(
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

/// Fills bytes of memory of `size`, which begin at `offset` in it, from its blocks of `unit` bytes, of which `read`
/// gives a whole one.
pub(super) fn fill(
    size: Bytes,
    unit: Bytes,
    offset: Bytes,
    bytes: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut rest = bytes;
    for part in blocks(size, unit, offset, rest.len()) {
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.length);
        if part.length == part.whole {
            read(part.block, here)?;
        } else {
            let mut block = vec![0; part.whole];
            read(part.block, &mut block)?;
            here.copy_from_slice(&block[part.start..part.start + part.length]);
        }
        rest = behind;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Bytes = Bytes(256);

    #[test]
    fn each_byte_of_the_stream_is_one_of_a_piece() {
        let stream = Stream::new([Bytes(10), Bytes(1), Bytes(20)]);
        for (offset, piece, at, size) in [(0, 0, 0, 10), (9, 0, 9, 10), (10, 1, 0, 1), (11, 2, 0, 20)] {
            assert_eq!(stream.at(Bytes(offset)), (piece, Bytes(at), Bytes(size)));
        }
    }

    #[test]
    fn parts_are_cut_at_the_borders_of_blocks() {
        let unit = BLOCK.0 as usize;
        let size = Bytes(BLOCK.0 * 2 + 100);
        let cut = |offset, length| blocks(size, BLOCK, Bytes(offset), length).collect::<Vec<_>>();
        let part = |block, start, length, whole| InBlock { block, start, length, whole };
        assert_eq!(cut(0, unit), [part(0, 0, unit, unit)]);
        assert_eq!(cut(BLOCK.0 - 1, 2), [part(0, unit - 1, 1, unit), part(1, 0, 1, unit)]);
        assert_eq!(cut(BLOCK.0 * 2, 100), [part(2, 0, 100, 100)]);
        assert_eq!(cut(BLOCK.0 * 2 + 99, 1), [part(2, 99, 1, 100)]);
        assert_eq!(cut(7, 0), []);
    }

    #[test]
    fn bytes_come_from_their_places_in_the_blocks() {
        let size = Bytes(BLOCK.0 + 10);
        let read = |block: u64, bytes: &mut [u8]| {
            for (place, byte) in bytes.iter_mut().enumerate() {
                *byte = (block * 100) as u8 + (place % 100) as u8;
            }
            Ok(())
        };
        let mut bytes = [0; 6];
        fill(size, BLOCK, BLOCK - Bytes(2), &mut bytes, read).unwrap();
        let last = ((BLOCK.0 - 2) % 100) as u8;
        assert_eq!(bytes, [last, last + 1, 100, 101, 102, 103]);
    }
}
