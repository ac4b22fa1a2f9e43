//! Where a pool's memory is, in numbers.

use gpu_vmm_core::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a pool's memory is. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    /// What live blocks asked for.
    pub live: u64,
    /// How many blocks are live.
    pub live_blocks: u64,
    /// What lies ready in front of threads, for the next request of the same size.
    pub cached: u64,
    /// What was freed and waits for a stream or a fence.
    pub pending: u64,
    /// Physical memory that nothing is in: it serves the next request, wherever that is.
    pub kept: u64,
    /// All physical memory of the pool.
    pub held: u64,
    /// The addresses behind which there is memory; free memory may be behind several.
    pub mapped: u64,
    /// The addresses that are reserved.
    pub reserved: u64,
    /// The most that blocks took at one time, rounded as they are.
    pub peak_live: u64,
    /// The most physical memory at one time.
    pub peak_held: u64,
    /// How many blocks were ever given out.
    pub allocations: u64,
    /// What drivers were asked to do.
    pub driver_calls: DriverCalls,
    /// Small blocks by their size.
    pub bins: Vec<BinStats>,
}

/// How often a pool has called the driver.
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
    /// All of them; it saturates, as they may be what a file says.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let mapping = self.create.saturating_add(self.map).saturating_add(self.unmap);
        mapping.saturating_add(self.set_access).saturating_add(self.other)
    }
}

/// Blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinStats {
    /// The size that requests are rounded up to.
    pub size: u64,
    /// How many are given out.
    pub live: u64,
    /// How many are ready, in memory that is held for them.
    pub free: u64,
}

impl PoolStats {
    /// The part of the held memory that no live block takes: 0 for none, 1 for all.
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
