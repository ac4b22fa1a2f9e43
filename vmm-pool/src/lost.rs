//! Pages that are out of use: a driver call failed there, and so did its rollback.

use crate::block_memory::BlockMemory;
use crate::core::Core;
use crate::frames::LOST;
use crate::space::Page;
use gpu_vmm_core::{Backend, Bytes};

impl<B: Backend> Core<B> {
    /// Returns the offset of the first page of a piece without usable memory.
    pub(crate) fn lost_in(&self, piece: &BlockMemory) -> Option<Bytes> {
        let space = self.space_of(piece);
        let mut pages = space.pages_of(piece.address - space.base, piece.size);
        pages.find(|page| !space.page_at(*page).is_mapped()).map(|page| space.offset_of(page))
    }

    /// Takes a page out of use whose memory or access is unknown.
    pub(crate) fn lose(&mut self, space: usize, page: usize) {
        let at @ Page { frame, .. } = self.spaces[space].pages[page];
        self.spaces[space].lose(&mut self.frames, page);
        // The program may still use the memory of a block.
        if at.is_used() {
            for other in self.frames.get(frame).mapped.clone() {
                self.spaces[usize::from(other.space)].lose(&mut self.frames, other.page as usize);
            }
            self.remove(frame);
        }
    }

    /// Ensures that no request gets memory of lost pages that lies between live blocks: free slots of slabs, and blocks that are in a
    /// thread cache or will be freed into one.
    pub(crate) fn withdraw_lost(&mut self, space: usize) {
        let space = &self.spaces[space];
        if space.pages.iter().any(|page| page.frame == LOST && page.live > 0) {
            self.tags.get(space.tag).lose_pages();
            self.slabs.withdraw(|slab| {
                slab.space == space.index && space.is_lost(slab.base - space.base, slab.size())
            });
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{Bytes, Detail, OffsetRange, Operation};
    use gpu_vmm_host::HostConfig;

    /// Whichever page of a block has lost its memory. A failed call takes the memory of the first pages before the memory of others.
    #[test]
    fn each_page_of_block_is_checked() {
        for lost in 0..3 {
            let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
            let page = Bytes(pool.snapshot().page);
            let block = pool.alloc(Bytes(3 * page.0)).unwrap();
            block.check_usable(Operation::Read).unwrap();
            let offset = {
                let mut core = pool.owner.inner.core(Operation::Unmap).unwrap();
                let space = core.spaces.iter().position(|space| !space.is_small()).unwrap();
                let offset = Bytes(block.address().0 - core.spaces[space].base + lost * page.0);
                core.lose(space, (offset.0 / page.0) as usize);
                offset
            };
            let error = block.check_usable(Operation::Read).unwrap_err();
            assert!(
                matches!(error.detail(), Detail::Poisoned { range, .. } if *range == OffsetRange { offset, length: page }),
                "page {lost}: {error}"
            );
        }
    }
}
