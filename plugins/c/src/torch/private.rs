//! The private pools of one device: memory that serves only the captures, or the `torch.cuda.MemPool`, with one identifier.
//!
//! A block of a private pool keeps its address and its capacity until the pool is released: it is never split or merged, and
//! serves one request after another. So the set of live blocks is the pool's whole state, which a checkpoint records.
//!
//! Graphs may use the memory of a pool whose allocations were captured on any stream. So the device must be idle before such
//! memory returns to the general pool.

use super::free_blocks::FreeBlocks;
use super::graphs::MempoolId;
use super::table::{self, Entry, TorchBlock};
use crate::handles::{Kind, Object};
use crate::pool::Pool;
use crate::status::{Answer, Failure, GPU_VMM_NOT_FOUND};
use gpu_vmm::extend::Process;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Stream, SyncCalls, WaitFor};
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
    /// The number of identifiers that requests are diverted to now. If one of them captures, the device must not be waited for.
    begun: usize,
    /// Blocks without a pool that graphs or other streams may still use.
    gone: Vec<Block<AnyBackend>>,
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
    /// Blocks that were freed during a capture and used on other streams. They are free when the capture has ended, since a
    /// graph joins all of its streams.
    aside: Vec<Block<AnyBackend>>,
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

impl PrivatePools {
    pub(super) fn new(pool: Pool, device: u8) -> Self {
        Self { pool, device, process: Process::current(), books: Mutex::default() }
    }

