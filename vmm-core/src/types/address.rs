//! Addresses in the unified address space of devices and host, and ranges of them.

use crate::types::Bytes;
use std::fmt;

/// A device address. CUDA: `CUdeviceptr`, HIP: `hipDeviceptr_t`.
///
/// The CPU must not dereference it unless the backend allows that (host memory).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `offset` bytes higher, or `None` if it exceeds 2^64 - 1.
    #[must_use]
    pub const fn checked_add(self, offset: Bytes) -> Option<Self> {
        match self.0.checked_add(offset.0) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    /// Returns true if the address is a multiple of `alignment` and `alignment` is not zero.
    #[must_use]
    pub const fn is_aligned_to(self, alignment: Bytes) -> bool {
        alignment.0 != 0 && self.0.is_multiple_of(alignment.0)
    }

    /// Converts the address to a pointer, for APIs that take one.
    #[must_use]
    pub fn as_ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

impl std::ops::Add<Bytes> for Address {
    type Output = Self;
    /// Returns the address `offset` bytes higher, for offsets inside an existing range; saturates otherwise.
    fn add(self, offset: Bytes) -> Self {
        Self(self.0.saturating_add(offset.0))
    }
}

impl std::ops::Sub for Address {
    type Output = Bytes;
    /// Returns the distance from `other` to this address. Saturates at zero, so that no caller's number causes a panic.
    fn sub(self, other: Self) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Sub<Bytes> for Address {
    type Output = Self;
    /// Returns the address `offset` bytes lower; saturates at address 0.
    fn sub(self, offset: Bytes) -> Self {
        Self(self.0.saturating_sub(offset.0))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:#x}", self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A contiguous range of addresses: `size` bytes from `base`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first address.
    pub base: Address,
    /// The size of the range.
    pub size: Bytes,
}

impl AddressRange {
    /// Returns the first address after the range.
    #[must_use]
    pub fn end(self) -> Address {
        self.base + self.size
    }

    /// Returns true if the range contains `address`.
    #[must_use]
    pub fn contains(self, address: Address) -> bool {
        self.base <= address && address < self.end()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} ({})", self.base, self.end(), self.size)
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_sizes() {
        let (low, high) = (Address(0x1000), Address(0x3000));
        assert_eq!((high - low, high - Bytes(0x2000), low + Bytes(0x2000)), (Bytes(0x2000), low, high));
        assert_eq!((low - high, low - Bytes(0x2000)), (Bytes::ZERO, Address(0)));
        assert_eq!(Address(u64::MAX) + Bytes(1), Address(u64::MAX));
        assert_eq!(
            (low.checked_add(Bytes(0x2000)), Address(u64::MAX).checked_add(Bytes(1))),
            (Some(high), None)
        );
    }

    #[test]
    fn a_range_ends_before_its_end() {
        let range = AddressRange { base: Address(0x1000), size: Bytes(0x2000) };
        let inside = [0xfff, 0x1000, 0x2fff, 0x3000].map(|address| range.contains(Address(address)));
        assert_eq!(inside, [false, true, true, false]);
        assert_eq!((range.end(), range.to_string()), (Address(0x3000), "0x1000..0x3000 (8 KiB)".to_owned()));
        assert_eq!(
            [0, 0x800, 0x1800].map(|unit| Address(0x1000).is_aligned_to(Bytes(unit))),
            [false, true, false]
        );
    }
}
