//! Memory that captured graphs use.
//!
//! A graph that is replayed writes to all addresses that were given out while it was captured, freed or not. So what is freed
//! there serves requests of the same captures alone, until PyTorch says that their graphs are gone; to the pool it is live, so
//! that it is suspended and resumed with its contents and addresses.

use crate::status::Answer;
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Address, AnyBackend, Bytes, Stream};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PyTorch's number for what several captures share: `c10::cuda::MempoolId_t`, a `std::pair` of two numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MempoolId {
    /// Of those that PyTorch makes by itself.
    pub first: u64,
    /// Of those that users make.
    pub second: u64,
}

type Held = Block<AnyBackend>;

/// All graphs of one device.
pub(super) struct Graphs {
    pool: Pool<AnyBackend>,
    /// How many captures are under way, so that allocations outside of captures ask no more than that.
    begun: AtomicUsize,
    /// True once there was one, so that frees of who captures nothing ask no more than that.
    any: AtomicBool,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Captures that are under way, the last one at the end.
    begun: Vec<MempoolId>,
    owners: HashMap<MempoolId, Owner>,
    /// What is given out, and for whom.
    live: HashMap<Address, (Held, MempoolId)>,
}

/// What the captures of one number have.
#[derive(Default)]
struct Owner {
    /// How often it was begun and not released.
    uses: usize,
    /// What was freed, by its stream and how much it takes.
    free: BTreeMap<(usize, u64), Vec<Held>>,
    /// What was used on other streams too: nobody can tell when it is free.
    aside: Vec<Held>,
}

