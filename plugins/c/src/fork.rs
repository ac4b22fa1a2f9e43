//! Memory that several regions share until they write it.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::mapping::mapping_at;
use crate::pages::{PageList, optional_list};
use crate::physical::Physical;
use crate::region::{Region, taken_away};
use crate::replace::both;
use crate::status::Status;
use crate::texts::{clear, give, give_if_wanted, object, optional_os};
use gpu_vmm::{
    AnyBackend, BackingStore, Bytes, MappingInfo, Operation, Region as Memory, RegionState, WaitFor,
};
use std::ffi::c_char;

/// Maps the memory of the first `length` bytes of a region in the region `into` as well, at the same offsets. No byte is copied. Both
/// regions may only read the part then, until gpu_vmm_region_make_private: work that writes through a tensor of it is a fault. The part
/// must consist of whole mappings without a hole, and nothing may be mapped there in `into`. The call waits for the devices that may
/// write it.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ALREADY_MAPPED, GPU_VMM_SUSPENDED, GPU_VMM_BUSY for a
/// capture, and GPU_VMM_INVALID_ARGUMENT for the same region twice, for a part of a mapping or for regions of two backends. Both regions
/// are then as before.
///
/// # Safety
///
/// `region` and `into` are null or regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_fork(
    region: *const Region,
    length: u64,
    into: *const Region,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, into) = unsafe { (object("region", region)?, object("into", into)?) };
        both(Operation::Map, region, into, true, |region, into| region.fork(Bytes(length), into))
    })
}

/// Gives a range memory of its own, with the same contents: devices that could read it may write it afterwards. Memory with another
/// holder is copied by its device into a page of `pages`, or into new memory if `pages` is null or its pages have another size or other
/// properties. The copy is mapped in its place. Other memory stays. `bytes` receives the size of the copies; it may be null. The range must consist of whole mappings without a
/// hole. Tensors of the region stay valid. The call waits for the devices.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_ADDRESS_SPACE,
/// GPU_VMM_SUSPENDED, GPU_VMM_INVALID_ARGUMENT for a part of a mapping, and GPU_VMM_BUSY for a capture or if an observer refuses. What
/// was copied before such an error stays private, and a second call does the rest.
///
/// # Safety
///
/// `region` is null or a region. `pages` is null or a list of pages. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_make_private(
    region: *const Region,
    offset: u64,
    length: u64,
    pages: *const PageList,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, pages) = unsafe { (object("region", region)?, optional_list(pages)?) };
        let (offset, length) = (Bytes(offset), Bytes(length));
        let copied = region.memory.change(Operation::Map, true, |region| {
            let mut copies = match pages {
                None => Vec::new(),
                Some(pages) => pages.0.take(shared(region, offset, length))?,
            };
            region.make_private(offset, length, &mut copies, WaitFor::all_devices())
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, copied.0) };
        Ok(())
    })
}

/// Returns the size of the memory in a range that has other holders, for which pages are taken before the region copies it.
fn shared(region: &Memory<AnyBackend>, offset: Bytes, length: Bytes) -> Bytes {
    let end = Bytes(offset.0.saturating_add(length.0));
    let within = region.mappings().filter(|found| offset <= found.offset && found.offset < end);
    let is_held = |found: &MappingInfo<'_, _>| found.memory.is_shared();
    within.filter(is_held).map(|found| found.length).sum()
}

/// Returns the number of holders of the memory that is mapped at an offset: objects of gpu_vmm_physical, and mappings, this one
/// included. All suspended regions that share the memory count as one. Another thread can change the number at any time.
///
/// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region. `holders` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_holders(
    region: *const Region,
    offset: u64,
    holders: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(holders) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let region = object("region", region)?;
            give("holders", holders, mapping_at(region, offset, |found| found.memory.holders() as u64)?)
        }
    })
}

/// Returns the number of holders of physical memory: objects, this one included, and mappings. All suspended regions that share the
/// memory count as one. Another thread can change the number at any time.
///
/// # Safety
///
/// `physical` is null or physical memory. `holders` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_holders(physical: *const Physical, holders: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(holders) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("holders", holders, object("physical", physical)?.0.holders() as u64) }
    })
}

/// Suspends a region, as gpu_vmm_region_suspend does, whose memory others may hold: another region, an object of gpu_vmm_physical or
/// another process. Memory with such a holder stays, the region keeps it, and the resume maps it again. When suspended regions alone
/// hold it, it is saved once for all and released: when the last of them is suspended by this function, or when this function is called
/// again for a suspended region after the others have let go of it. The first region that resumes restores it for all.
///
/// Pages of a gpu_vmm_page_list return to their list. `bytes` receives the number of bytes that the call has released, and `stayed` the
/// number of bytes that others hold; each may be null. A null `keep` discards the region's own contents and keeps shared memory.
///
/// Returns the statuses of gpu_vmm_region_suspend, but not GPU_VMM_BUSY for memory with other holders. If shared memory alone cannot be
/// saved, for instance because the store is full, returns that error with the region suspended and its own memory released: another call,
/// with another store, saves the rest.
///
/// # Safety
///
/// `region` is null or a region. `keep` is null or a string. `bytes` and `stayed` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_suspend_shared(
    region: *const Region,
    keep: *const c_char,
    force: bool,
    bytes: *mut u64,
    stayed: *mut u64,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(bytes);
        clear(stayed);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, keep) = unsafe { (object("region", region)?, optional_os("keep", keep)?) };
        let mut stores = region.stores.lock()?;
        let change = |store: &BackingStore<_>, released: &mut Vec<_>| {
            region.memory.change(Operation::Suspend, force, |region| {
                let missing = |region: &Memory<_>| match region.state() {
                    RegionState::Suspended { memory, .. } => memory,
                    _ => Bytes::ZERO,
                };
                let before = missing(region);
                let suspended = region.suspend_into(store, WaitFor::all_devices(), released);
                let went = missing(region).saturating_sub(before);
                Ok((went, suspended.map(|suspended| suspended.shared)))
            })
        };
        let contents = || {
            if region.memory.with(|region| region.state() == RegionState::Active)? {
                return Ok(region.memory.with(Memory::mapped)?);
            }
            // Only the shared memory is left, of which this store saves nothing.
            let (_, shared) = change(&BackingStore::nothing(), &mut Vec::new()).map_err(taken_away)?;
            Ok(shared?)
        };
        // Released after the region is unlocked.
        let (mut released, mut went) = (Vec::new(), Bytes::ZERO);
        let shared = stores.save(&region.backend, keep, contents, |store| {
            let (some, shared) = change(store, &mut released)?;
            went += some;
            shared
        })?;
        drop(released);
        // SAFETY: guaranteed by the caller.
        unsafe {
            give_if_wanted(bytes, went.0);
            give_if_wanted(stayed, shared.as_ref().map_or(0, |shared| shared.0));
        };
        shared.map(drop).map_err(taken_away)
    })
}
