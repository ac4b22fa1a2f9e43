//! Allocation granularity and the alignment of reservations.

use crate::types::Bytes;
use std::fmt;

/// An allocation granularity: every size, offset and address of a mapping must be a multiple of it.
///
/// A power of two. It is the value that `cuMemGetAllocationGranularity` and `hipMemGetAllocationGranularity` return, or a
/// larger one if the backend knows that the smaller one does not work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granularity(u64);

impl Granularity {
    /// A granularity of one byte, of which every number is a multiple.
    pub const BYTE: Self = Self(1);

    /// Creates a granularity of `bytes`, or returns `None` if `bytes` is not a power of two.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Option<Self> {
        if bytes.0.is_power_of_two() { Some(Self(bytes.0)) } else { None }
    }

    /// Returns the granularity in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }

    /// Rounds `size` up to a multiple, or returns `None` if the result exceeds 2^64 - 1.
    ///
    /// ```
    /// # use gpu_vmm_core as gpu_vmm;
    /// use gpu_vmm::{Bytes, Granularity};
    /// let granularity = Granularity::new(Bytes::mib(2)).unwrap();
    /// assert_eq!(granularity.round_up(Bytes(1)), Some(Bytes::mib(2)));
    /// assert_eq!(granularity.round_up(Bytes(u64::MAX)), None);
    /// ```
    #[must_use]
    pub const fn round_up(self, size: Bytes) -> Option<Bytes> {
        match size.0.checked_next_multiple_of(self.0) {
            Some(rounded) => Some(Bytes(rounded)),
            None => None,
        }
    }

    /// Returns true if `size` is a multiple of the granularity. Zero is one.
    #[must_use]
    pub const fn divides(self, size: Bytes) -> bool {
        size.0.is_multiple_of(self.0)
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

impl fmt::Debug for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The alignment of a reservation's first address: a power of two, at most 2^46.
///
/// 2^46 is half of the address space of an x86-64 process, so a larger alignment cannot be satisfied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alignment(u64);

impl Alignment {
    /// The largest alignment that can be requested.
    pub const MAX: Bytes = Bytes(1 << 46);

    /// Creates an alignment of `bytes`, or returns `None` if `bytes` is zero, not a power of two, or above [`Alignment::MAX`].
    #[must_use]
    pub const fn new(bytes: Bytes) -> Option<Self> {
        if bytes.0.is_power_of_two() && bytes.0 <= Self::MAX.0 { Some(Self(bytes.0)) } else { None }
    }

    /// Returns the alignment in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

impl From<Granularity> for Alignment {
    /// Converts a granularity, which is a power of two far below the largest alignment.
    fn from(granularity: Granularity) -> Self {
        Self(granularity.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_are_units() {
        let units = [0, 1, 3, 4096, 1 << 46, 1 << 47].map(Bytes);
        let powers = [false, true, false, true, true, true];
        assert_eq!(units.map(|unit| Granularity::new(unit).is_some()), powers);
        assert_eq!(units.map(|unit| Alignment::new(unit).is_some()), [false, true, false, true, true, false]);
    }

    #[test]
    fn sizes_are_rounded_up_to_multiples() {
        let unit = Granularity::new(Bytes(4096)).unwrap_or(Granularity::BYTE);
        let sizes = [0, 1, 4096, 4097, u64::MAX].map(Bytes);
        let rounded = [Some(0), Some(4096), Some(4096), Some(8192), None].map(|size| size.map(Bytes));
        assert_eq!(sizes.map(|size| unit.round_up(size)), rounded);
        assert_eq!(sizes.map(|size| unit.divides(size)), [true, false, true, false, false]);
        assert_eq!((unit.bytes(), Alignment::from(unit).bytes()), (Bytes(4096), Bytes(4096)));
    }
}
