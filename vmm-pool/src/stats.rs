//! The statistics of a pool.

use gpu_vmm_core::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The statistics of a pool. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    /// The requested sizes of all live blocks.
    pub live: u64,
    /// The number of live blocks.
    pub live_blocks: u64,
    /// The memory in thread caches, for the next requests of the same size.
    pub cached: u64,
    /// The memory that was freed and waits for a stream or a fence.
    pub pending: u64,
    /// The physical memory that contains no block. It serves the next request, at any address.
    pub kept: u64,
    /// All physical memory of the pool.
    pub held: u64,
    /// The addresses with memory mapped at them. Free memory may be mapped at several.
    pub mapped: u64,
    /// The reserved addresses.
    pub reserved: u64,
    /// The most that all taken ranges occupied at one time: blocks, rounded up, including slabs, cached and pending blocks.
    pub peak_live: u64,
    /// The most physical memory that the pool held at one time.
    pub peak_held: u64,
    /// The number of blocks that the pool has ever allocated.
    pub allocations: u64,
    /// The number of driver calls, by kind, without those by which regions are suspended and resumed.
    pub driver_calls: DriverCalls,
    /// Small blocks, by size.
    pub bins: Vec<BinStats>,
}

/// The number of a pool's driver calls, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCalls {
    /// `cuMemCreate`, `hipMemCreate`.
    pub create: u64,
    /// `cuMemMap`, `hipMemMap`.
    pub map: u64,
    /// `cuMemUnmap`, `hipMemUnmap`.
    pub unmap: u64,
    /// `cuMemSetAccess`, `hipMemSetAccess`.
    pub set_access: u64,
    /// Releases, reservations, events and waits.
    pub other: u64,
}

impl DriverCalls {
    /// Returns the sum of all calls. It saturates, since the numbers may come from a file.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let mapping = self.create.saturating_add(self.map).saturating_add(self.unmap);
        mapping.saturating_add(self.set_access).saturating_add(self.other)
    }

    /// Counts further calls.
    pub(crate) const fn add(&mut self, calls: Self) {
        self.create += calls.create;
        self.map += calls.map;
        self.unmap += calls.unmap;
        self.set_access += calls.set_access;
        self.other += calls.other;
    }
}

/// The number of blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinStats {
    /// The size that requests are rounded up to.
    pub size: u64,
    /// The number of live blocks.
    pub live: u64,
    /// The number of free blocks, in memory that the pool holds for them.
    pub free: u64,
}

impl PoolStats {
    /// Returns the fraction of the held memory that no live block uses, from 0 to 1.
    #[must_use]
    pub fn unused(&self) -> f64 {
        if self.held == 0 { 0.0 } else { 1.0 - self.live as f64 / self.held as f64 }
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { live, live_blocks, cached, pending, kept, held, reserved, .. } = self;
        write!(
            f,
            "the pool holds {} for {live_blocks} blocks of {}, {} ready in caches, {} pending, {} kept; {} of addresses are \
             reserved",
            Bytes(*held),
            Bytes(*live),
            Bytes(*cached),
            Bytes(*pending),
            Bytes(*kept),
            Bytes(*reserved)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_sum_counts_every_kind_and_saturates() {
        let calls = DriverCalls { create: 1, map: 20, unmap: 300, set_access: 4000, other: 50_000 };
        assert_eq!(calls.total(), 54_321);
        assert_eq!(DriverCalls { create: u64::MAX, ..calls }.total(), u64::MAX);
        assert_eq!(DriverCalls { set_access: u64::MAX, ..calls }.total(), u64::MAX);
        assert_eq!(DriverCalls { other: u64::MAX, ..calls }.total(), u64::MAX);
    }

    #[test]
    fn unused_part_is_a_valid_fraction() {
        for (live, held, unused) in [(0, 0, 0.0), (0, 8, 1.0), (2, 8, 0.75), (8, 8, 0.0)] {
            assert_eq!(PoolStats { live, held, ..PoolStats::default() }.unused(), unused, "{live} of {held}");
        }
    }

    #[test]
    fn the_text_names_each_amount() {
        let (live, live_blocks, cached, pending) = (1, 2, 3, 4);
        let (kept, held, reserved) = (5, 6, 7);
        let stats =
            PoolStats { live, live_blocks, cached, pending, kept, held, reserved, ..PoolStats::default() };
        let text = "the pool holds 6 B for 2 blocks of 1 B, 3 B ready in caches, 4 B pending, 5 B kept; 7 B of \
                    addresses are reserved";
        assert_eq!(stats.to_string(), text);
    }
}
