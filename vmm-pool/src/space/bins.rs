//! Free ranges by size.
//!
//! Sizes below 32 units have a bin each. Above, each power of two is divided into 32 bins, so that the sizes in a bin differ
//! by at most 3 %. A bitmap shows which bins contain a range.

/// The unit of offsets and sizes: all are multiples of it.
pub(crate) const UNIT: u64 = 512;

const DIVISIONS: usize = 32;
const DIVISION_BITS: u32 = DIVISIONS.ilog2();
/// The number of bins: up to 2^36 units, which is 32 TiB, a quarter of a process's address space.
const COUNT: usize = DIVISIONS * 32;
const WORDS: usize = COUNT / 64;

/// The number for no range.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Bins {
    /// The first range of each bin.
    heads: Box<[u32]>,
    filled: [u64; WORDS],
    /// One bit for each word of `filled` that is not zero.
    words: u32,
}

impl Bins {
    pub(super) fn new() -> Self {
        Self { heads: vec![NONE; COUNT].into(), filled: [0; WORDS], words: 0 }
    }

    /// Returns the bin of a size.
    #[inline]
    pub(super) fn of(size: u64) -> usize {
        let units = size / UNIT;
        if units < DIVISIONS as u64 {
            return units as usize;
        }
        let power = units.ilog2();
        let division = (units >> (power - DIVISION_BITS)) as usize % DIVISIONS;
        let bin = (power - DIVISION_BITS + 1) as usize * DIVISIONS + division;
        bin.min(COUNT - 1)
    }

    #[inline]
    pub(super) fn head(&self, bin: usize) -> u32 {
        self.heads[bin]
    }

    /// Puts a range before the others of a bin. Returns the one that was the first.
    #[inline]
    pub(super) fn put_first(&mut self, bin: usize, range: u32) -> u32 {
        let head = std::mem::replace(&mut self.heads[bin], range);
        if head == NONE {
            self.filled[bin / 64] |= 1 << (bin % 64);
            self.words |= 1 << (bin / 64);
        }
        head
    }

    /// Puts a range, or none, in the place of the first one of a bin.
    #[inline]
    pub(super) fn replace_first(&mut self, bin: usize, range: u32) {
        self.heads[bin] = range;
        if range == NONE {
            let word = &mut self.filled[bin / 64];
            *word &= !(1 << (bin % 64));
            self.words &= !(u32::from(*word == 0) << (bin / 64));
        }
    }

    /// Returns the first bin from `bin` on that contains a range.
    #[inline]
    pub(super) fn filled_from(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.filled.get(word)? & (!0 << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let behind = self.words & (!0 << word << 1);
        let next = behind.trailing_zeros() as usize;
        let bits = self.filled.get(next)?;
        Some(next * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_sizes_have_no_smaller_bins() {
        let mut last = 0;
        let mut size = UNIT;
        while size < 1 << 44 {
            let bin = Bins::of(size);
            assert!(
                bin == last || bin == last + 1 || size / UNIT < 2,
                "{size} is in bin {bin} behind {last}"
            );
            last = bin;
            size = (size + size / 64).next_multiple_of(UNIT);
        }
        assert!(Bins::of(u64::MAX) < COUNT);
    }

    #[test]
    fn the_next_filled_bin_is_found() {
        let mut bins = Bins::new();
        assert_eq!(bins.filled_from(0), None);
        for bin in [3, 64, 700] {
            bins.put_first(bin, 1);
        }
        let found: Vec<_> = [0, 3, 4, 64, 65, 701].map(|from| bins.filled_from(from)).into();
        assert_eq!(found, [Some(3), Some(3), Some(64), Some(64), Some(700), None]);
        bins.replace_first(64, NONE);
        assert_eq!(bins.filled_from(4), Some(700));
        assert_eq!(bins.filled_from(COUNT), None);
    }
}
