//! A range of offsets.

use crate::types::Bytes;
use std::fmt;

/// A range of a region or of physical memory: where it begins, and how long it is.
///
/// ```
/// use gpu_vmm_core::{Bytes, OffsetRange};
///
/// let range = OffsetRange { offset: Bytes::mib(6), length: Bytes::mib(4) };
/// assert_eq!(range.end(), Bytes::mib(10));
/// assert_eq!(range.to_string(), "4 MiB at offset 6 MiB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OffsetRange {
    /// Where it begins.
    pub offset: Bytes,
    /// How long it is.
    pub length: Bytes,
}

impl OffsetRange {
    /// The first offset behind it. The sum must fit 64 bits.
    #[must_use]
    pub fn end(self) -> Bytes {
        self.offset + self.length
    }

    /// Ranges in order, those that follow each other without a hole as one.
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

    /// What is left of the range from an offset in it on.
    pub(crate) fn from(self, offset: Bytes) -> Self {
        Self { offset, length: self.end() - offset }
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}", self.length, self.offset)
    }
}
