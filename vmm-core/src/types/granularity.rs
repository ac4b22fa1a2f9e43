//! The unit in which physical memory is created and mapped, and the alignment of addresses.

use crate::types::Bytes;
use std::fmt;

/// The unit of physical memory: every size, offset and address of a mapping is a multiple of it.
///
/// A power of two. What CUDA and HIP answer to `cuMemGetAllocationGranularity` and
/// `hipMemGetAllocationGranularity`, or more where a backend knows that less does not work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granularity(u64);

impl Granularity {
    /// One byte: what every number is a multiple of.
    pub const BYTE: Self = Self(1);

    /// A granularity of `bytes`, or `None` where that is not a power of two.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Option<Self> {
        if bytes.0.is_power_of_two() { Some(Self(bytes.0)) } else { None }
    }

    /// The unit in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }

    /// `size` rounded up to a multiple, or `None` where that is more than 2^64 - 1.
    ///
    /// ```
    /// use gpu_vmm_core::{Bytes, Granularity};
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

    /// True for a multiple of the unit, zero included.
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

/// The alignment that is asked of a reservation's first address: a power of two, at most 2^46.
///
/// 2^46 is half of the address space that x86-64 gives a process; nothing larger can be had.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alignment(u64);

impl Alignment {
    /// The largest alignment that can be asked for.
    pub const MAX: Bytes = Bytes(1 << 46);

    /// An alignment of `bytes`, or none if `bytes` is zero, not a power of two, or above [`Alignment::MAX`].
    #[must_use]
    pub const fn new(bytes: Bytes) -> Option<Self> {
        if bytes.0.is_power_of_two() && bytes.0 <= Self::MAX.0 { Some(Self(bytes.0)) } else { None }
    }

    /// The alignment in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

impl From<Granularity> for Alignment {
    /// A granularity is a power of two of the same kind, far below the largest alignment.
    fn from(granularity: Granularity) -> Self {
        Self(granularity.0)
    }
}
