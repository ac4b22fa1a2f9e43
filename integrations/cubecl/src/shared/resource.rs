//! The memory behind a handle, and the pool's statistics in the form of cubecl's reports.

use super::cubecl_server::memory_management::MemoryUsage;
use super::cubecl_server::server::IoError;
use super::errors::unknown;
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Address, Backend, Bytes};

/// The memory behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolResource {
    /// The address: of the allocation, plus the offset of the handle. Zero for an allocation of zero bytes.
    pub address: Address,
    /// The size of the handle in bytes.
    pub size: u64,
}

impl PoolResource {
    /// Returns the part of a block that starts at `offset`. An allocation of zero bytes has no block.
    pub(super) fn within<B: Backend>(
        block: Option<&Block<B>>,
        offset: u64,
        size: u64,
    ) -> Result<Self, IoError> {
        let (address, capacity) =
            block.map_or((Address(0), 0), |block| (block.address(), block.capacity().0));
        if offset.checked_add(size).is_none_or(|end| end > capacity) {
            return Err(unknown(format!(
                "{size} bytes at {offset} are beyond the {capacity} bytes of the block"
            )));
        }
        Ok(Self { address: address + Bytes(offset), size })
    }
}

/// Returns the usage of a pool. `bytes_reserved` is the physical memory that it holds for all streams.
pub(super) fn usage<B: Backend>(pool: &Pool<B>) -> MemoryUsage {
    let stats = pool.stats();
    let in_use = stats.held - stats.kept - stats.pending - stats.cached;
    MemoryUsage {
        number_allocs: stats.live_blocks,
        bytes_in_use: stats.live,
        bytes_padding: in_use.saturating_sub(stats.live),
        bytes_reserved: stats.held,
    }
}
