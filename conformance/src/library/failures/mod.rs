//! Every operation is a transaction: whichever driver call fails in it, the state before is restored. If undoing fails as well,
//! the affected range is poisoned, and the rest stays usable.
//!
//! An injected failure prevents the driver call, with one exception: a set access may be carried out and then report a
//! failure, since a driver may have done a part of it.

mod asleep;
mod bench;
mod contents;
#[cfg(test)]
mod coverage;
mod edges;
mod ends;
mod exchanges;
pub(crate) mod observed;
mod operations;
mod rounds;
mod row;
mod saved;
mod start;
mod state;
mod sweep;
mod undo;
mod vectors;

pub(crate) use sweep::injected;

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_testkit::TestKit;

cases! { "failures":
    /// If creating memory fails, no memory is allocated.
    physical_memory_create,
    /// If an export fails, no descriptor is left, and the memory stays usable.
    physical_memory_export,
    /// If an import fails, the descriptor can be imported again.
    physical_memory_import,
    /// If building a region fails, no addresses stay reserved, whatever placement was requested.
    region_builder_build,
    /// If a map fails, the range stays unmapped.
    region_map,
    /// If a map with access fails at either call, the range stays unmapped.
    region_map_with_access,
    /// If an unmap fails at any call, the whole range stays mapped, with its access and contents.
    region_unmap,
    /// If a set access fails at any call, each device keeps its previous access to the whole range.
    region_set_access,
    /// If growth fails at any call, no memory, mapping or reservation is left behind.
    region_grow_to,
    /// If growth with the caller's memory fails at any call, no mapping or reservation is left behind.
    region_grow_with,
    /// If growth with another device's memory fails, nothing is left behind on either device.
    region_grow_to_on,
    /// If a move fails at any call, the region stays at its old address, and nothing is left at the new one.
    region_grow_or_move,
    /// If a shrink fails at any call, the region keeps its end, also across holes and borders of reservations.
    region_shrink_to,
    /// If a write to physical memory fails, no mapping or reservation is left behind.
    physical_memory_write,
    /// If a read of physical memory fails, no mapping or reservation is left behind.
    physical_memory_read,
    /// If a copy between pieces of physical memory fails, no mapping or reservation is left behind.
    physical_memory_copy_from,
    /// If a fork fails at any call, the region keeps its access, and nothing is mapped in the other one.
    region_fork,
    /// If a shared piece cannot be made private, the region keeps the shared one, with its access and contents.
    region_make_private,
    /// If a write fails, all mappings, their access, and the bytes outside of its range are unchanged.
    region_write,
    /// If a read fails, nothing changes.
    region_read,
    /// If a fill fails, all mappings, their access, and the bytes outside of its range are unchanged.
    region_fill,
    /// If a copy between regions fails, all mappings, their access, and the bytes outside of its range are unchanged.
    region_copy_from,
    /// If writing a pattern fails, the bytes outside of its range are unchanged.
    region_write_pattern,
    /// If checking a pattern fails, nothing changes.
    region_count_wrong,
    /// If creating a staging ring fails, no page-locked memory is left behind.
    staging_ring_new,
    /// If creating a backing store fails, no page-locked memory is left behind.
    backing_store_pinned,
    /// If a suspend fails at any call, the region stays active, with its mappings, access and contents.
    region_suspend,
    /// If a resume fails at any call, the region stays suspended, and a second resume restores everything.
    region_resume,
    /// If a suspend into the caller's list fails at any call, the region stays active and unchanged.
    region_suspend_into,
    /// If a resume from the caller's list fails at any call, the region stays suspended, and the memory stays in the list.
    region_resume_from,
    /// If a close fails, it returns the first failure; if the destructor's second try fails too, that failure is logged.
    region_close,
    /// If a destructor fails, it logs the failure, frees no addresses that contain a mapping, and does not panic.
    region_drop,
    /// If creating a vector fails, no addresses stay reserved.
    device_vec_new,
    /// If building a vector with the caller's region options fails, no addresses stay reserved.
    device_vec_build,
    /// If reserving elements fails, the vector and its memory are unchanged.
    device_vec_reserve,
    /// If a push fails, with or without a move, the vector keeps its elements and address.
    device_vec_push,
    /// If an extend fails at any call, the vector keeps its length and elements.
    device_vec_extend_from_slice,
    /// If a resize fails at any call, the vector keeps its length and elements.
    device_vec_resize,
    /// If a shrink to fit fails, the vector keeps its memory.
    device_vec_shrink_to_fit,
    /// If suspending a vector fails, it keeps its elements.
    device_vec_suspend,
    /// If resuming a vector fails, it stays suspended, and a second resume restores its elements.
    device_vec_resume,
    /// If reading one element fails, nothing changes.
    device_vec_get,
    /// If reading elements fails, nothing changes.
    device_vec_read,
    /// If reading all elements fails, nothing changes.
    device_vec_to_vec,
    /// If writing elements fails before the first byte, nothing changes.
    device_vec_write,
    /// If a swap fails at any call, both regions are unchanged, whatever the sizes of their allocations.
    region_swap,
    /// If a swap of whole regions fails at any call, both are unchanged.
    region_swap_all,
    /// If a move to another device fails at any call, the memory stays where it was, and nothing is left on the other device.
    region_move_to_device,
    /// If building a banked region fails, no addresses stay reserved.
    banked_region_build,
    /// If adding a bank fails, no memory is allocated.
    banked_region_add_bank,
    /// If adding a bank of existing memory fails, nothing changes.
    banked_region_add_bank_of,
    /// If selecting another bank fails at any call, the previous bank stays selected.
    banked_region_select,
    /// If hiding a bank fails, it stays selected.
    banked_region_hide,
    /// If removing the selected bank fails, it stays selected.
    banked_region_remove_bank,
    /// If a write to the selected bank fails, all mappings and their access are unchanged.
    banked_region_write,
    /// If a fill of the selected bank fails, all mappings and their access are unchanged.
    banked_region_fill,
    /// If a copy into the selected bank fails, all mappings and their access are unchanged.
    banked_region_copy_from,
    /// If writing a pattern to the selected bank fails, all mappings and their access are unchanged.
    banked_region_write_pattern,
    /// If taking a snapshot fails, no file, mapping or address reservation is left behind.
    snapshot_write,
    /// If a restore fails at any call, no region, memory or address reservation is left behind.
    restore_regions,
    /// If restoring the mappings of a failed unmap fails too, the error reports it, and only the unmap's range is poisoned.
    undoing_unmap,
    /// If unmapping after a failed map with access fails too, the error reports it, and only the new range is poisoned.
    undoing_map_with_access,
    /// If restoring the previous access fails too, the error reports it, and only the range of the set access is poisoned.
    undoing_set_access,
    /// If unmapping the new memory of a failed growth fails too, the error reports it, and only the new range is poisoned.
    undoing_grow_to,
    /// If unmapping the caller's memory after a failed growth fails too, the error reports it, and only the new range is poisoned.
    undoing_grow_with,
    /// If unmapping another device's memory after a failed growth fails too, the error reports it, and only the new range is
    /// poisoned.
    undoing_grow_to_on,
    /// If undoing a failed move fails too, the region stays usable at its old address, except for the memory that was lost there.
    undoing_grow_or_move,
    /// If restoring the mappings of a failed shrink fails too, the error reports it, and only their range is poisoned.
    undoing_shrink_to,
    /// If restoring the mappings of a failed suspend fails too, the error reports it, and only their range is poisoned.
    undoing_suspend,
    /// If unmapping the memory of a failed resume fails too, the error reports it, and the region stays suspended.
    undoing_resume,
    /// If restoring the mappings of a failed suspend into a list fails too, the error reports it, and only their range is
    /// poisoned.
    undoing_suspend_into,
    /// If unmapping the memory of a failed resume from a list fails too, the error reports it, and the region stays suspended.
    undoing_resume_from,
    /// If undoing a vector's failed growth fails too, the vector keeps its elements.
    undoing_device_vec_reserve,
    /// If undoing a vector's failed move fails too, the vector keeps its elements, except for those lost at the old address.
    undoing_device_vec_push,
    /// If undoing the growth of a failed extend fails too, the vector keeps its elements.
    undoing_device_vec_extend_from_slice,
    /// If undoing the growth of a failed resize fails too, the vector keeps its elements.
    undoing_device_vec_resize,
    /// If undoing a failed swap fails too, the error reports it, and only the swapped ranges of the two regions are poisoned.
    undoing_swap,
    /// If undoing a failed swap of whole regions fails too, the error reports it, and only the swapped ranges are poisoned.
    undoing_swap_all,
    /// If undoing a failed move to another device fails too, only the ranges that were exchanged are poisoned.
    undoing_move_to_device,
    /// If mapping the previous bank again fails too, its range is poisoned, and the rest of the region stays usable.
    undoing_banked_region_select,
    /// If undoing a vector's failed suspend fails too, it keeps its elements, except for those in poisoned ranges.
    undoing_device_vec_suspend,
    /// If undoing a vector's failed resume fails too, it stays suspended.
    undoing_device_vec_resume,
    /// If unmapping a failed snapshot's temporary mappings fails too, the error reports it, and there is no file.
    undoing_snapshot_write,
    /// If undoing a failed restore fails too, the error reports it, and only what could not be undone is left behind.
    undoing_restore_regions,
}

