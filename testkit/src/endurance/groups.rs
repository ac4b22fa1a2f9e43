//! The groups of sizes that have addresses of their own, and the sizes of blocks that are slots of slabs.

/// The smallest size of a range.
pub(super) const UNIT: u64 = 512;

/// The ratio of the largest to the smallest size of a group, as a power of two.
const RATIO_BITS: u32 = 4;

/// The largest size that is a slot of a slab.
pub(super) const SLOT: u64 = 64 << 10;

/// Returns the group of a size: each group has sizes up to 16 times its smallest one.
pub(super) fn group_of(size: u64) -> u32 {
    (size.max(UNIT) / UNIT).ilog2() / RATIO_BITS
}

/// Returns the size that all sizes of a group are below.
pub(super) const fn largest_of(group: u32) -> u64 {
    UNIT << ((group + 1) * RATIO_BITS)
}

/// Returns what the size of a block without a size class is rounded up to a multiple of.
pub(super) fn step(alignment: u64) -> u64 {
    alignment.clamp(UNIT, 4 << 10)
}

/// Returns the addresses that a block needs: a gap next to an aligned block may be as large as the alignment.
pub(super) fn footprint(capacity: u64, alignment: u64) -> u64 {
    if alignment > UNIT { capacity.saturating_add(alignment) } else { capacity }
}

/// Returns true if blocks of this size are slots of slabs, if they have no larger alignment.
pub(super) const fn is_slot(capacity: u64, alignment: u64) -> bool {
    capacity <= SLOT && alignment <= UNIT
}

/// Returns the size of the largest block of the addresses that a block is in: for blocks of up to 1 MiB, or for a group of
/// larger ones.
pub(super) fn largest(capacity: u64, alignment: u64) -> u64 {
    const SMALL_BITS: u32 = 20;
    if capacity <= 1 << SMALL_BITS && alignment <= 2 << SMALL_BITS {
        return 1 << SMALL_BITS;
    }
    let bits = (capacity.max(alignment) - 1).ilog2();
    1 << (SMALL_BITS + (bits.saturating_sub(SMALL_BITS) / RATIO_BITS + 1) * RATIO_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_serve_blocks_of_limited_size() {
        const MIB: u64 = 1 << 20;
        let all =
            [(1, 256), (MIB, 2 * MIB), (MIB + 1, 256), (16 * MIB, 256), (16 * MIB + 1, 256), (1, 32 * MIB)];
        let found = all.map(|(capacity, alignment)| largest(capacity, alignment) / MIB);
        assert_eq!(found, [1, 1, 16, 16, 256, 256]);
    }

    #[test]
    fn group_sizes_differ_by_16_times() {
        let groups = [1, 512, 8191, 8192, 131_071, 131_072, 2 << 20].map(group_of);
        assert_eq!(groups, [0, 0, 0, 1, 1, 2, 3]);
        assert_eq!([0, 1, 2].map(largest_of), [8192, 131_072, 2 << 20]);
    }
}