impl Graphs {
    pub(super) fn new(pool: Pool<AnyBackend>) -> Self {
        Self { pool, begun: AtomicUsize::new(0), any: AtomicBool::new(false), books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin(&self, id: MempoolId) {
        let mut books = self.books();
        books.owners.entry(id).or_default().uses += 1;
        books.begun.push(id);
        self.begun.store(books.begun.len(), Ordering::Release);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn end(&self, id: MempoolId) {
        let mut books = self.books();
        if let Some(place) = books.begun.iter().rposition(|begun| *begun == id) {
            books.begun.remove(place);
        }
        self.begun.store(books.begun.len(), Ordering::Release);
    }

    /// One of its captures is gone; with the last of them what was freed goes back to the pool.
    pub(super) fn release(&self, id: MempoolId) {
        let mut books = self.books();
        let Some(owner) = books.owners.get_mut(&id) else { return };
        owner.uses = owner.uses.saturating_sub(1);
        if owner.uses == 0 {
            let gone = books.owners.remove(&id);
            drop(books);
            drop(gone);
        }
    }

    /// Memory for the capture that was begun last; none where none is under way.
    pub(super) fn alloc(
        &self,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> Answer<Option<Address>> {
        let mut books = self.books();
        let Some(id) = books.begun.last().copied() else { return Ok(None) };
        let kept = books.owners.entry(id).or_default().take(size, stream);
        let block = match kept {
            Some(block) => block,
            None => self.pool.alloc(size, alignment, stream)?,
        };
        let address = block.address();
        books.live.insert(address, (block, id));
        Ok(Some(address))
    }

    /// Whether it was given out here, and is freed now.
    pub(super) fn free(&self, address: Address) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut books = self.books();
        let Some((block, id)) = books.live.remove(&address) else { return false };
        match books.owners.get_mut(&id) {
            Some(owner) => owner.keep(block),
            // Its graphs are gone.
            None => {
                drop(books);
                drop(block);
            }
        }
        true
    }

    /// Whether it was given out here, and is noted to be used on another stream.
    pub(super) fn record_use(&self, address: Address, stream: Stream<'static>) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut books = self.books();
        let Some((block, _)) = books.live.get_mut(&address) else { return false };
        block.record_use(stream);
        true
    }
}

impl Owner {
    /// What was freed on a stream and is hardly larger than what is asked for.
    fn take(&mut self, size: Bytes, stream: Stream<'static>) -> Option<Held> {
        let stream = stream.as_raw().addr();
        let most = size.0.saturating_add(size.0 / 4).saturating_add(4096);
        let key = *self.free.range((stream, size.0)..=(stream, most)).next()?.0;
        let of_size = self.free.get_mut(&key)?;
        let block = of_size.pop();
        if of_size.is_empty() {
            self.free.remove(&key);
        }
        block
    }

    fn keep(&mut self, block: Held) {
        if block.is_used_elsewhere() {
            self.aside.push(block);
        } else {
            let key = (block.stream().as_raw().addr(), block.capacity().0);
            self.free.entry(key).or_default().push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_vmm::Vendor;

    const ONE: MempoolId = MempoolId { first: 0, second: 1 };
    const TWO: MempoolId = MempoolId { first: 0, second: 2 };
    const SIZE: Bytes = Bytes::kib(300);
    const STREAM: Stream<'static> = Stream::DEFAULT;

    fn graphs() -> Graphs {
        Graphs::new(Pool::builder(&AnyBackend::open(Vendor::Host).unwrap()).build().unwrap())
    }

    fn alloc(graphs: &Graphs) -> Address {
        graphs.alloc(SIZE, Bytes(512), STREAM).unwrap().unwrap()
    }

    #[test]
    fn outside_of_captures_it_has_nothing() {
        let graphs = graphs();
        assert_eq!(graphs.alloc(SIZE, Bytes(512), STREAM).unwrap(), None);
        assert!(!graphs.is_begun() && !graphs.free(Address(512)) && !graphs.record_use(Address(512), STREAM));
    }

    #[test]
    fn what_a_capture_freed_serves_it_again_and_nobody_else() {
        let graphs = graphs();
        graphs.begin(ONE);
        let first = alloc(&graphs);
        assert!(graphs.free(first));
        assert_eq!(alloc(&graphs), first, "the same capture");
        assert!(graphs.free(first));
        graphs.begin(TWO);
        assert_ne!(alloc(&graphs), first, "another capture");
        graphs.end(TWO);
        assert_eq!(alloc(&graphs), first, "the first one goes on");
        graphs.end(ONE);
        assert!(!graphs.is_begun());
        // The capture is over and its graph is not: what it freed is still its own, to the pool's knowledge in use.
        assert!(graphs.free(first));
        let other = graphs.pool.alloc(SIZE, Bytes(512), STREAM).unwrap();
        assert_ne!(other.address(), first);
        assert_eq!(graphs.pool.account().live_blocks, 3);
    }

    #[test]
    fn with_the_last_graph_its_memory_is_the_pools() {
        let graphs = graphs();
        graphs.begin(ONE);
        let (freed, kept) = (alloc(&graphs), alloc(&graphs));
        assert!(graphs.free(freed));
        graphs.end(ONE);
        // A second graph that shares the first one's memory.
        graphs.begin(ONE);
        graphs.end(ONE);
        graphs.release(ONE);
        assert_eq!(graphs.pool.account().live_blocks, 2);
        graphs.release(ONE);
        assert_eq!(graphs.pool.account().live_blocks, 1, "the output of a graph that is gone lives on");
        assert!(graphs.free(kept));
        assert_eq!(graphs.pool.account().live_blocks, 0);
        assert!(!graphs.free(kept));
        graphs.release(ONE);
    }

    #[test]
    fn much_larger_memory_is_not_taken() {
        let graphs = graphs();
        graphs.begin(ONE);
        let large = graphs.alloc(Bytes::mib(64), Bytes(512), STREAM).unwrap().unwrap();
        assert!(graphs.free(large));
        assert_ne!(alloc(&graphs), large);
    }

    #[test]
    fn what_other_streams_use_is_not_given_out_again() {
        let graphs = graphs();
        // A name alone: no work is queued on it, and the host has no streams to ask.
        // SAFETY: the host's backend takes a stream for its name.
        let other = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) };
        graphs.begin(ONE);
        let shared = alloc(&graphs);
        assert!(graphs.record_use(shared, other));
        assert!(graphs.free(shared));
        assert_ne!(alloc(&graphs), shared);
    }
}
