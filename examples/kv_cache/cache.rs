//! A paged cache of keys and values. Each sequence is a region: one contiguous range of addresses, into which pages of physical
//! memory are mapped as it grows. A sequence that continues another one shares its pages, and gets a copy of a shared page when it
//! writes there. An evicted sequence keeps its addresses: its contents go to a store, and its pages to other sequences. Shared pages
//! go with the last sequence that uses them.

use gpu_vmm::{Access, Backend, BackingStore, Bytes, PageList, Region, RegionState, Result, WaitFor};

/// The pages that all sequences of a cache share.
#[derive(Debug)]
pub struct PagedCache<B: Backend> {
    /// The driver.
    pub backend: B,
    /// The free pages, and the budget of all.
    pub pages: PageList<B>,
    /// The size of the addresses of each sequence.
    pub longest: Bytes,
    /// Receive the contents of evicted sequences: the first one that has room.
    pub stores: Vec<BackingStore<B>>,
}

impl<B: Backend> PagedCache<B> {
    /// Creates an empty sequence.
    pub fn begin(&self) -> Result<Region<B>> {
        Region::builder(&self.backend).memory(self.pages.properties()).reserve(self.longest).build()
    }

    /// Creates a sequence that continues another one, which must not be evicted. No byte is copied.
    pub fn fork(&self, parent: &mut Region<B>) -> Result<Region<B>> {
        let mut sequence = self.begin()?;
        parent.fork(parent.end(), &mut sequence)?;
        Ok(sequence)
    }

    /// Prepares a sequence for a write at an offset: adds a page at the end, or copies a shared one.
    pub fn make_writable(&self, sequence: &mut Region<B>, offset: Bytes) -> Result<()> {
        let page = self.pages.page_size();
        if offset == sequence.end() {
            sequence.grow_with(&self.pages.take(page)?)?;
        } else if sequence.access(offset, self.pages.properties().device) != Access::ReadWrite {
            let shared = page * (offset / page);
            sequence.make_private(shared, page, &mut self.pages.take(page)?, WaitFor::all_devices())?;
        }
        Ok(())
    }

    /// Moves the contents of a sequence to a store. Its pages return to the list, but those that others use.
    pub fn evict(&self, sequence: &mut Region<B>) -> Result<()> {
        let mut evicted = Ok(());
        for store in &self.stores {
            // A store without room for shared pages alone has the others already.
            evicted = sequence.suspend_into(store, WaitFor::all_devices(), &mut Vec::new()).map(drop);
            if !evicted.as_ref().is_err_and(|full| full.is_out_of_memory()) {
                break;
            }
        }
        evicted
    }

    /// Restores an evicted sequence at its address.
    pub fn restore(&self, sequence: &mut Region<B>) -> Result<()> {
        let RegionState::Suspended { memory, .. } = sequence.state() else { return Ok(()) };
        sequence.resume_from(&mut self.pages.take(memory)?).map(drop)
    }
}
