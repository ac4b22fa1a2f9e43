//! The private pools of one device: memory that serves only the captures, or the `torch.cuda.MemPool`, with one identifier.
//!
//! A block of a private pool keeps its address and its capacity until the pool is released: it is never split or merged, and
//! serves one request after another. So the set of live blocks is the pool's whole state, which a checkpoint records.
//!
//! Graphs may use the memory of a pool whose allocations were captured on any stream. So the device must be idle before such
//! memory returns to the general pool.

use super::free_blocks::FreeBlocks;
use super::graphs::MempoolId;
use super::table::{self, Entry, GPU_VMM_TORCH_FREE, GPU_VMM_TORCH_PENDING, TorchBlock};
use crate::handles::{Kind, Object};
use crate::pool::Pool;
use crate::status::{CallResult, Failure, GPU_VMM_NOT_FOUND};
use gpu_vmm::extend::Process;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Backend as _, Bytes, Stream, SyncCalls, WaitFor};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct PrivatePools {
    /// The pool that the memory comes from, and the number of its device.
    pool: Pool,
    device: u8,
    process: Process,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    pools: HashMap<MempoolId, Private>,
    /// The identifiers that requests are diverted to now, each with the stream that may capture meanwhile, which the backend watches. If
    /// one captures, the device must not be waited for.
    begun: Vec<(MempoolId, Stream<'static>)>,
    /// Blocks without a pool that graphs or other streams may still use.
    gone: Vec<Block<AnyBackend>>,
    /// The size of the blocks that returned to the general pool because their private pool had ended, since the last
    /// [`PrivatePools::take_ended`].
    ended: Bytes,
}

/// A private pool.
#[derive(Default)]
struct Private {
    /// The number of its users: graphs, `torch.cuda.MemPool` objects, and blocks of code that use one.
    uses: usize,
    /// True once an allocation was captured.
    captured: bool,
    /// True if its free blocks may serve other requests when memory is short.
    on_oom: bool,
    /// Where its memory comes from, if it has a tag of its own.
    tagged: Option<Pool>,
    free: FreeBlocks,
    /// Freed blocks that work on other streams may still use, as in the general pool: they are free when these streams have done the
    /// work that they had at the free. No stream is asked while one captures, so that blocks which were freed during a capture
    /// are free after its end.
    waiting: Vec<Block<AnyBackend>>,
}

/// A checkpoint of a private pool: its identifier, and its live blocks by address.
pub struct Checkpoint {
    pub(super) id: MempoolId,
    pub(super) blocks: BTreeMap<Address, TorchBlock>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Checkpoint {
    const KIND: Kind = Kind::Checkpoint;
}

/// Returns the sum of the blocks' capacities.
fn total_capacity(blocks: &[Block<AnyBackend>]) -> Bytes {
    blocks.iter().map(Block::capacity).sum()
}

impl PrivatePools {
    pub(super) fn new(pool: Pool, device: u8) -> Self {
        Self { pool, device, process: Process::current(), books: Mutex::default() }
    }

    fn books(&self) -> CallResult<MutexGuard<'_, Books>> {
        self.process.check(gpu_vmm::Operation::Allocate)?;
        Ok(self.books.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Creates a pool, or adds a user.
    pub(super) fn acquire(&self, id: MempoolId) -> CallResult {
        self.books()?.pools.entry(id).or_default().uses += 1;
        Ok(())
    }

    /// Notes that requests are diverted to a pool from now on. `stream` may capture until the end.
    pub(super) fn begin(&self, id: MempoolId, stream: Stream<'static>) -> CallResult {
        let mut books = self.books()?;
        books.get(id)?;
        books.begun.push((id, stream));
        self.pool.backend.deferred().watch_stream(stream);
        Ok(())
    }

    /// Notes that requests are no longer diverted to a pool.
    pub(super) fn end(&self, id: MempoolId) -> CallResult {
        let mut books = self.books()?;
        if let Some(place) = books.begun.iter().rposition(|(begun, _)| *begun == id) {
            let (_, stream) = books.begun.remove(place);
            self.pool.backend.deferred().unwatch_stream(stream);
        }
        books.pools.get_mut(&id).map_or(Ok(()), |private| private.collect(&self.pool))
    }

    /// Removes a user. With the last one the pool ends: its free blocks return to the general pool.
    pub(super) fn release(&self, id: MempoolId) -> CallResult {
        let mut books = self.books()?;
        let private = books.get(id)?;
        private.uses = private.uses.saturating_sub(1);
        if private.uses > 0 {
            return Ok(());
        }
        let Some(Private { captured, free, waiting, .. }) = books.pools.remove(&id) else { return Ok(()) };
        let freed = free.into_blocks().chain(waiting);
        if captured {
            books.gone.extend(freed);
        } else {
            let freed: Vec<_> = freed.collect();
            drop(books);
            let returned = total_capacity(&freed);
            drop(freed);
            self.books()?.ended += returned;
        }
        Ok(())
    }

    /// Returns how much memory pools that have ended returned to the general pool since the last call.
    pub(super) fn take_ended(&self) -> CallResult<Bytes> {
        Ok(std::mem::take(&mut self.books()?.ended))
    }

    /// Returns the number of a pool's users; 0 if there is no such pool.
    pub(super) fn uses(&self, id: MempoolId) -> CallResult<usize> {
        Ok(self.books()?.pools.get(&id).map_or(0, |private| private.uses))
    }

    pub(super) fn set_on_oom(&self, id: MempoolId, on_oom: bool) -> CallResult {
        self.books()?.get(id)?.on_oom = on_oom;
        Ok(())
    }

    /// Gives memory that a pool allocates from now on a tag of its own.
    pub(super) fn set_tag(&self, id: MempoolId, tag: &str) -> CallResult {
        let tagged = self.pool.tagged(tag)?;
        self.books()?.get(id)?.tagged = Some(tagged);
        Ok(())
    }

    /// Allocates from a pool.
    pub(super) fn alloc(
        &self,
        id: MempoolId,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> CallResult<TorchBlock> {
        // Asked before the lock is taken. A stream that cannot be asked may capture.
        let captures = !stream.is_default() && self.pool.backend.is_capturing(stream).unwrap_or(true);
        let mut books = self.books()?;
        let private = books.get(id)?;
        private.captured |= captures;
        private.collect(&self.pool)?;
        let source = private.tagged.clone();
        let source = source.as_ref().unwrap_or(&self.pool);
        let kept = private.free.take(size, stream)?;
        drop(books);
        let block = match kept {
            Some(block) => block,
            None => match source.blocks.request(size).alignment(alignment).stream(stream).alloc() {
                Ok(block) => block,
                // The request has waited for all streams, and blocks of this pool may be free now.
                Err(error) => self.take_freed(id, size, stream)?.ok_or(error)?,
            },
        };
        self.insert(block, size, id)
    }

    /// Takes a free block of the pool, also one whose uses have ended since the pool was last looked at.
    fn take_freed(
        &self,
        id: MempoolId,
        size: Bytes,
        stream: Stream<'static>,
    ) -> CallResult<Option<Block<AnyBackend>>> {
        let mut books = self.books()?;
        let private = books.get(id)?;
        private.collect(&self.pool)?;
        Ok(private.free.take(size, stream)?)
    }

    /// Makes a block one of the pool's live ones.
    fn insert(&self, block: Block<AnyBackend>, size: Bytes, id: MempoolId) -> CallResult<TorchBlock> {
        let mut entry = Entry::new(block, self.device);
        entry.set_private(id, size.0);
        let seen = TorchBlock::of(&entry);
        table::insert(entry)?;
        Ok(seen)
    }

    /// Takes a free block for a request that no other memory can serve, from the pools that allow it.
    pub(super) fn alloc_spare(&self, size: Bytes, stream: Stream<'static>) -> CallResult<Option<TorchBlock>> {
        let mut books = self.books()?;
        let mut of_pools = books.pools.iter_mut().filter(|(_, private)| private.on_oom);
        let found = of_pools.find_map(|(id, private)| {
            private.collect(&self.pool).ok()?;
            // Another pool may have memory where this one's sleeps.
            Some((*id, private.free.take_up_to(size, u64::MAX, stream).ok()??))
        });
        found.map(|(id, block)| self.insert(block, size, id)).transpose()
    }

    /// Frees a block of a private pool.
    pub(super) fn free(&self, entry: Entry, id: MempoolId) -> CallResult {
        let (block, ended) = end_uses(entry);
        let mut books = self.books()?;
        match books.pools.get_mut(&id).filter(|_| ended.is_ok()) {
            Some(private) => private.keep(block),
            // Without the notes the block must not be reused before the device is idle.
            None => books.gone.push(block),
        }
        ended
    }

    /// Frees a block of the general pool after the work on other streams that uses it.
    pub(super) fn free_after(&self, entry: Entry) -> CallResult {
        let (block, ended) = end_uses(entry);
        if ended.is_err() {
            // As above.
            self.books()?.gone.push(block);
        }
        ended
    }

    /// Returns blocks without a pool to the general pool, after a wait for the device. Returns true if there were some. While
    /// requests are diverted it does nothing: waiting would invalidate a capture.
    pub(super) fn clear(&self) -> CallResult<bool> {
        let mut books = self.books()?;
        if !books.begun.is_empty() || books.gone.is_empty() {
            return Ok(false);
        }
        let mut gone = std::mem::take(&mut books.gone);
        drop(books);
        let device = || std::iter::once(self.pool.device());
        if let Err(error) = WaitFor::all_devices().wait(&self.pool.backend, device) {
            self.books()?.gone.extend(gone);
            return Err(error.into());
        }
        let size = total_capacity(&gone);
        // The pool asks its streams, which are done, so that the blocks do not wait there.
        drop(self.pool.blocks.take_idle(&mut gone)?);
        drop(gone);
        self.books()?.ended += size;
        Ok(true)
    }

    /// Records which blocks of a pool are live.
    pub(super) fn checkpoint(&self, id: MempoolId) -> CallResult<Checkpoint> {
        self.books()?.get(id)?;
        Ok(Checkpoint { id, blocks: self.live(id) })
    }

    fn live(&self, id: MempoolId) -> BTreeMap<Address, TorchBlock> {
        let blocks = table::blocks(self.device, Some(id));
        blocks.into_iter().map(|block| (Address(block.address), block)).collect()
    }

    /// Restores a checkpoint: exactly its blocks are live then. Returns the blocks that were live before. Waits, without the lock, if
    /// other streams still use a block that becomes live.
    pub(super) fn restore(&self, checkpoint: &Checkpoint) -> CallResult<BTreeMap<Address, TorchBlock>> {
        let Checkpoint { id, blocks } = checkpoint;
        let mut books = self.books()?;
        books.get(*id)?.collect(&self.pool)?;
        if books.get(*id)?.waiting.iter().any(|block| blocks.contains_key(&block.address())) {
            drop(books);
            self.pool.blocks.wait_for_uses()?;
            books = self.books()?;
            books.get(*id)?.collect(&self.pool)?;
        }
        let Books { pools, gone, .. } = &mut *books;
        let private = Books::find(pools, *id)?;
        let live = self.live(*id);
        let mut taken = Vec::new();
        for (address, block) in blocks.iter().filter(|(address, _)| !live.contains_key(address)) {
            match private.free.take_at(*address) {
                Some(free) => taken.push((free, block.size)),
                None => {
                    taken.into_iter().for_each(|(block, _)| private.free.keep(block));
                    return Err(Failure::new(
                        GPU_VMM_NOT_FOUND,
                        format!(
                            "restore: the block at {address} of the checkpoint is no longer in the private pool {id:?}"
                        ),
                    ));
                }
            }
        }
        let mut result = Ok(());
        for address in live.keys().filter(|address| !blocks.contains_key(address)) {
            if let Some(entry) = table::remove(*address)? {
                match end_uses(entry) {
                    (block, Ok(())) => private.keep(block),
                    (block, failed) => {
                        gone.push(block);
                        result = failed;
                    }
                }
            }
        }
        for (address, block) in blocks.iter().filter(|(address, _)| live.contains_key(address)) {
            // PyTorch counts it as freed and allocated.
            if let Some(mut entry) = table::remove(*address)? {
                entry.set_private(*id, block.size);
                table::insert(entry)?;
            }
        }
        for (block, size) in taken {
            self.insert(block, Bytes(size), *id)?;
        }
        result.map(|()| live)
    }

    /// Returns every block that is kept but not live.
    pub(super) fn kept(&self) -> CallResult<Vec<TorchBlock>> {
        let books = self.books()?;
        let seen = |block: &Block<AnyBackend>, pool: MempoolId, state: u32| TorchBlock {
            stream: block.stream().as_raw(),
            pool,
            state,
            ..TorchBlock::at(self.device.into(), block.address().0, block.capacity().0)
        };
        let mut kept = Vec::new();
        for (id, private) in &books.pools {
            kept.extend(private.free.iter().map(|block| seen(block, *id, GPU_VMM_TORCH_FREE)));
            kept.extend(private.waiting.iter().map(|block| seen(block, *id, GPU_VMM_TORCH_PENDING)));
        }
        kept.extend(books.gone.iter().map(|block| seen(block, MempoolId::default(), GPU_VMM_TORCH_FREE)));
        Ok(kept)
    }
}

impl Books {
    fn get(&mut self, id: MempoolId) -> CallResult<&mut Private> {
        Self::find(&mut self.pools, id)
    }

    fn find(pools: &mut HashMap<MempoolId, Private>, id: MempoolId) -> CallResult<&mut Private> {
        let missing = || {
            Failure::new(GPU_VMM_NOT_FOUND, format!("private pool: there is none with the identifier {id:?}"))
        };
        pools.get_mut(&id).ok_or_else(missing)
    }
}

impl Private {
    /// Keeps a freed block whose uses have ended.
    fn keep(&mut self, block: Block<AnyBackend>) {
        if block.is_used_elsewhere() { self.waiting.push(block) } else { self.free.keep(block) }
    }

    /// Makes the blocks free that no work on other streams uses any more.
    fn collect(&mut self, pool: &Pool) -> CallResult {
        if !self.waiting.is_empty() {
            let idle = pool.blocks.take_idle(&mut self.waiting)?;
            idle.into_iter().for_each(|block| self.free.keep(block));
        }
        Ok(())
    }
}

/// Ends the uses of a freed block on other streams, of which the pool learns now. Returns the block also after an error.
fn end_uses(entry: Entry) -> (Block<AnyBackend>, CallResult) {
    let streams = entry.streams().to_vec();
    let mut block = entry.block;
    let recorded = streams.into_iter().try_for_each(|stream| block.record_use(stream));
    let ended = recorded.and_then(|()| block.end_uses());
    (block, ended.map_err(Into::into))
}

#[cfg(test)]
mod tests;
