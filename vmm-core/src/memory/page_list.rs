//! A list of free physical memory with a budget, for programs that map equal pages into many regions.

use crate::driver::Backend;
use crate::memory::free_handles::{Counts, FreeHandles};
use crate::memory::physical::{PhysicalMemory, free_deferred, rounded_size};
use crate::types::{Bytes, Detail, Error, Granularity, Operation, Properties, Result};
use std::sync::Arc;

/// A list of free pages: physical memory in pieces of one size, within a budget.
///
/// [`take`](Self::take) returns pages, and creates those that the list does not have. A page returns to the list when its last
/// clone is dropped and its last mapping removed: when a region that mapped it shrinks, is dropped, or
/// [suspended](crate::Region::suspend_into). So a paged cache needs no records of its own, and an operation that fails loses no
/// page. Clones are the same list, and any thread may use it.
///
/// Pages keep the bytes of their last owner. Pages that were exported do not return to the list, because another process may
/// still use them. When the last clone of the list is dropped, its free pages return to the device, and pages in use return to
/// the device instead of the list.
///
/// ```
/// # use gpu_vmm_core::{Backend, BackingStore, Bytes, DeviceId, PageList, Properties, Region, Result, WaitFor};
/// # fn example<B: Backend>(backend: &B, store: &BackingStore<B>) -> Result<()> {
/// let pages = PageList::new(backend, Bytes::mib(2), Properties::on(DeviceId(0)), Bytes::gib(1))?;
/// let mut sequence = Region::builder(backend).reserve(Bytes::mib(64)).build()?;
/// sequence.grow_with(&pages.take(Bytes::mib(6))?)?;
///
/// // Evicts the sequence: the contents go to the store, and the pages to the list.
/// let evicted = sequence.suspend_into(store, WaitFor::all_devices(), &mut Vec::new())?;
/// assert_eq!(pages.stats().free, evicted.memory);
/// sequence.resume_from(&mut pages.take(evicted.memory)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PageList<B: Backend> {
    backend: B,
    page: Bytes,
    granularity: Granularity,
    properties: Properties,
    handles: Arc<FreeHandles<B::Handle>>,
}

/// The sizes of the pages of a [`PageList`] at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageListStats {
    /// All pages, free and in use.
    pub held: Bytes,
    /// The free pages.
    pub free: Bytes,
    /// The budget, rounded down to whole pages.
    pub budget: Bytes,
}

impl<B: Backend> Clone for PageList<B> {
    fn clone(&self) -> Self {
        let (backend, handles) = (self.backend.clone(), Arc::clone(&self.handles));
        Self { backend, handles, page: self.page, granularity: self.granularity, properties: self.properties }
    }
}

impl<B: Backend> PageList<B> {
    /// Creates an empty list of pages of at least `page` bytes. All pages together, free and in use, take at most `budget` bytes.
    ///
    /// The size of a page is rounded up to the granularity of such memory. [`page_size`](Self::page_size) returns the result.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::NoSuchDevice`], [`Detail::ExceedsDevice`], or [`Detail::Unsupported`] for properties that
    /// the device does not support.
    pub fn new(backend: &B, page: Bytes, properties: Properties, budget: Bytes) -> Result<Self> {
        let (page, granularity) = rounded_size(backend, Operation::CreateMemory, page, &properties)?;
        let handles = Arc::new(FreeHandles::new(budget / page));
        Ok(Self { backend: backend.clone(), page, granularity, properties, handles })
    }

    /// Returns pages of at least `size` bytes together: free pages first, then new ones. Returns no page for a size of zero.
    ///
    /// # Errors
    ///
    /// [`Detail::BudgetExhausted`], [`Detail::OutOfMemory`], or another error of [`PhysicalMemory::create`]. The list is then as
    /// before, except that pages which were created before the error are free. [`Error::is_out_of_memory`] is true for the first
    /// two.
    pub fn take(&self, size: Bytes) -> Result<Vec<PhysicalMemory<B>>> {
        let operation = Operation::CreateMemory;
        let count = size.0.div_ceil(self.page.0);
        let mut free = self.handles.take(operation, count)?;
        // Pages may be among the memory that destructors had to keep.
        if free.is_err() && free_deferred(&self.backend) {
            free = self.handles.take(operation, count)?;
        }
        let free = free.map_err(|counts| {
            let PageListStats { held, free, budget } = self.sizes(counts);
            Error::new(
                operation,
                Detail::BudgetExhausted { requested: self.page * count, held, free, budget },
            )
        })?;
        let own = |handle| PhysicalMemory::of_list(&self.backend, handle, self.granularity, &self.handles);
        let mut pages: Vec<_> = free.into_iter().map(own).collect();
        while (pages.len() as u64) < count {
            match PhysicalMemory::create_handle(&self.backend, self.page, &self.properties) {
                Ok(handle) => pages.push(own(handle)),
                Err(error) => {
                    self.handles.forget(count - pages.len() as u64);
                    return Err(error);
                }
            }
        }
        Ok(pages)
    }

    /// Changes the budget. Free pages beyond it return to the device now, and pages in use when they are no longer used.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child.
    pub fn set_budget(&self, budget: Bytes) -> Result<()> {
        self.handles.set_budget(Operation::ReleaseMemory, budget / self.page)
    }

    /// Returns the size of a page.
    #[must_use]
    pub fn page_size(&self) -> Bytes {
        self.page
    }

    /// Returns the properties of the pages.
    #[must_use]
    pub fn properties(&self) -> Properties {
        self.properties
    }

    /// Returns the sizes of all pages and of the free ones; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> PageListStats {
        self.sizes(self.handles.counts())
    }

    fn sizes(&self, Counts { held, free, budget }: Counts) -> PageListStats {
        let [held, free, budget] = [held, free, budget].map(|count| self.page * count);
        PageListStats { held, free, budget }
    }
}
