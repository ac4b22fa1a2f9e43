//! Uses of blocks on other streams than their own, for allocators that keep freed blocks instead of dropping them.
//!
//! A dropped block waits for these uses in the pool. A block that an allocator keeps waits in the allocator's list until the same
//! streams are done: [`Block::end_uses`] notes their work, and [`Pool::take_idle`] takes the blocks out.

use crate::core::Core;
use crate::thread_cache::body::FreeConditions;
use crate::{Block, Pool};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Backend, Operation, Result};
use std::sync::Arc;

impl<B: Backend> Block<B> {
    /// Ends the uses that [`record_use`](Block::record_use) has recorded, as dropping the block does, but keeps the block:
    /// [`Pool::take_idle`] returns it once the streams have done the work that is queued on them now. An allocator that keeps freed
    /// blocks for itself calls this when its own caller frees one.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child.
    pub fn end_uses(&mut self) -> Result<()> {
        let size = self.piece().size;
        let (inner, others) = self.others_mut();
        let Some(others) = others.filter(|others| !others.streams.is_empty()) else {
            return inner.process.check(Operation::Free);
        };
        inner.core(Operation::Free)?.end_uses(others, size);
        Ok(())
    }
}

impl<B: Backend> Pool<B> {
    /// Takes the blocks out of a list that no work on other streams uses any more. Blocks of another pool or [kind](Pool::with_memory),
    /// and blocks whose uses have not [ended](Block::end_uses), stay in the list. Waits for no work.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child. The list is unchanged then.
    pub fn take_idle(&self, blocks: &mut Vec<Block<B>>) -> Result<Vec<Block<B>>> {
        let inner = &self.owner.inner;
        let mut core = inner.core(Operation::WaitForStream)?;
        let is_idle = |core: &Core<B>, block: &Block<B>| {
            Arc::ptr_eq(inner, block.inner()) && block.others().is_none_or(|others| core.is_idle_of(others))
        };
        if !blocks.iter().all(|block| is_idle(&core, block)) {
            core.poll();
        }
        let mut idle: Vec<_> = blocks.extract_if(.., |block| is_idle(&core, block)).collect();
        idle.iter_mut().for_each(Block::forget_uses);
        Ok(idle)
    }

    /// Waits until the work is done that is queued now on all streams of blocks of this handle's [kind](Pool::with_memory) that were freed,
    /// or whose uses have [ended](Block::end_uses).
    ///
    /// # Errors
    ///
    /// [`Capturing`](Detail::Capturing) if a wait would invalidate a capture, [`Forked`](Detail::Forked), or the driver's error.
    pub fn wait_for_uses(&self) -> Result<()> {
        self.owner.inner.wait_for_streams(Operation::WaitForStream)
    }
}

impl<B: Backend> Core<B> {
    /// Notes the work that the recorded streams have now as the work that a block of `size` bytes waits for.
    pub(crate) fn end_uses(&mut self, others: &mut FreeConditions, size: u64) {
        for index in others.streams.drain(..) {
            others.also_after.push(self.streams.free(index));
            // Counted first: an event covers the bytes.
            if self.streams.is_of_thread(index) {
                self.streams.note_freed(index, size, u64::MAX);
            }
            self.streams.mark_if_possible(usize::from(index));
        }
    }

    fn is_idle_of(&self, others: &FreeConditions) -> bool {
        others.streams.is_empty()
            && others.fence.is_none()
            && others.also_after.iter().all(|free_after| self.streams.is_done(*free_after))
    }
}
