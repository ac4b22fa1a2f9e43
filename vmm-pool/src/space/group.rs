//! The groups of sizes that share addresses, so that gaps between blocks stay bounded.
//!
//! Best fit leaves few gaps in all programs that were recorded, whatever the sizes, but nothing bounds them: blocks of the smallest
//! size can keep gaps apart that are too small for the largest. So blocks of all sizes share addresses up to a multiple of what the
//! pool needs ([`MIXED_ADDRESSES`]), and beyond it each group of sizes has its own.
//!
//! A group is extended only if no ready range fits a request, so every ready range is smaller than the group's largest block then, and
//! there is at most one more of them than of taken and waiting ranges. So the addresses of a group are at most 17 L + 2 h, where the
//! taken and waiting ranges occupied at most L bytes and h is the largest size. The crate's documentation (`# What bounds it`) says how
//! L counts ranges with alignments, and ranges below h / 16, which only the group of small blocks has.

/// A group of sizes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Group(u8);

/// The addresses for large blocks of all sizes, as a multiple of the most memory that was ever allocated.
pub(crate) const MIXED_ADDRESSES: u64 = 4;

/// The addresses that all sizes may use beyond that, in pages: a multiple of little is less than a few odd blocks need.
pub(crate) const MIXED_PAGES: u64 = 64;

/// The ratio of the largest and the smallest size of a group, as a power of two.
const RATIO: u32 = 4;

/// The largest size of slabs and medium blocks: 1 MiB, as a power of two.
const SMALL_POWER: u32 = 20;

impl Group {
    /// Slabs, and blocks of up to 1 MiB. All have at least 58 KiB, except blocks of a capture or with an alignment above 512 bytes.
    pub(crate) const SMALL: Self = Self(0);

    /// Large blocks of all sizes.
    pub(crate) const MIXED: Self = Self(1);

    /// Blocks at addresses that the caller chooses. No other block is placed there.
    pub(crate) const CHOSEN: Self = Self(u8::MAX);

    /// Returns the number by which files name the group.
    #[cfg(feature = "snapshot")]
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// Returns the group with a number.
    #[cfg(feature = "snapshot")]
    pub(crate) const fn of_number(number: u8) -> Self {
        Self(number)
    }

    /// Returns the group of large blocks of a size. An aligned block needs as many addresses as its alignment.
    pub(crate) const fn of(size: u64, alignment: u64) -> Self {
        let size = if size > alignment { size } else { alignment };
        let power = (size.saturating_sub(1) | 1).ilog2();
        Self(2 + (power.saturating_sub(SMALL_POWER) / RATIO) as u8)
    }

    /// Returns the size of the largest block of the group of a size.
    pub(crate) const fn largest(self) -> u64 {
        let above = self.0.saturating_sub(1) as u32;
        let power = SMALL_POWER + above * RATIO;
        if power < u64::BITS { 1 << power } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_sizes_differ_at_most_sixteenfold() {
        const MIB: u64 = 1 << 20;
        for (size, group, largest) in [
            (1, 2, 16),
            (MIB + 1, 2, 16),
            (16 * MIB, 2, 16),
            (16 * MIB + 1, 3, 256),
            (256 * MIB, 3, 256),
            (256 * MIB + 1, 4, 4096),
            (4096 * MIB, 4, 4096),
        ] {
            assert_eq!(Group::of(size, 256), Group(group), "{size}");
            assert_eq!(Group(group).largest(), largest * MIB, "{size}");
        }
        assert_eq!(Group::of(4096, 32 * MIB), Group(3));
        assert_eq!(Group::of(u64::MAX, 1).largest(), u64::MAX);
        assert_eq!(Group::SMALL.largest(), MIB);
    }
}
