//! A paged cache of keys and values. Each sequence is one contiguous range of addresses, into which pages of physical memory
//! are mapped as it grows. Sequences share the pages of a common prefix. A sequence that is evicted keeps its addresses:
//! its contents go to the host, and its pages to other sequences.

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

/// The pages of a prefix, which sequences may read.
pub type Prefix<B> = Arc<Vec<PhysicalMemory<B>>>;

/// The keys and values of one sequence.
#[derive(Debug)]
pub struct Sequence<B: Backend> {
    /// The prefix, and the pages of the sequence behind it.
    pub region: Region<B>,
    prefix: Prefix<B>,
}

impl<B: Backend> PagedCache<B> {
    /// Makes a cache of up to `budget` pages for sequences of up to `longest` bytes, whose contents go to `store` while they
    /// are evicted.
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

    /// Returns the pages that the cache holds, and how many of them no sequence uses.
    pub fn held(&self) -> (usize, usize) {
        let pages = self.pages();
        (pages.held, pages.free.len())
    }

    /// Changes the budget. Pages beyond it go back to the device as sequences end or are evicted.
    pub fn set_budget(&self, budget: usize) {
        self.pages().budget = budget;
        self.give(Vec::new());
    }

    /// Makes a prefix of as many pages as `contents` has; `None` if the budget is used up.
    pub fn prefix(&self, contents: &[&[u8]]) -> Result<Option<Prefix<B>>> {
        let Some(pages) = self.take(contents.len())? else { return Ok(None) };
        pages.iter().zip(contents).try_for_each(|(page, bytes)| page.write(Bytes::ZERO, bytes))?;
        Ok(Some(Arc::new(pages)))
    }

    /// Begins a sequence behind a prefix.
    pub fn begin(&self, prefix: &Prefix<B>) -> Result<Sequence<B>> {
        let mut region = Region::builder(&self.backend).on(self.device).reserve(self.longest).build()?;
        for (page, offset) in prefix.iter().zip(0..) {
            region.map_with_access(self.page * offset, page, self.device, Access::Read)?;
        }
        Ok(Sequence { region, prefix: Arc::clone(prefix) })
    }

    /// Makes a sequence longer by a page; false if the budget is used up.
    pub fn append(&self, sequence: &mut Sequence<B>) -> Result<bool> {
        let Some(page) = self.take(1)? else { return Ok(false) };
        sequence.region.grow_with(&page).inspect_err(|_| self.give(page))?;
        Ok(true)
    }

    /// Moves the contents of a sequence to the host and takes its pages for others.
    pub fn evict(&self, sequence: &mut Sequence<B>, done: WaitFor<'_>) -> Result<()> {
        self.reclaim(sequence, &self.store, done)
    }

    /// Brings an evicted sequence back, at its address; false if the budget is used up.
    pub fn restore(&self, sequence: &mut Sequence<B>) -> Result<bool> {
        let RegionState::Suspended { memory, .. } = sequence.region.state() else { return Ok(true) };
        let Some(mut pages) = self.take((memory / self.page) as usize)? else { return Ok(false) };
        let resumed = sequence.region.resume_from(&mut pages);
        self.give(pages);
        resumed.map(|_| true)
    }

    /// Ends a sequence. With the last one, the pages of its prefix are free too.
    pub fn end(&self, mut sequence: Sequence<B>, done: WaitFor<'_>) -> Result<()> {
        self.reclaim(&mut sequence, &BackingStore::nothing(), done)?;
        let Sequence { region, prefix } = sequence;
        drop(region);
        self.end_prefix(prefix);
        Ok(())
    }

    /// Gives up a prefix. Its pages are free when the last sequence behind it has ended.
    pub fn end_prefix(&self, prefix: Prefix<B>) {
        self.give(Arc::into_inner(prefix).unwrap_or_default());
    }

    fn reclaim(&self, sequence: &mut Sequence<B>, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<()> {
        let mut pages = Vec::new();
        let suspended = sequence.region.suspend_into(store, done, &mut pages);
        self.give(pages);
        suspended.map(drop)
    }

    fn take(&self, count: usize) -> Result<Option<Vec<PhysicalMemory<B>>>> {
        let mut pages = self.pages();
        let missing = count.saturating_sub(pages.free.len());
        if pages.held + missing > pages.budget {
            return Ok(None);
        }
        for _ in 0..missing {
            let page = PhysicalMemory::create(&self.backend, self.page, Properties::on(self.device))?;
            pages.free.push(page);
            pages.held += 1;
        }
        let rest = pages.free.len() - count;
        Ok(Some(pages.free.split_off(rest)))
    }

    fn give(&self, mut more: Vec<PhysicalMemory<B>>) {
        let mut pages = self.pages();
        pages.free.append(&mut more);
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
