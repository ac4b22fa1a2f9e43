//! Blocks that callers identify by address, for other languages.

use crate::kept_blocks::Shard;
use crate::{Block, Fence, Pool, PoolError};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Address, Backend, Error, Operation, Result, Stream};
use gpu_vmm_premap::sync::{Arc, MutexGuard};

impl<B: Backend> Pool<B> {
    /// Keeps a block and returns its address, for callers that handle only addresses. The block is freed by
    /// [`free_at`](Pool::free_at), or with the last clone of the pool.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child.
    pub fn keep(&self, block: Block<B>) -> Result<Address> {
        let address = block.address();
        self.kept(Operation::KeepBlock, address)?.blocks.insert(address, block);
        Ok(address)
    }

    fn kept(&self, operation: Operation, address: Address) -> Result<MutexGuard<'_, Shard<B>>> {
        self.kinds.first.kept_blocks.shard(self.owner.inner.process, operation, address)
    }

    /// Frees a block that the pool [keeps](Pool::keep).
    ///
    /// # Errors
    ///
    /// [`PoolError::FreedTwice`] if the block was freed recently and no new block is at the address; [`PoolError::NotABlock`]
    /// for any other address. The pool is unchanged then.
    pub fn free_at(&self, address: Address) -> Result<()> {
        self.release(Operation::Free, address).map(drop)
    }

    /// Frees a block that the pool [keeps](Pool::keep); its memory is reused when `fence` is done.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::free_at`].
    pub fn free_at_after(&self, address: Address, fence: Arc<dyn Fence>) -> Result<()> {
        self.release(Operation::Free, address).map(|block| block.free_after(fence))
    }

    /// [Records](Block::record_use) that work on another stream uses a block that the pool [keeps](Pool::keep).
    ///
    /// # Errors
    ///
    /// Those of [`Pool::free_at`] and [`Block::record_use`].
    pub fn record_use_at(&self, address: Address, stream: Stream<'static>) -> Result<()> {
        // Not while the shard is locked, since this may wait.
        self.kinds
            .all()
            .iter()
            .try_for_each(|owner| owner.inner.end_threads(Operation::RecordUse, stream))?;
        let mut shard = self.kept(Operation::RecordUse, address)?;
        if let Some(block) = shard.blocks.get_mut(&address) {
            return block.record_use_now(stream);
        }
        let freed = shard.last_freed.contains_key(&address);
        drop(shard);
        Err(self.not_kept(Operation::RecordUse, address, freed))
    }

    fn release(&self, operation: Operation, address: Address) -> Result<Block<B>> {
        let mut shard = self.kept(operation, address)?;
        if let Some(block) = shard.blocks.remove(&address) {
            shard.remember(address);
            return Ok(block);
        }
        let freed = shard.last_freed.contains_key(&address);
        drop(shard);
        Err(self.not_kept(operation, address, freed))
    }

    fn not_kept(&self, operation: Operation, address: Address, freed: bool) -> Error {
        if freed {
            return Error::of_extension(operation, PoolError::FreedTwice { address });
        }
        let inside = self.find(address).map(|info| info.base).filter(|base| *base != address);
        Error::of_extension(operation, PoolError::NotABlock { address, inside })
    }
}
