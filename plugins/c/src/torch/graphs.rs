//! Memory that captured graphs use.
//!
//! A replayed graph writes to all addresses that were allocated during its capture, freed or not. So memory that is freed
//! during a capture serves only requests of the same captures, until PyTorch reports that their graphs are destroyed. To the
//! pool this memory is live, so it is suspended and resumed with its contents and addresses.
//!
//! The library cannot know on which stream a graph is replayed. So it waits for the device before it returns the graph's
//! memory to the pool.

use super::free_blocks::FreeBlocks;
use crate::pool::Pool;
use crate::status::CallResult;
use gpu_vmm::extend::Process;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Stream, WaitFor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PyTorch's identifier of memory that several captures may share: `c10::cuda::MempoolId_t`, a `std::pair` of two numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MempoolId {
    /// The number of an identifier that PyTorch created itself.
    pub first: u64,
    /// The number of an identifier that the user created.
    pub second: u64,
}

/// A block and its owners: all captures that were in progress when it was allocated, since the request does not say which of
/// them made it.
type Held = (Block<AnyBackend>, Vec<MempoolId>);

/// The memory of all graphs of one device.
pub(super) struct Graphs {
    pool: Pool,
    process: Process,
    /// The number of captures in progress. Allocations outside of captures read only this.
    begun: AtomicUsize,
    /// True once a capture began. Frees in programs that capture nothing read only this.
    any: AtomicBool,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Captures in progress.
    begun: Vec<MempoolId>,
    owners: HashMap<MempoolId, Owner>,
    /// Allocated blocks.
    live: HashMap<Address, Held>,
    /// Freed blocks that have several owners or were used on other streams too. They are not reused while an owner exists,
    /// because it is unknown when they are free.
    aside: Vec<Held>,
    /// Freed blocks without an owner, which return to the pool once the device has finished.
    gone: Vec<Block<AnyBackend>>,
}

/// The captures with one identifier.
#[derive(Default)]
struct Owner {
    /// The number of begun captures that were not released.
    uses: usize,
    free: FreeBlocks,
}

impl Graphs {
    /// Creates the state of a device's graphs, which allocate from `pool` under its tag.
    pub(super) fn new(pool: Pool) -> Self {
        let (begun, any) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { pool, process: Process::current(), begun, any, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there ever was a capture. False in a forked child: a thread that does not exist there may hold the lock, and
    /// none of the memory belongs to the child.
    fn is_used(&self) -> bool {
        self.any.load(Ordering::Acquire) && self.process.is_this()
    }

    pub(super) fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) > 0 && self.process.is_this()
    }