    fn books(&self) -> Answer<MutexGuard<'_, Books>> {
        self.process.check(gpu_vmm::Operation::Allocate)?;
        Ok(self.books.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Creates a pool, or adds a user.
    pub(super) fn acquire(&self, id: MempoolId) -> Answer {
        self.books()?.pools.entry(id).or_default().uses += 1;
        Ok(())
    }

    /// Notes that requests are diverted to a pool from now on.
    pub(super) fn begin(&self, id: MempoolId) -> Answer {
        let mut books = self.books()?;
        books.get(id)?;
        books.begun += 1;
        Ok(())
    }

    /// Notes that requests are no longer diverted to a pool.
    pub(super) fn end(&self, id: MempoolId) -> Answer {
        let mut books = self.books()?;
        books.begun = books.begun.saturating_sub(1);
        if let Some(private) = books.pools.get_mut(&id) {
            private.take_aside();
        }
        Ok(())
    }

    /// Removes a user. With the last one the pool ends: its free blocks return to the general pool.
    pub(super) fn release(&self, id: MempoolId) -> Answer {
        let mut books = self.books()?;
        let private = books.get(id)?;
        private.uses = private.uses.saturating_sub(1);
        if private.uses > 0 {
            return Ok(());
        }
        let Some(Private { captured, free, aside, .. }) = books.pools.remove(&id) else { return Ok(()) };
        let freed = free.into_blocks().chain(aside);
        if captured {
            books.gone.extend(freed);
        } else {
            let freed: Vec<_> = freed.collect();
            drop(books);
            drop(freed);
        }
        Ok(())
    }

    /// Returns the number of a pool's users; 0 if there is no such pool.
    pub(super) fn uses(&self, id: MempoolId) -> Answer<usize> {
        Ok(self.books()?.pools.get(&id).map_or(0, |private| private.uses))
    }

    pub(super) fn set_on_oom(&self, id: MempoolId, on_oom: bool) -> Answer {
        self.books()?.get(id)?.on_oom = on_oom;
        Ok(())
    }

    /// Gives memory that a pool allocates from now on a tag of its own.
    pub(super) fn set_tag(&self, id: MempoolId, tag: &str) -> Answer {
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
    ) -> Answer<TorchBlock> {
        // Asked before the lock is taken. A stream that cannot be asked may capture.
        let captures = !stream.is_default() && self.pool.backend.is_capturing(stream).unwrap_or(true);
        let mut books = self.books()?;
        let private = books.get(id)?;
        private.captured |= captures;
        let source = private.tagged.clone();
        let source = source.as_ref().unwrap_or(&self.pool);
        let kept = private.free.take(size, stream)?;
        drop(books);
        let block = match kept {
            Some(block) => block,
            None => source.blocks.request(size).alignment(alignment).stream(stream).alloc()?,
        };
        Ok(self.insert(block, size, id))
    }

    /// Makes a block one of the pool's live ones.
    fn insert(&self, block: Block<AnyBackend>, size: Bytes, id: MempoolId) -> TorchBlock {
        let mut entry = Entry::new(block, self.device);
        entry.set_private(id, size.0);
        let seen = TorchBlock::of(&entry);
        table::insert(entry);
        seen
    }

    /// Takes a free block for a request that no other memory can serve, from the pools that allow it.
    pub(super) fn alloc_spare(&self, size: Bytes, stream: Stream<'static>) -> Answer<Option<TorchBlock>> {
        let mut books = self.books()?;
        let mut of_pools = books.pools.iter_mut().filter(|(_, private)| private.on_oom);
        let found = of_pools.find_map(|(id, private)| {
            // Another pool may have memory where this one's sleeps.
            Some((*id, private.free.take_up_to(size, u64::MAX, stream).ok()??))
        });
        Ok(found.map(|(id, block)| self.insert(block, size, id)))
    }

    /// Frees a block of a private pool.
    pub(super) fn free(&self, entry: Entry, id: MempoolId) -> Answer {
        let mut books = self.books()?;
        match books.pools.get_mut(&id) {
            None => books.gone.push(entry.block),
            Some(private) if entry.streams().is_empty() => private.free.keep(entry.block),
            Some(private) if private.captured => private.aside.push(entry.block),
            // It serves the pool no more: only the general pool waits for streams.
            Some(_) => {
                drop(books);
                self.free_after(entry)?;
            }
        }
        Ok(())
    }

    /// Frees a block after the work on other streams that uses it.
    pub(super) fn free_after(&self, entry: Entry) -> Answer {
        let streams = entry.streams().to_vec();
        let mut block = entry.block;
        for stream in streams {
            if let Err(error) = block.record_use(stream) {
                // Without the note the block must not be reused before the device is idle.
                self.books()?.gone.push(block);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Returns blocks without a pool to the general pool, after a wait for the device. Returns true if there were some. While
    /// requests are diverted it does nothing: waiting would invalidate a capture.
    pub(super) fn clear(&self) -> Answer<bool> {
        let mut books = self.books()?;
        if books.begun > 0 || books.gone.is_empty() {
            return Ok(false);
        }
        let gone = std::mem::take(&mut books.gone);
        drop(books);
        let device = || std::iter::once(self.pool.device);
        if let Err(error) = WaitFor::all_devices().wait(&self.pool.backend, device) {
            self.books()?.gone.extend(gone);
            return Err(error.into());
        }
        drop(gone);
        Ok(true)
    }

    /// Records which blocks of a pool are live.
    pub(super) fn checkpoint(&self, id: MempoolId) -> Answer<Checkpoint> {
        self.books()?.get(id)?;
        Ok(Checkpoint { id, blocks: self.live(id) })
    }

    fn live(&self, id: MempoolId) -> BTreeMap<Address, TorchBlock> {
        let mut live = BTreeMap::new();
        table::each(self.device, |entry| {
            if entry.private() == Some(id) {
                live.insert(entry.block.address(), TorchBlock::of(entry));
            }
        });
        live
    }

    /// Restores a checkpoint: exactly its blocks are live then. Returns the blocks that were live before.
    pub(super) fn restore(&self, checkpoint: &Checkpoint) -> Answer<BTreeMap<Address, TorchBlock>> {
        let Checkpoint { id, blocks } = checkpoint;
        let mut books = self.books()?;
        let private = books.get(*id)?;
        let live = self.live(*id);
        private.take_aside();
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
        for address in live.keys().filter(|address| !blocks.contains_key(address)) {
            if let Some(entry) = table::remove(*address) {
                private.free.keep(entry.block);
            }
        }
        for (address, block) in blocks.iter().filter(|(address, _)| live.contains_key(address)) {
            table::with(*address, |entry| entry.set_private(*id, block.size));
        }
        for (block, size) in taken {
            self.insert(block, Bytes(size), *id);
        }
        Ok(live)
    }

    /// Calls `visit` with the address, the capacity and the stream of every block that is kept but not live.
    pub(super) fn each_free(&self, mut visit: impl FnMut(MempoolId, &Block<AnyBackend>)) -> Answer {
        let books = self.books()?;
        for (id, private) in &books.pools {
            private.free.iter().chain(&private.aside).for_each(|block| visit(*id, block));
        }
        books.gone.iter().for_each(|block| visit(MempoolId::default(), block));
        Ok(())
    }
}

impl Books {
    fn get(&mut self, id: MempoolId) -> Answer<&mut Private> {
        let missing = || {
            Failure::new(GPU_VMM_NOT_FOUND, format!("private pool: there is none with the identifier {id:?}"))
        };
        self.pools.get_mut(&id).ok_or_else(missing)
    }
}

impl Private {
    /// Makes the blocks free that waited for the end of a capture.
    fn take_aside(&mut self) {
        let Self { free, aside, .. } = self;
        aside.drain(..).for_each(|block| free.keep(block));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::pool::PoolOptions;
    use crate::status::GPU_VMM_SUSPENDED;
    use gpu_vmm::{BackingStore, Vendor};

    const ID: MempoolId = MempoolId { first: 0, second: 7 };
    const OTHER: MempoolId = MempoolId { first: 0, second: 8 };
    const SIZE: Bytes = Bytes::kib(300);
    const STREAM: Stream<'static> = Stream::DEFAULT;

    /// The table is the process's, so each test has a device number of its own.
    fn pools(device: u8) -> PrivatePools {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let pools = PrivatePools::new(Pool::new(&host, &PoolOptions::DEFAULT).unwrap(), device);
        pools.acquire(ID).unwrap();
        pools
    }

    /// Returns another stream. Only a number: no work is queued on it.
    fn other() -> Stream<'static> {
        // SAFETY: the host backend never dereferences a stream.
        unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) }
    }

    fn alloc(pools: &PrivatePools) -> Address {
        Address(pools.alloc(ID, SIZE, Bytes(512), STREAM).unwrap().address)
    }

    fn free(pools: &PrivatePools, address: Address) {
        let entry = table::remove(address).unwrap();
        let id = entry.private().unwrap();
        pools.free(entry, id).unwrap();
    }

    fn live(pools: &PrivatePools) -> u64 {
        pools.pool.blocks.stats().live_blocks
    }

    #[test]
    fn a_freed_block_serves_its_pool_alone() {
        let pools = pools(1);
        pools.acquire(OTHER).unwrap();
        let first = alloc(&pools);
        free(&pools, first);
        let other = Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address);
        assert_ne!(other, first);
        assert_eq!(alloc(&pools), first);
        free(&pools, other);
        free(&pools, first);
        assert_eq!(live(&pools), 2);
        pools.release(OTHER).unwrap();
        assert_eq!((live(&pools), pools.uses(OTHER).unwrap(), pools.uses(ID).unwrap()), (1, 0, 1));
        pools.release(ID).unwrap();
        assert_eq!(live(&pools), 0);
        assert_eq!(pools.release(ID).unwrap_err().status, GPU_VMM_NOT_FOUND);
        assert!(pools.alloc(ID, SIZE, Bytes(512), STREAM).is_err());
    }

    #[test]
    fn a_checkpoint_is_the_set_of_live_blocks() {
        let pools = pools(2);
        let (kept, freed) = (alloc(&pools), alloc(&pools));
        let checkpoint = pools.checkpoint(ID).unwrap();
        free(&pools, freed);
        let smaller = pools.alloc(ID, SIZE - Bytes(2048), Bytes(512), STREAM).unwrap();
        let smaller = Address(smaller.address);
        assert_eq!(smaller, freed, "the block serves the next request");
        let later = alloc(&pools);
        let before = pools.restore(&checkpoint).unwrap();
        assert_eq!(before.keys().copied().collect::<Vec<_>>(), {
            let mut all = [kept, freed, later];
            all.sort();
            all
        });
        assert_eq!(pools.checkpoint(ID).unwrap().blocks.len(), 2);
        assert_eq!(
            table::with(freed, |entry| entry.size()),
            Some(SIZE.0),
            "it has the size of the checkpoint"
        );
        assert!(table::with(later, |_| ()).is_none(), "a later block is free");
        assert_eq!(alloc(&pools), later);
        free(&pools, later);
        free(&pools, kept);
        pools.restore(&checkpoint).unwrap();
        assert!(table::with(kept, |_| ()).is_some(), "a freed block is live again");
        free(&pools, kept);
        free(&pools, freed);
        pools.release(ID).unwrap();
        assert_eq!(live(&pools), 0);
    }

    #[test]
    fn a_checkpoint_of_a_released_pool_changes_nothing() {
        let pools = pools(3);
        let (one, two) = (alloc(&pools), alloc(&pools));
        let checkpoint = pools.checkpoint(ID).unwrap();
        free(&pools, one);
        free(&pools, two);
        pools.release(ID).unwrap();
        assert_eq!(pools.restore(&checkpoint).unwrap_err().status, GPU_VMM_NOT_FOUND);
        pools.acquire(ID).unwrap();
        let kept = alloc(&pools);
        let failure = pools.restore(&checkpoint).unwrap_err();
        assert!(failure.text.contains("is no longer in the private pool"), "{}", failure.text);
        assert!(table::with(kept, |_| ()).is_some());
        assert_eq!(live(&pools), 1);
        free(&pools, kept);
    }

    #[test]
    fn a_tag_of_its_own_is_suspended_alone() {
        let pools = pools(7);
        pools.acquire(OTHER).unwrap();
        pools.set_tag(OTHER, "weights").unwrap();
        assert_eq!(
            pools.set_tag(MempoolId { first: 0, second: 9 }, "weights").unwrap_err().status,
            GPU_VMM_NOT_FOUND
        );
        let block = alloc(&pools);
        let tagged = Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address);
        let tag_of = |address| pools.pool.blocks.find(address).unwrap().tag;
        assert_eq!((&*tag_of(tagged), &*tag_of(block)), ("weights", ""));
        free(&pools, tagged);
        assert_eq!(Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address), tagged);
        free(&pools, tagged);
        free(&pools, block);
        pools.release(OTHER).unwrap();
    }

    #[test]
    fn use_on_another_stream_is_waited_for() {
        let pools = pools(4);
        let block = alloc(&pools);
        table::with(block, |entry| entry.note_use(other())).unwrap();
        free(&pools, block);
        assert_eq!(
            live(&pools),
            0,
            "it has left the private pool, since only the general one waits for streams"
        );
    }

    #[test]
    fn memory_of_a_graph_is_kept_until_the_device_is_idle() {
        let pools = pools(5);
        pools.begin(ID).unwrap();
        let block = alloc(&pools);
        pools.books().unwrap().get(ID).unwrap().captured = true;
        table::with(block, |entry| entry.note_use(other())).unwrap();
        free(&pools, block);
        assert_ne!(alloc(&pools), block, "the other stream of the capture may use it");
        pools.release(ID).unwrap();
        assert!(!pools.clear().unwrap(), "a wait would invalidate the capture");
        pools.end(ID).unwrap();
        assert_eq!(live(&pools), 2);
        assert!(pools.clear().unwrap());
        assert_eq!(live(&pools), 1, "the output of the graph stays");
    }

    #[test]
    fn spare_memory_serves_others_if_it_may() {
        let pools = pools(6);
        let block = alloc(&pools);
        free(&pools, block);
        assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
        pools.set_on_oom(ID, true).unwrap();
        let spare = pools.alloc_spare(Bytes::kib(100), STREAM).unwrap();
        assert_eq!(spare.map(|spare| spare.address), Some(block.0));
        assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
        free(&pools, block);
    }

    #[test]
    fn free_memory_that_sleeps_serves_nothing() {
        let pools = pools(8);
        pools.set_tag(ID, "weights").unwrap();
        pools.set_on_oom(ID, true).unwrap();
        let block = alloc(&pools);
        free(&pools, block);
        let tags = &pools.pool.blocks;
        tags.suspend("weights", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
        let refused = pools.alloc(ID, SIZE, Bytes(512), STREAM).map(|seen| seen.address).unwrap_err();
        assert_eq!(refused.status, GPU_VMM_SUSPENDED, "{}", refused.text);
        assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
        tags.resume("weights").unwrap();
        assert_eq!(alloc(&pools), block);
        free(&pools, block);
    }
}
