//! cubecl's report of the allocations of one stream.

use super::cubecl_server::memory_management::{
    MemoryAllocationMode, MemoryPoolKind, MemoryPoolReport, MemoryPoolsReport, MemoryUsage,
};
use super::slots::Slot;
use gpu_vmm::Backend;

/// Returns a report with one pool for each mode.
pub(super) fn report<'a, B: Backend>(slots: impl Iterator<Item = &'a Slot<B>>) -> MemoryPoolsReport {
    let empty = |kind| MemoryPoolReport {
        kind,
        usage: MemoryUsage::default(),
        pages: 0,
        pages_peak: 0,
        pages_unmapped: 0,
        largest_alloc: 0,
    };
    let mut automatic = empty(MemoryPoolKind::Direct);
    let mut persistent = empty(MemoryPoolKind::Persistent);
    let mut dedicated = empty(MemoryPoolKind::Direct);
    for slot in slots {
        let pool = match slot.mode {
            MemoryAllocationMode::Auto => &mut automatic,
            MemoryAllocationMode::Persistent => &mut persistent,
            MemoryAllocationMode::Dedicated => &mut dedicated,
        };
        let capacity = slot.block.as_ref().map_or(0, |block| block.capacity().0);
        pool.usage.number_allocs += 1;
        pool.usage.bytes_in_use += slot.size;
        pool.usage.bytes_padding += capacity.saturating_sub(slot.size);
        pool.usage.bytes_reserved += capacity;
        pool.pages += 1;
        pool.pages_peak = pool.pages;
        pool.largest_alloc = pool.largest_alloc.max(slot.size);
    }
    MemoryPoolsReport { dynamic: vec![automatic], persistent, dedicated }
}
