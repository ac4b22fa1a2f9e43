//! Ranges of offsets.

use crate::types::Bytes;
use std::fmt;

/// A range of offsets in a region or in physical memory.
///
/// ```
/// # use gpu_vmm_core as gpu_vmm;
/// use gpu_vmm::{Bytes, OffsetRange};
///
/// let range = OffsetRange { offset: Bytes::mib(6), length: Bytes::mib(4) };
/// assert_eq!(range.end(), Bytes::mib(10));
/// assert_eq!(range.to_string(), "4 MiB at offset 6 MiB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OffsetRange {
    /// The first offset.
    pub offset: Bytes,
    /// The length of the range.
    pub length: Bytes,
}

impl OffsetRange {
    /// Returns the first offset after the range. Saturates at 2^64 - 1.
    #[must_use]
    pub fn end(self) -> Bytes {
        self.offset + self.length
    }

    /// Merges ranges that follow each other without a hole. The ranges must be in ascending order.
    pub(crate) fn joined(ranges: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end() == range.offset => last.length += range.length,
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns the part of the range from `offset` to its end.
    pub(crate) fn from(self, offset: Bytes) -> Self {
        Self { offset, length: self.end() - offset }
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}", self.length, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, length: u64) -> OffsetRange {
        OffsetRange { offset: Bytes(offset), length: Bytes(length) }
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let ranges = [range(0, 2), range(2, 3), range(6, 1), range(7, 1), range(4, 2)];
        assert_eq!(OffsetRange::joined(ranges.into_iter()), [range(0, 5), range(6, 2), range(4, 2)]);
        assert_eq!(OffsetRange::joined(std::iter::empty()), []);
    }

    #[test]
    fn rest_of_range_has_same_end() {
        assert_eq!((range(2, 8).from(Bytes(5)), range(2, 8).end()), (range(5, 5), Bytes(10)));
    }
}