macro_rules! sweeps {
    ($($case:ident: $sweep:ident($of:literal)),* $(,)?) => {
        $(fn $case<B: TestKit>(subject: &Subject<B>) {
            rounds::$sweep(subject, $of);
        })*
    };
}

sweeps! {
    physical_memory_create: single("PhysicalMemory::create"),
    physical_memory_export: single("PhysicalMemory::export"),
    physical_memory_import: single("PhysicalMemory::import"),
    region_builder_build: single("RegionBuilder::build"),
    region_map: single("Region::map"),
    region_map_with_access: single("Region::map_with_access"),
    region_unmap: single("Region::unmap"),
    region_set_access: single("Region::set_access"),
    region_grow_to: single("Region::grow_to"),
    region_grow_with: single("Region::grow_with"),
    region_grow_to_on: single("Region::grow_to_on"),
    region_grow_or_move: single("Region::grow_or_move"),
    region_shrink_to: single("Region::shrink_to"),
    physical_memory_write: single("PhysicalMemory::write"),
    physical_memory_read: single("PhysicalMemory::read"),
    physical_memory_copy_from: single("PhysicalMemory::copy_from"),
    region_fork: single("Region::fork"),
    region_make_private: single("Region::make_private"),
    region_write: single("Region::write"),
    region_read: single("Region::read"),
    region_fill: single("Region::fill"),
    region_copy_from: single("Region::copy_from"),
    region_write_pattern: single("Region::write_pattern"),
    region_count_wrong: single("Region::count_wrong"),
    staging_ring_new: single("StagingRing::new"),
    backing_store_pinned: single("BackingStore::pinned"),
    region_suspend: single("Region::suspend"),
    region_resume: single("Region::resume"),
    region_suspend_into: single("Region::suspend_into"),
    region_resume_from: single("Region::resume_from"),
    device_vec_suspend: single("DeviceVec::suspend"),
    device_vec_resume: single("DeviceVec::resume"),
    device_vec_new: single("DeviceVec::new"),
    device_vec_build: single("DeviceVec::build"),
    device_vec_reserve: single("DeviceVec::reserve"),
    device_vec_push: single("DeviceVec::push"),
    device_vec_extend_from_slice: single("DeviceVec::extend_from_slice"),
    device_vec_resize: single("DeviceVec::resize"),
    device_vec_shrink_to_fit: single("DeviceVec::shrink_to_fit"),
    device_vec_get: single("DeviceVec::get"),
    device_vec_read: single("DeviceVec::read"),
    device_vec_to_vec: single("DeviceVec::to_vec"),
    device_vec_write: single("DeviceVec::write"),
    region_swap: single("Region::swap"),
    region_swap_all: single("Region::swap_all"),
    region_move_to_device: single("Region::move_to_device"),
    banked_region_build: single("BankedRegion::build"),
    banked_region_add_bank: single("BankedRegion::add_bank"),
    banked_region_add_bank_of: single("BankedRegion::add_bank_of"),
    banked_region_select: single("BankedRegion::select"),
    banked_region_hide: single("BankedRegion::hide"),
    banked_region_remove_bank: single("BankedRegion::remove_bank"),
    banked_region_write: single("BankedRegion::write"),
    banked_region_fill: single("BankedRegion::fill"),
    banked_region_copy_from: single("BankedRegion::copy_from"),
    banked_region_write_pattern: single("BankedRegion::write_pattern"),
    snapshot_write: single("Snapshot::write"),
    restore_regions: single("Restore::regions"),
    undoing_unmap: double("Region::unmap"),
    undoing_set_access: double("Region::set_access"),
    undoing_grow_to: double("Region::grow_to"),
    undoing_grow_to_on: double("Region::grow_to_on"),
    undoing_grow_or_move: double("Region::grow_or_move"),
    undoing_shrink_to: double("Region::shrink_to"),
    undoing_device_vec_reserve: double("DeviceVec::reserve"),
    undoing_device_vec_push: double("DeviceVec::push"),
    undoing_device_vec_extend_from_slice: double("DeviceVec::extend_from_slice"),
    undoing_device_vec_resize: double("DeviceVec::resize"),
    undoing_swap: double("Region::swap"),
    undoing_swap_all: double("Region::swap_all"),
    undoing_move_to_device: double("Region::move_to_device"),
    undoing_banked_region_select: double("BankedRegion::select"),
    undoing_suspend: double("Region::suspend"),
    undoing_resume: asleep("Region::resume"),
    undoing_grow_with: double("Region::grow_with"),
    undoing_suspend_into: double("Region::suspend_into"),
    undoing_resume_from: asleep("Region::resume_from"),
    undoing_map_with_access: double("Region::map_with_access"),
    undoing_device_vec_suspend: double("DeviceVec::suspend"),
    undoing_device_vec_resume: asleep("DeviceVec::resume"),
    undoing_snapshot_write: double("Snapshot::write"),
    undoing_restore_regions: double("Restore::regions"),
}

fn region_close<B: TestKit>(subject: &Subject<B>) {
    ends::close(subject);
}

fn region_drop<B: TestKit>(subject: &Subject<B>) {
    ends::dropped(subject);
}