    pub(super) fn begin(&self, id: MempoolId) {
        if !self.process.is_this() {
            return;
        }
        let mut books = self.books();
        books.owners.entry(id).or_default().uses += 1;
        books.begun.push(id);
        self.begun.store(books.begun.len(), Ordering::Release);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn end(&self, id: MempoolId) {
        if !self.is_used() {
            return;
        }
        let mut books = self.books();
        if let Some(place) = books.begun.iter().rposition(|begun| *begun == id) {
            books.begun.remove(place);
        }
        self.begun.store(books.begun.len(), Ordering::Release);
    }

    /// Releases one capture of an identifier. With its last capture, its freed blocks return to the pool.
    pub(super) fn release(&self, id: MempoolId) -> CallResult {
        if !self.is_used() {
            return Ok(());
        }
        let mut books = self.books();
        let Some(owner) = books.owners.get_mut(&id) else { return Ok(()) };
        owner.uses = owner.uses.saturating_sub(1);
        if owner.uses > 0 {
            return Ok(());
        }
        let free = books.owners.remove(&id).into_iter().flat_map(|owner| owner.free.into_blocks());
        books.gone.extend(free);
        let aside = std::mem::take(&mut books.aside);
        let (stays, gone) = aside.into_iter().partition(|(_, ids)| books.is_owned(ids));
        books.aside = stays;
        books.gone.extend(Vec::<Held>::into_iter(gone).map(|(block, _)| block));
        drop(books);
        self.clear()
    }

    /// Waits for the device and returns blocks without an owner to the pool. While a capture is in progress, it does nothing,
    /// because waiting would invalidate the capture; a later call returns the blocks.
    pub(super) fn clear(&self) -> CallResult {
        if !self.is_used() || self.is_begun() {
            return Ok(());
        }
        let gone = std::mem::take(&mut self.books().gone);
        if gone.is_empty() {
            return Ok(());
        }
        let device = || std::iter::once(self.pool.device());
        if let Err(error) = WaitFor::all_devices().wait(&self.pool.backend, device) {
            self.books().gone.extend(gone);
            return Err(error.into());
        }
        drop(gone);
        Ok(())
    }

    /// Allocates for the captures in progress. Returns `None` if there are none.
    pub(super) fn alloc(
        &self,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> CallResult<Option<Address>> {
        if !self.is_begun() {
            return Ok(None);
        }
        let mut books = self.books();
        let mut ids = books.begun.clone();
        ids.sort_unstable_by_key(|id| (id.first, id.second));
        ids.dedup();
        let kept = match ids[..] {
            [] => return Ok(None),
            [one] => books.owners.entry(one).or_default().free.take(size, stream)?,
            _ => None,
        };
        let block = match kept {
            Some(block) => block,
            None => self.pool.blocks.request(size).alignment(alignment).stream(stream).alloc()?,
        };
        let address = block.address();
        books.live.insert(address, (block, ids));
        Ok(Some(address))
    }

    /// Frees a block of [`Graphs::alloc`]. Returns false for other addresses.
    pub(super) fn free(&self, address: Address) -> CallResult<bool> {
        if !self.is_used() {
            return Ok(false);
        }
        let mut books = self.books();
        let Some((block, ids)) = books.live.remove(&address) else { return Ok(false) };
        match ids[..] {
            _ if !books.is_owned(&ids) => books.gone.push(block),
            [one] if !block.is_used_elsewhere() => books.owners.entry(one).or_default().free.keep(block),
            _ => books.aside.push((block, ids)),
        }
        drop(books);
        self.clear()?;
        Ok(true)
    }

    /// Records a use on another stream for a block of [`Graphs::alloc`]. Returns false for other addresses.
    pub(super) fn record_use(&self, address: Address, stream: Stream<'static>) -> CallResult<bool> {
        if !self.is_used() {
            return Ok(false);
        }
        let mut books = self.books();
        let Some((block, _)) = books.live.get_mut(&address) else { return Ok(false) };
        block.record_use(stream)?;
        Ok(true)
    }
}

impl Books {
    /// Whether graphs of any of these identifiers exist.
    fn is_owned(&self, ids: &[MempoolId]) -> bool {
        ids.iter().any(|id| self.owners.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::pool_options::PoolOptions;
    use gpu_vmm::{Backend as _, Vendor};

    const ONE: MempoolId = MempoolId { first: 0, second: 1 };
    const TWO: MempoolId = MempoolId { first: 0, second: 2 };
    const SIZE: Bytes = Bytes::kib(300);
    const STREAM: Stream<'static> = Stream::DEFAULT;

    fn graphs() -> Graphs {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        Graphs::new(Pool::new(&host, &PoolOptions::DEFAULT).unwrap())
    }

    fn alloc(graphs: &Graphs) -> Address {
        graphs.alloc(SIZE, Bytes(512), STREAM).unwrap().unwrap()
    }

    /// The number of blocks that are live to the pool.
    fn live(graphs: &Graphs) -> u64 {
        graphs.pool.blocks.stats().live_blocks
    }

    #[test]
    fn nested_capture_ends_with_second_end() {
        let graphs = graphs();
        graphs.begin(ONE);
        graphs.begin(ONE);
        let block = alloc(&graphs);
        assert!(graphs.free(block).unwrap());
        assert_eq!(alloc(&graphs), block, "its freed block serves it again");
        graphs.end(ONE);
        assert!(graphs.is_begun());
        graphs.end(ONE);
        assert!(!graphs.is_begun());
    }

    #[test]
    fn outside_of_captures_it_has_nothing() {
        let graphs = graphs();
        assert_eq!(graphs.alloc(SIZE, Bytes(512), STREAM).unwrap(), None);
        assert!(
            !graphs.is_begun()
                && !graphs.free(Address(512)).unwrap()
                && !graphs.record_use(Address(512), STREAM).unwrap()
        );
    }

    #[test]
    fn memory_freed_in_capture_stays_its() {
        let graphs = graphs();
        graphs.begin(ONE);
        let first = alloc(&graphs);
        assert!(graphs.free(first).unwrap());
        assert_eq!(alloc(&graphs), first, "the same capture");
        assert!(graphs.free(first).unwrap());
        graphs.end(ONE);
        graphs.begin(TWO);
        assert_ne!(alloc(&graphs), first, "another capture");
        graphs.end(TWO);
        graphs.begin(ONE);
        assert_eq!(alloc(&graphs), first, "one that shares the first one's memory");
        graphs.end(ONE);
        assert!(!graphs.is_begun());
        // The capture has ended, but its graph exists: its freed memory is still reserved for it and live to the pool.
        assert!(graphs.free(first).unwrap());
        let other = graphs.pool.blocks.request(SIZE).alignment(Bytes(512)).stream(STREAM).alloc().unwrap();
        assert_ne!(other.address(), first);
        assert_eq!(live(&graphs), 3);
    }

    #[test]
    fn last_graph_returns_memory_to_pool() {
        let graphs = graphs();
        graphs.begin(ONE);
        let (freed, kept) = (alloc(&graphs), alloc(&graphs));
        assert!(graphs.free(freed).unwrap());
        graphs.end(ONE);
        // A second graph that shares the first one's memory.
        graphs.begin(ONE);
        graphs.end(ONE);
        graphs.release(ONE).unwrap();
        assert_eq!(live(&graphs), 2);
        graphs.release(ONE).unwrap();
        assert_eq!(live(&graphs), 1, "the output of a destroyed graph stays allocated");
        assert!(graphs.free(kept).unwrap());
        assert_eq!(live(&graphs), 0);
        assert!(!graphs.free(kept).unwrap());
        graphs.release(ONE).unwrap();
    }

    #[test]
    fn much_larger_memory_is_not_taken() {
        let graphs = graphs();
        graphs.begin(ONE);
        let large = graphs.alloc(Bytes::mib(64), Bytes(512), STREAM).unwrap().unwrap();
        assert!(graphs.free(large).unwrap());
        assert_ne!(alloc(&graphs), large);
    }

    #[test]
    fn memory_in_use_elsewhere_serves_nothing() {
        let graphs = graphs();
        // Only a number: no work is queued on it, and the host has no streams.
        // SAFETY: the host backend never dereferences a stream.
        let other = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) };
        graphs.begin(ONE);
        let shared = alloc(&graphs);
        assert!(graphs.record_use(shared, other).unwrap());
        assert!(graphs.free(shared).unwrap());
        assert_ne!(alloc(&graphs), shared);
    }

    #[test]
    fn concurrent_captures_both_own_their_memory() {
        let graphs = graphs();
        graphs.begin(ONE);
        graphs.begin(TWO);
        let shared = alloc(&graphs);
        assert!(graphs.free(shared).unwrap());
        assert_ne!(alloc(&graphs), shared, "the other capture may own it");
        graphs.end(ONE);
        graphs.end(TWO);
        graphs.release(ONE).unwrap();
        assert_eq!(live(&graphs), 2, "the second graph may use it");
        graphs.release(TWO).unwrap();
        assert_eq!(live(&graphs), 1);
    }

    #[test]
    fn memory_of_its_own_is_no_capture() {
        // `torch.cuda.use_mem_pool` begins like this, but captures nothing.
        let graphs = graphs();
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let options = PoolOptions { budget: 64 << 20, ..PoolOptions::DEFAULT };
        let pool = Pool::new(&host, &options).unwrap();
        let graphs = Graphs { pool: pool.tagged("torch graphs").unwrap(), ..graphs };
        // Only a number, as above.
        // SAFETY: the host backend never dereferences a stream.
        let other = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) };
        drop(pool.blocks.request(Bytes::mib(60)).alignment(Bytes(512)).stream(other).alloc().unwrap());
        graphs.begin(ONE);
        assert!(!pool.backend.deferred().is_capturing());
        drop(pool.blocks.request(Bytes::mib(50)).alignment(Bytes(512)).stream(STREAM).alloc().unwrap());
        pool.blocks.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.blocks.stats().held, 0);
        graphs.end(ONE);
    }

    #[test]
    fn while_something_captures_nothing_is_waited_for() {
        let graphs = graphs();
        graphs.begin(ONE);
        let freed = alloc(&graphs);
        assert!(graphs.free(freed).unwrap());
        graphs.end(ONE);
        graphs.begin(TWO);
        graphs.release(ONE).unwrap();
        assert_eq!(live(&graphs), 1, "it waits");
        graphs.end(TWO);
        graphs.clear().unwrap();
        assert_eq!(live(&graphs), 0);
        graphs.pool.blocks.trim(Bytes::ZERO).unwrap();
    }

    #[test]
    fn the_named_capture_ends() {
        let graphs = graphs();
        graphs.begin(ONE);
        graphs.begin(TWO);
        graphs.end(ONE);
        let block = alloc(&graphs);
        graphs.end(TWO);
        graphs.release(ONE).unwrap();
        assert!(graphs.free(block).unwrap());
        assert_eq!(live(&graphs), 1, "the second graph may use it");
        graphs.release(TWO).unwrap();
        assert_eq!(live(&graphs), 0);
    }

    #[test]
    fn memory_of_one_capture_serves_one() {
        let graphs = graphs();
        graphs.begin(ONE);
        let first = alloc(&graphs);
        assert!(graphs.free(first).unwrap());
        graphs.begin(TWO);
        assert_ne!(alloc(&graphs), first, "the second capture may have made the request");
        graphs.end(TWO);
        assert_eq!(alloc(&graphs), first);
        graphs.end(ONE);
    }

    #[test]
    fn memory_stays_graphs_if_wait_fails() {
        let graphs = graphs();
        graphs.begin(ONE);
        let block = alloc(&graphs);
        assert!(graphs.free(block).unwrap());
        graphs.end(ONE);
        // The program captures on its own, of which it has told the library: a wait would invalidate that.
        graphs.pool.backend.deferred().capture_begins();
        assert_eq!(graphs.release(ONE).unwrap_err().status, crate::status::GPU_VMM_BUSY);
        assert_eq!(live(&graphs), 1);
        graphs.pool.backend.deferred().capture_ends();
        graphs.clear().unwrap();
        assert_eq!(live(&graphs), 0);
    }
}
