//! Lists of free pages with a budget, from which regions grow and resume.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::physical::Physical;
use crate::properties::Properties;
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{clear, give_box, give_if_wanted, object, take_box};
use gpu_vmm::{AnyBackend, Bytes, Operation, PageList as List, Region as Memory, RegionState};

/// A list of free pages: physical memory in pieces of one size. All pages together, free and in use, are at most its budget. A page
/// returns to the list when no region maps it and no object names it any more. Calls of several threads run at the same time.
#[derive(Debug)]
pub struct PageList(pub(crate) List<AnyBackend>);

// SAFETY: no other type has the kind.
unsafe impl Object for PageList {
    const KIND: Kind = Kind::PageList;
}

/// Reads an optional list of pages: `None` for null.
///
/// # Safety
///
/// As for [`object`].
pub(crate) unsafe fn optional_list<'a>(pages: *const PageList) -> CallResult<Option<&'a PageList>> {
    // SAFETY: guaranteed by the caller.
    if pages.is_null() { Ok(None) } else { unsafe { object("pages", pages) }.map(Some) }
}

/// Creates an empty list of pages of at least `page` bytes, rounded up to the granularity. All its pages take at most `budget` bytes.
/// Null properties mean the default. Free the list with gpu_vmm_page_list_free.
///
/// Returns GPU_VMM_INVALID_ARGUMENT for a page of 0 bytes, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_OUT_OF_MEMORY for a page that exceeds the
/// device's memory, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `properties` is null or points to properties. `pages` is null or points to a writable
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_page_list_new(
    backend: *const Backend,
    properties: *const Properties,
    page: u64,
    budget: u64,
    pages: *mut *mut PageList,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(pages) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let properties = Properties::read("create memory", properties.as_ref())?;
            let create = || Ok(PageList(List::new(backend, Bytes(page), properties, Bytes(budget))?));
            give_box("pages", pages, create)
        }
    })
}

/// Frees a list: its free pages return to the device now, and pages in use when they are no longer used. Null does nothing.
///
/// # Safety
///
/// `pages` is null or comes from gpu_vmm_page_list_new, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_page_list_free(pages: *mut PageList) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(pages) }
}

/// Returns the size of a page, and the sizes of all pages, of the free pages and of the budget. Each may be null.
///
/// # Safety
///
/// `pages` is null or a list. `page`, `held`, `free` and `budget` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_page_list_sizes(
    pages: *const PageList,
    page: *mut u64,
    held: *mut u64,
    free: *mut u64,
    budget: *mut u64,
) -> Status {
    for place in [page, held, free, budget] {
        // SAFETY: null or writable for a number, as the caller guarantees.
        unsafe { clear(place) };
    }
    status(|| {
        // SAFETY: guaranteed by the caller.
        let list = &unsafe { object("pages", pages) }?.0;
        let stats = list.stats();
        let sizes =
            [(page, list.page_size()), (held, stats.held), (free, stats.free), (budget, stats.budget)];
        for (place, size) in sizes {
            // SAFETY: as above.
            unsafe { give_if_wanted(place, size.0) };
        }
        Ok(())
    })
}

/// Changes the budget. Free pages beyond it return to the device now, and pages in use when they are no longer used.
///
/// # Safety
///
/// `pages` is null or a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_page_list_set_budget(pages: *const PageList, budget: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pages = unsafe { object("pages", pages) }?;
        Ok(pages.0.set_budget(Bytes(budget))?)
    })
}

/// Takes one page out of the list, a free one or a new one. It keeps the bytes of its last owner. Release it with
/// gpu_vmm_physical_release.
///
/// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory.
///
/// # Safety
///
/// `pages` is null or a list. `physical` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_page_list_take(
    pages: *const PageList,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pages = &object("pages", pages)?.0;
            let take = || {
                let page = pages.take(pages.page_size())?.pop();
                page.map(Physical)
                    .ok_or_else(|| Failure::invalid("create memory: the list has returned no page"))
            };
            give_box("physical", physical, take)
        }
    })
}

/// Grows a region in place to at least `size` bytes, as gpu_vmm_region_grow does, with pages of a list. Pages keep the bytes of their
/// last owner.
///
/// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory, GPU_VMM_OUT_OF_ADDRESS_SPACE,
/// GPU_VMM_UNALIGNED for a page that is no multiple of the region's granularity, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for a
/// list of another backend. The region is then as before, and the list has all pages.
///
/// # Safety
///
/// `region` is null or a region. `pages` is null or a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_grow_with(
    region: *const Region,
    size: u64,
    pages: *const PageList,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, pages) = unsafe { (object("region", region)?, object("pages", pages)?) };
        let grow = |region: &mut Memory<_>| {
            if region.state() != RegionState::Active {
                // Before pages are taken: it returns the error.
                return region.grow_with(&[]).map(drop);
            }
            let missing = Bytes(size.saturating_sub(region.end().0));
            region.grow_with(&pages.0.take(missing)?).map(drop)
        };
        Ok(region.memory.change(Operation::Grow, true, grow)?)
    })
}

/// Resumes a region, as gpu_vmm_region_resume does, with pages of a list in the place of its memory. Memory of another size than the
/// pages is created anew, outside of the budget. `bytes` receives the number of bytes that were mapped, 0 if the region was not
/// suspended; it may be null.
///
/// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory. The region is then still suspended.
///
/// # Safety
///
/// `region` is null or a region. `pages` is null or a list. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_resume_with(
    region: *const Region,
    pages: *const PageList,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, pages) = unsafe { (object("region", region)?, object("pages", pages)?) };
        let resumed = region.memory.change(Operation::Resume, true, |region| {
            let RegionState::Suspended { memory, .. } = region.state() else { return region.resume() };
            region.resume_from(&mut pages.0.take(memory)?)
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, resumed.memory.0) };
        Ok(())
    })
}
