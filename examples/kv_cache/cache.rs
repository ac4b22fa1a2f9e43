//! A paged cache of keys and values. Each sequence is one contiguous range of addresses, into which pages of physical memory
//! are mapped as it grows. Sequences share the pages of a common prefix. An evicted sequence keeps its addresses: its contents
//! go to the host, and its pages to other sequences. Dropping a sequence or a prefix returns its pages.

use gpu_vmm::{Access, Backend, BackingStore, Bytes, DeviceId, PhysicalMemory, Properties};
use gpu_vmm::{Region, RegionState, Result, WaitFor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pages that all sequences of a cache share.
#[derive(Debug)]
pub struct PagedCache<B: Backend> {
    backend: B,
    device: DeviceId,
    /// The size of a page: the granularity of the device's memory.
    pub page: Bytes,
    longest: Bytes,
    store: BackingStore<B>,
    pages: Mutex<Pages<B>>,
}

#[derive(Debug)]
struct Pages<B: Backend> {
    free: Vec<PhysicalMemory<B>>,
    held: usize,
    budget: usize,
}

/// Pages that sequences may read.
#[derive(Debug)]
pub struct Prefix<'a, B: Backend> {
    cache: &'a PagedCache<B>,
    pages: Vec<PhysicalMemory<B>>,
}

/// The keys and values of one sequence.
#[derive(Debug)]
pub struct Sequence<'a, B: Backend> {
    /// The prefix, followed by the pages of the sequence.
    pub region: Region<B>,
    prefix: Arc<Prefix<'a, B>>,
}

impl<B: Backend> PagedCache<B> {
    /// Creates a cache of up to `budget` pages. Each sequence reserves `longest` bytes of addresses. The contents of evicted
    /// sequences go to `store`.
    pub fn new(
        backend: &B,
        device: DeviceId,
        longest: Bytes,
        budget: usize,
        store: BackingStore<B>,
    ) -> Result<Self> {
        let first = PhysicalMemory::create(backend, Bytes(1), Properties::on(device))?;
        let page = first.size();
        let pages = Mutex::new(Pages { free: vec![first], held: 1, budget });
        Ok(Self { backend: backend.clone(), device, page, longest, store, pages })
    }

    /// Returns the number of pages that the cache holds, and how many of them are free.
    pub fn held(&self) -> (usize, usize) {
        let pages = self.pages();
        (pages.held, pages.free.len())
    }

    /// Changes the budget. Pages beyond it return to the device as soon as they are free.
    pub fn set_budget(&self, budget: usize) {
        self.pages().budget = budget;
        self.give(Vec::new());
    }

    /// Creates a prefix; `None` if the budget is used up. The rest of its last page is zero.
    pub fn prefix(&self, contents: &[u8]) -> Result<Option<Arc<Prefix<'_, B>>>> {
        let size = self.page.0 as usize;
        let Some(pages) = self.take(contents.len().div_ceil(size))? else { return Ok(None) };
        let prefix = Prefix { cache: self, pages };
        for (page, bytes) in prefix.pages.iter().zip(contents.chunks(size)) {
            let mut whole = bytes.to_vec();
            whole.resize(size, 0);
            page.write(Bytes::ZERO, &whole)?;
        }
        Ok(Some(Arc::new(prefix)))
    }

    /// Takes free pages and creates missing ones; `None` if the budget or the device's memory does not suffice.
    fn take(&self, count: usize) -> Result<Option<Vec<PhysicalMemory<B>>>> {
        let mut pages = self.pages();
        let missing = count.saturating_sub(pages.free.len());
        if missing > 0 && pages.held + missing > pages.budget {
            return Ok(None);
        }
        pages.held += missing;
        let rest = pages.free.len() + missing - count;
        let mut taken = pages.free.split_off(rest);
        drop(pages);
        while taken.len() < count {
            match PhysicalMemory::create(&self.backend, self.page, Properties::on(self.device)) {
                Ok(page) => taken.push(page),
                Err(error) => {
                    self.pages().held -= count - taken.len();
                    self.give(taken);
                    return if error.is_out_of_memory() { Ok(None) } else { Err(error) };
                }
            }
        }
        Ok(Some(taken))
    }

    /// Returns unused pages to the cache. Pages beyond the budget return to the device.
    fn give(&self, more: Vec<PhysicalMemory<B>>) {
        let mut pages = self.pages();
        pages.free.extend(more);
        let excess = pages.held.saturating_sub(pages.budget).min(pages.free.len());
        pages.held -= excess;
        let rest = pages.free.len() - excess;
        let gone = pages.free.split_off(rest);
        drop(pages);
        drop(gone);
    }

    fn pages(&self) -> MutexGuard<'_, Pages<B>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a, B: Backend> Sequence<'a, B> {
    /// Creates a sequence that begins with a prefix.
    pub fn new(prefix: &Arc<Prefix<'a, B>>) -> Result<Self> {
        let cache = prefix.cache;
        let mut region = Region::builder(&cache.backend).on(cache.device).reserve(cache.longest).build()?;
        for (page, number) in prefix.pages.iter().zip(0..) {
            region.map_with_access(cache.page * number, page, cache.device, Access::Read)?;
        }
        Ok(Self { region, prefix: Arc::clone(prefix) })
    }

    /// The number of pages that eviction would free.
    pub fn own_pages(&self) -> usize {
        ((self.region.mapped() / self.prefix.cache.page) as usize).saturating_sub(self.prefix.pages.len())
    }

    /// Extends the sequence by a page; false if there is none.
    pub fn append(&mut self) -> Result<bool> {
        let cache = self.prefix.cache;
        let Some(mut page) = cache.take(1)? else { return Ok(false) };
        let grown = self.region.grow_with(&page);
        if grown.is_err() {
            // A page that could not be unmapped again stays with the region.
            page.retain(|page| self.region.mappings().all(|mapping| !mapping.memory.is_same_as(page)));
            cache.give(page);
        }
        grown.map(|_| true)
    }

    /// Moves the contents to the host and returns the pages.
    pub fn evict(&mut self, done: WaitFor<'_>) -> Result<()> {
        let cache = self.prefix.cache;
        self.release(&cache.store, done)
    }

    /// Restores an evicted sequence at its address; false if there are not enough pages.
    pub fn restore(&mut self) -> Result<bool> {
        let RegionState::Suspended { memory, .. } = self.region.state() else { return Ok(true) };
        let cache = self.prefix.cache;
        let Some(mut pages) = cache.take((memory / cache.page) as usize)? else { return Ok(false) };
        let resumed = self.region.resume_from(&mut pages);
        cache.give(pages);
        resumed.map(|_| true)
    }

    fn release(&mut self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<()> {
        let mut pages = Vec::new();
        let suspended = self.region.suspend_into(store, done, &mut pages);
        self.prefix.cache.give(pages);
        suspended.map(drop)
    }
}

impl<B: Backend> Drop for Sequence<'_, B> {
    /// Waits for the devices, if the sequence was not evicted.
    fn drop(&mut self) {
        if self.release(&BackingStore::nothing(), WaitFor::all_devices()).is_err() {
            // The region's destructor returns its remaining pages to the device.
            self.prefix.cache.pages().held -= self.own_pages();
        }
    }
}

impl<B: Backend> Drop for Prefix<'_, B> {
    fn drop(&mut self) {
        self.cache.give(std::mem::take(&mut self.pages));
    }
}
