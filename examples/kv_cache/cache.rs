//! A paged cache of keys and values. Each sequence is a region: one contiguous range of addresses, into which pages of physical
//! memory are mapped as it grows. Sequences share the pages of a common prefix. An evicted sequence keeps its addresses: its
//! contents go to the host, and its pages to other sequences. Dropping a sequence or a prefix returns its pages to the list.

use gpu_vmm::{Access, Backend, BackingStore, Bytes, PageList, PhysicalMemory};
use gpu_vmm::{Region, RegionState, Result, WaitFor};

/// The pages that all sequences of a cache share.
#[derive(Debug)]
pub struct PagedCache<B: Backend> {
    /// The driver.
    pub backend: B,
    /// The free pages, and the budget of all.
    pub pages: PageList<B>,
    /// The size of the addresses of each sequence.
    pub longest: Bytes,
    /// Receives the contents of evicted sequences.
    pub store: BackingStore<B>,
}

impl<B: Backend> PagedCache<B> {
    /// Creates a prefix. The rest of its last page is zero.
    pub fn prefix(&self, contents: &[u8]) -> Result<Vec<PhysicalMemory<B>>> {
        let size = self.pages.page_size().0 as usize;
        let pages = self.pages.take(Bytes(contents.len() as u64))?;
        for (page, bytes) in pages.iter().zip(contents.chunks(size)) {
            let mut whole = bytes.to_vec();
            whole.resize(size, 0);
            page.write(Bytes::ZERO, &whole)?;
        }
        Ok(pages)
    }

    /// Creates a sequence that begins with a prefix, which it may only read.
    pub fn begin(&self, prefix: &[PhysicalMemory<B>]) -> Result<Region<B>> {
        let mut sequence =
            Region::builder(&self.backend).memory(self.pages.properties()).reserve(self.longest).build()?;
        sequence.map_with_access(Bytes::ZERO, prefix, self.pages.properties().device, Access::Read)?;
        Ok(sequence)
    }

    /// Extends a sequence by a page.
    pub fn append(&self, sequence: &mut Region<B>) -> Result<()> {
        let page = self.pages.take(self.pages.page_size())?;
        sequence.grow_with(&page).map(drop)
    }

    /// Moves the contents of a sequence to the host. The shared prefix stays, and the other pages return to the list.
    pub fn evict(&self, sequence: &mut Region<B>) -> Result<()> {
        sequence.suspend_into(&self.store, WaitFor::all_devices(), &mut Vec::new()).map(drop)
    }

    /// Restores an evicted sequence at its address.
    pub fn restore(&self, sequence: &mut Region<B>) -> Result<()> {
        let RegionState::Suspended { memory, .. } = sequence.state() else { return Ok(()) };
        sequence.resume_from(&mut self.pages.take(memory)?).map(drop)
    }
}
