//! Every operation is a transaction: whichever driver call fails in it, everything is as before; and where undoing fails
//! as well, what nobody can vouch for is out of use, and the rest goes on.
//!
//! | file | subject |
//! |---|---|
//! | `operations` | the table: every public operation that reaches a driver, in each way in which it can go |
//! | `exchanges` | the rows of the operations that exchange what is behind an address |
//! | `contents` | the rows of suspend, resume and snapshots |
//! | `vectors` | the rows of the operations of vectors |
//! | `start` | what an operation finds |
//! | `edges` | what of a mapping is written and looked at |
//! | `bench` | what it is let fail on |
//! | `saved` | a region in a file, for that |
//! | `state` | what a failure must not change |
//! | `row` | a row of the table |
//! | `rounds` | the sweeps over the rows of one operation |
//! | `sweep` | each driver call fails, one in each round |
//! | `undo` | a second one fails, in what follows the first |
//! | `asleep` | the same for a region that is suspended, and stays so |
//! | `ends` | where a region ends |
//! | `coverage` | the table against the sources: no operation is missing |
//!
//! A driver call that fails by plan does not happen, but for one kind: a set access may have happened and say that it
//! failed, since drivers may have done some of it.

mod asleep;
mod bench;
mod contents;
#[cfg(test)]
mod coverage;
mod edges;
mod ends;
mod exchanges;
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
    /// A create that fails gives no memory and takes none.
    physical_memory_create,
    /// An export that fails leaves no descriptor and does the memory no harm.
    physical_memory_export,
    /// An import that fails leaves the descriptor good for another try.
    physical_memory_import,
    /// A build that fails leaves no addresses reserved, wherever they were to be.
    region_builder_build,
    /// A map that fails leaves the part free.
    region_map,
    /// A map with access that fails at either call leaves the part free.
    region_map_with_access,
    /// An unmap that fails at any call leaves all of the part mapped, with its access and contents.
    region_unmap,
    /// A set access that fails at any call leaves each device the access that it had, on all of the part.
    region_set_access,
    /// Growth that fails at any call leaves no memory, mapping or reservation behind.
    region_grow_to,
    /// Growth with the caller's memory that fails at any call leaves no mapping or reservation behind.
    region_grow_with,
    /// Growth with another device's memory that fails leaves nothing behind on either device.
    region_grow_to_on,
    /// A move that fails at any call leaves the region at its old address, and nothing at the new one.
    region_grow_or_move,
    /// A move with another device's memory that fails leaves the region at its old address.
    region_grow_or_move_on,
    /// A shrink that fails at any call leaves the end where it was, over holes and seams.
    region_shrink_to,
    /// A write to physical memory that fails leaves no mapping or reservation behind.
    physical_memory_write,
    /// A read of physical memory that fails leaves no mapping or reservation behind.
    physical_memory_read,
    /// A write that fails leaves all mappings and access, and the bytes outside of its part.
    region_write,
    /// A read that fails changes nothing.
    region_read,
    /// A fill that fails leaves all mappings and access, and the bytes outside of its part.
    region_fill,
    /// A copy between regions that fails leaves all mappings and access, and the bytes outside of its part.
    region_copy_from,
    /// A pattern that cannot be written leaves the bytes outside of its part.
    region_write_pattern,
    /// A check of a pattern that fails changes nothing.
    region_count_wrong,
    /// A ring that cannot be made leaves no page-locked memory behind.
    staging_ring_new,
    /// A store that cannot be made leaves no page-locked memory behind.
    backing_store_pinned,
    /// A suspend that fails at any call leaves the region active, with its mappings, access and contents.
    region_suspend,
    /// A resume that fails at any call leaves the region suspended, and a second one brings everything back.
    region_resume,
    /// A suspension into the caller's list that fails at any call leaves the region active, as it was.
    region_suspend_into,
    /// A resume from the caller's list that fails at any call leaves the region suspended, and the memory in the list.
    region_resume_from,
    /// A close that fails tells the first failure, and what the destructor's second try cannot give back is logged.
    region_close,
    /// A destructor that fails logs the failure, frees no addresses with a mapping in them, and does not panic.
    region_drop,
    /// A vector that cannot be made reserves nothing.
    device_vec_new,
    /// A vector that cannot be made on a region of the caller's reserves nothing.
    device_vec_build,
    /// Reserving elements that fails leaves the vector and its memory as they were.
    device_vec_reserve,
    /// A push that fails, moving or not, leaves the vector's elements and address.
    device_vec_push,
    /// An extend that fails at any call leaves the vector as long as it was, with its elements.
    device_vec_extend_from_slice,
    /// A resize that fails at any call leaves the vector as long as it was, with its elements.
    device_vec_resize,
    /// A shrink to fit that fails leaves the vector its memory.
    device_vec_shrink_to_fit,
    /// A vector that cannot be suspended has its elements.
    device_vec_suspend,
    /// A vector that cannot be resumed is still suspended, and comes back with its elements.
    device_vec_resume,
    /// Reading one element that fails changes nothing.
    device_vec_get,
    /// Reading elements that fails changes nothing.
    device_vec_read,
    /// Reading all elements that fails changes nothing.
    device_vec_to_vec,
    /// Writing elements that fails before the first byte changes nothing.
    device_vec_write,
    /// A swap that fails at any call leaves both regions as they were, however they are cut.
    region_swap,
    /// A swap of whole regions that fails at any call leaves both as they were.
    region_swap_all,
    /// A move to another device that fails at any call leaves the memory where it was, and nothing on the other device.
    region_move_to_device,
    /// Banked regions that cannot be made reserve nothing.
    banked_region_build,
    /// A set that cannot be made takes no memory.
    banked_region_add_bank,
    /// A set of memory that is there which cannot be added leaves all as it was.
    banked_region_add_bank_of,
    /// Showing another set that fails at any call leaves the old one shown.
    banked_region_select,
    /// Hiding a set that fails leaves it shown.
    banked_region_hide,
    /// Removing the set that is shown, where it fails, leaves it shown.
    banked_region_remove_bank,
    /// A write to the set that is shown which fails leaves all mappings and access.
    banked_region_write,
    /// A fill of the set that is shown which fails leaves all mappings and access.
    banked_region_fill,
    /// A copy into the set that is shown which fails leaves all mappings and access.
    banked_region_copy_from,
    /// A pattern that cannot be written to the set that is shown leaves all mappings and access.
    banked_region_write_pattern,
    /// A snapshot that cannot be taken leaves no file, no mapping and no addresses.
    snapshot_write,
    /// A restore that fails at any call leaves no region, no memory and no addresses.
    restore_regions,
    /// Where putting mappings back fails too, unmap says so, and nothing but its part is out of use.
    undoing_unmap,
    /// Where unmapping fails too after a map with access, it says so, and nothing but the new part is out of use.
    undoing_map_with_access,
    /// Where giving the old access back fails too, set access says so, and nothing but its part is out of use.
    undoing_set_access,
    /// Where unmapping new memory fails too, growth says so, and nothing but the new part is out of use.
    undoing_grow_to,
    /// Where unmapping the caller's memory fails too, growth says so, and nothing but the new part is out of use.
    undoing_grow_with,
    /// The same with another device's memory.
    undoing_grow_to_on,
    /// Where taking back a move fails too, the region goes on at its old address, but for what was lost there.
    undoing_grow_or_move,
    /// The same with another device's memory.
    undoing_grow_or_move_on,
    /// Where putting back what a shrink took fails too, it says so, and nothing but that is out of use.
    undoing_shrink_to,
    /// Where putting back what a suspend took fails too, it says so, and nothing but that is out of use.
    undoing_suspend,
    /// Where taking back what a resume has mapped fails too, it says so, and the region stays suspended.
    undoing_resume,
    /// Where putting back what a suspension into a list took fails too, it says so, and nothing but that is out of use.
    undoing_suspend_into,
    /// Where taking back what a resume from a list has mapped fails too, it says so, and the region stays suspended.
    undoing_resume_from,
    /// A vector whose growth cannot be undone keeps its elements.
    undoing_device_vec_reserve,
    /// A vector whose move cannot be undone keeps its elements, but for what was lost at the old address.
    undoing_device_vec_push,
    /// A vector that cannot be extended, nor its growth be undone, keeps its elements.
    undoing_device_vec_extend_from_slice,
    /// A vector that cannot be resized, nor its growth be undone, keeps its elements.
    undoing_device_vec_resize,
    /// Where undoing a swap fails too, it says so, and nothing but its parts is out of use, in either region.
    undoing_swap,
    /// The same for whole regions.
    undoing_swap_all,
    /// Where undoing a move to another device fails too, nothing but what was exchanged is out of use.
    undoing_move_to_device,
    /// Where the old set cannot be put back either, it is out of use, and the region goes on.
    undoing_banked_region_select,
    /// A vector that cannot be suspended, nor be put back, has its elements but for what is out of use.
    undoing_device_vec_suspend,
    /// A vector that cannot be resumed, nor be taken back, stays suspended.
    undoing_device_vec_resume,
    /// Where what a snapshot had mapped cannot be unmapped either, it says so, and there is no file.
    undoing_snapshot_write,
    /// Where what was restored cannot be taken back, it says so, and nothing but that is left behind.
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
    region_grow_or_move_on: single("Region::grow_or_move_on"),
    region_shrink_to: single("Region::shrink_to"),
    physical_memory_write: single("PhysicalMemory::write"),
    physical_memory_read: single("PhysicalMemory::read"),
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
    undoing_grow_or_move_on: double("Region::grow_or_move_on"),
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
