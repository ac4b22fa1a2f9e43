//! The pool type and the path of an allocation.

use crate::Block;
use crate::block_memory::BlockMemory;
use crate::budget_source::BudgetEffort;
use crate::classes::{Class, MEDIUM, SMALL_CLASSES, SMALLEST, aligned_class, class_of, size_of};
use crate::core::{Core, PAGE, Request, Shortage};
use crate::kinds::{Kinds, Waits};
use crate::ledger::{Ledger, Raises};
use crate::mapping::Mapping;
use crate::owner::Owner;
use crate::per_thread;
use crate::plain::NewChunk;
use crate::settings::{Callbacks, Settings};
use crate::slabs::slab_size;
use crate::space::{UNIT, rounded};
use crate::stream_order::StreamIndex;
use crate::tags::Tag;
use crate::thread_cache::body::{Body, Place, Ready};
use crate::thread_cache::{Cache, ThreadCacheRef, batch_of};
use gpu_vmm_core::{Address, Alignment, Backend, Bytes, Detail, Error, ErrorKind, Operation, Result, Stream};
use gpu_vmm_premap::PremapThread;
use gpu_vmm_premap::sync::thread_number;
use std::panic::Location;
use std::sync::Arc;

/// A memory pool of one device. Clones refer to the same pool. [`with_memory`](Self::with_memory) returns a handle of the same pool for
/// another kind of memory, such as host memory.
///
/// It does not implement `Allocator` for Rust's collections: [`suspend`](Self::suspend), a safe call, unmaps memory of live
/// blocks, and CPUs have no access to the memory of a GPU's pool. [`Block`] and [`DeviceVec`](gpu_vmm_core::DeviceVec) own
/// device memory.
///
/// Each block belongs to a stream. Memory that was freed on a stream serves the next request for the same stream at once, since
/// the device runs the work of a stream in order. It serves other streams when an event reports that the earlier work is
/// done.
///
/// # Thread safety
///
/// Every call may run on any thread and at the same time as every other one. A call that waits for work or copies contents holds
/// no lock of the pool meanwhile, and calls no code of the program under one, except [`Fence::is_done`](crate::Fence::is_done) and
/// subscribers of `tracing`. The driver's calls that create, map and unmap memory run one at a time in each pool.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, Result};
/// # use gpu_vmm_pool::Pool;
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let pool = Pool::builder(backend).build()?;
/// let block = pool.alloc(Bytes::mib(3))?;
/// let address = block.address();
/// drop(block);
/// assert_eq!(pool.alloc(Bytes::mib(3))?.address(), address);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pool<B: Backend> {
    /// The kind of memory that this handle allocates.
    pub(crate) owner: Arc<Owner<B>>,
    pub(crate) tag: Arc<Tag>,
    /// All kinds, which end after this handle's references to one of them.
    pub(crate) kinds: Arc<Kinds<B>>,
}

impl<B: Backend> Clone for Pool<B> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner), tag: Arc::clone(&self.tag), kinds: Arc::clone(&self.kinds) }
    }
}

pub(crate) const OPERATION: Operation = Operation::Allocate;

/// The most rounds of waits of a request while other threads return memory.
const ROUNDS: u32 = 64;

/// The alignment of every address, if the caller requests none.
pub(crate) const DEFAULT_ALIGNMENT: Bytes = Bytes(256);

/// An allocation request, with the thread cache of the calling thread.
#[derive(Debug)]
pub(crate) struct AllocRequest<'a, B: Backend> {
    pub(crate) thread_cache: &'a ThreadCacheRef<B>,
    pub(crate) size: Bytes,
    pub(crate) alignment: Bytes,
    pub(crate) stream: Stream<'static>,
    pub(crate) class: Option<usize>,
    /// True if the stream captures.
    pub(crate) captures: bool,
    /// True if only mapped memory may serve the request.
    pub(crate) tentative: bool,
    /// The address of the block, if the caller has chosen one.
    pub(crate) at: Option<u64>,
}

impl<B: Backend> Pool<B> {
    pub(crate) fn make(
        backend: &B,
        settings: Settings,
        ledger: Ledger,
        calls: Callbacks,
        premap: Option<PremapThread>,
    ) -> Result<Self> {
        let kinds = Arc::new(Kinds::new(backend, settings, ledger, calls, premap)?);
        let owner = Arc::clone(&kinds.first);
        let tag = owner.inner.core(Operation::CreatePool)?.tags.named("")?;
        Ok(Self { owner, tag, kinds })
    }

    /// Returns the same pool for blocks with a tag. Each tag has its own addresses, is suspended as a whole, and is listed
    /// separately in snapshots. A tag belongs to the [kind of memory](Self::with_memory) of this handle: the same name in two kinds is
    /// two tags.
    ///
    /// A tag ends with its last handle and its last block. The pool releases its addresses when it makes another tag, when it
    /// runs out of addresses, and in [`trim`](Self::trim) to zero.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Detail::Unsupported) for more than 65,536 tags at a time, [`Forked`](Detail::Forked) in a forked child.
    pub fn tagged(&self, tag: &str) -> Result<Self> {
        let (operation, owner) = (Operation::TagMemory, &self.owner);
        let known = owner.inner.core(operation)?.tags.find(tag);
        let tag = match known {
            Some(known) => known,
            None => {
                owner.end_tags(operation)?;
                owner.inner.core(operation)?.tags.named(tag)?
            }
        };
        Ok(Self { owner: Arc::clone(owner), tag, kinds: Arc::clone(&self.kinds) })
    }

    /// Forgets a tag: its name is free for another tag at once. Handles and blocks of the tag stay valid. Its addresses are free when
    /// the last of both has ended. A tag that is not forgotten ends in the same way.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`](crate::PoolError::NoSuchTag); [`PoolError::Suspended`](crate::PoolError::Suspended) for a tag that is
    /// suspended, or that a thread suspends or resumes: [`resume`](Self::resume) finds it by its name; [`Forked`](Detail::Forked).
    pub fn forget_tag(&self, tag: &str) -> Result<()> {
        let operation = Operation::TagMemory;
        let known = self.tag_named(operation, tag)?;
        self.owner.inner.core(operation)?.forget_tag(operation, &known)?;
        drop(known);
        self.owner.end_tags(operation)
    }

    /// Allocates a block for the default stream, with an address that is a multiple of 256. [`request`](Pool::request) asks for
    /// another stream, alignment or tag.
    ///
    /// # Errors
    ///
    /// Those of [`BlockRequest::alloc`](crate::BlockRequest::alloc).
    #[track_caller]
    #[inline]
    pub fn alloc(&self, size: Bytes) -> Result<Block<B>> {
        self.alloc_as(size, DEFAULT_ALIGNMENT, Stream::DEFAULT)
    }

    /// Allocates a block as [`BlockRequest::alloc`](crate::BlockRequest::alloc) does.
    #[track_caller]
    #[inline]
    pub(crate) fn alloc_as(
        &self,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> Result<Block<B>> {
        let thread_cache = self.owner.thread_cache(thread_number());
        let class = fit(size.0, alignment.0);
        let is_here = self.owner.inner.process.is_this();
        // The default stream never captures.
        let captures = !stream.is_default() && is_here && self.captures(stream);
        if let Some(class) = class.flatten()
            && is_here
            && !captures
            && let Some(ready) = self.take_cached(thread_cache, class, size, stream)
        {
            return Ok(self.block(ready));
        }
        self.alloc_from_books(thread_cache, class, size, alignment, (stream, captures))
    }

    /// Allocates a block that the thread cache holds, or the large one that was freed last.
    #[track_caller]
    #[inline]
    pub(crate) fn alloc_cached(
        &self,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> Option<Block<B>> {
        let class = fit(size.0, alignment.0).map_or_else(|| self.check(size, alignment).ok(), Some)?;
        if !self.owner.inner.process.is_this() || !stream.is_default() && self.captures(stream) {
            return None;
        }
        let thread_cache = self.owner.thread_cache(thread_number());
        Some(self.block(match class {
            Some(class) => self.take_cached(thread_cache, class, size, stream)?,
            None => self.take_last(size, alignment, (stream, false))?,
        }))
    }

    /// Allocates a block from memory that is free and mapped.
    #[track_caller]
    pub(crate) fn alloc_mapped(
        &self,
        size: Bytes,
        alignment: Bytes,
        stream: Stream<'static>,
    ) -> Option<Block<B>> {
        if !self.owner.inner.process.is_this() {
            return None;
        }
        let class = fit(size.0, alignment.0).map_or_else(|| self.check(size, alignment).ok(), Some)?;
        self.owner.inner.end_threads(OPERATION, stream).ok()?;
        let thread_cache = self.owner.thread_cache(thread_number());
        let captures = !stream.is_default() && self.captures(stream);
        let cached = class.filter(|_| !captures);
        let cached = cached.and_then(|class| self.take_cached(thread_cache, class, size, stream));
        let (tentative, at) = (true, None);
        let wanted = AllocRequest { thread_cache, size, alignment, stream, class, captures, tentative, at };
        let ready = cached.or_else(|| self.take_last(size, alignment, (stream, captures)));
        Some(self.block(ready.or_else(|| self.try_take(&wanted, false, (&mut None, &mut None)).ok())?))
    }

    /// Takes a block from the thread cache.
    #[inline(always)]
    fn take_cached(
        &self,
        thread_cache: &ThreadCacheRef<B>,
        class: usize,
        size: Bytes,
        stream: Stream<'static>,
    ) -> Option<Ready<B>> {
        let mut cache = thread_cache.lock();
        if !self.tag.uses_caches() {
            return None;
        }
        cache.take(self.tag.index, stream, class, size.0)
    }

    /// Returns true if work that is queued on a stream goes into a graph, or may do so.
    pub(crate) fn captures(&self, stream: Stream<'static>) -> bool {
        let stream = per_thread::for_driver(stream);
        stream.is_none_or(|stream| self.owner.backend.is_capturing(stream).unwrap_or(true))
    }

    /// Serves a request that the thread cache cannot serve.
    #[track_caller]
    #[inline(never)]
    fn alloc_from_books(
        &self,
        thread_cache: &ThreadCacheRef<B>,
        class: Option<Option<usize>>,
        size: Bytes,
        alignment: Bytes,
        (stream, captures): (Stream<'static>, bool),
    ) -> Result<Block<B>> {
        let class = match class {
            Some(class) => class,
            None => self.check(size, alignment)?,
        };
        self.owner.inner.process.check(OPERATION)?;
        let (tentative, at) = (false, None);
        let wanted = AllocRequest { thread_cache, size, alignment, stream, class, captures, tentative, at };
        let ready = match self.take_last(size, alignment, (stream, captures)) {
            Some(ready) => ready,
            None => self.take(&wanted)?,
        };
        Ok(self.block(ready))
    }

    #[track_caller]
    #[inline(always)]
    pub(crate) fn block(&self, ready: Ready<B>) -> Block<B> {
        let tracking = &self.owner.inner.tracking;
        if tracking.is_on() {
            let (address, size) = (Address(ready.piece.address), Bytes(ready.size()));
            tracking.note(address, size, &self.tag.name, Location::caller());
        }
        Block::new(ready)
    }

    /// Returns the error of an invalid request, or no class for a valid one.
    pub(crate) fn check(&self, size: Bytes, alignment: Bytes) -> Result<Option<usize>> {
        if size.is_zero() {
            return Err(Error::new(OPERATION, Detail::ZeroSize));
        }
        Alignment::new(alignment).ok_or_else(|| Error::new(OPERATION, Detail::BadAlignment { alignment }))?;
        let total = self.owner.total();
        if size > total {
            let device = self.owner.memory().device;
            return Err(Error::new(OPERATION, Detail::ExceedsDevice { requested: size, device, total }));
        }
        Ok(None)
    }

    /// Takes the block that was freed last, if it matches the request exactly and the stream does not capture.
    #[inline]
    fn take_last(
        &self,
        size: Bytes,
        alignment: Bytes,
        (stream, captures): (Stream<'static>, bool),
    ) -> Option<Ready<B>> {
        let rounded = rounded(size.0, alignment.0).filter(|rounded| *rounded > MEDIUM && !captures)?;
        self.owner.inner.last.take(stream, size.0, |body| {
            body.piece.size == rounded
                && body.piece.address.is_multiple_of(alignment.0)
                && matches!(body.place, Place::Last(tag) if tag == self.tag.index)
                && self.tag.uses_caches()
        })
    }

    /// Takes memory from the core. If there is too little, lets free memory of other kinds give way, waits for streams and fences, calls
    /// the callback, and tries again. Gives up only after a round of waits that began after the last failure and during which no thread
    /// returned any memory, or after [`ROUNDS`].
    pub(crate) fn take(&self, wanted: &AllocRequest<'_, B>) -> Result<Ready<B>> {
        let size = wanted.size;
        let mut raises = Raises::new(&self.kinds.ledger);
        let mut settled = false;
        let (mut waits, mut given) = (Waits::new(), 0);
        let (mut chunk, mut turn, mut is_reserved) = (None, None, false);
        let (mut returned, mut rounds) = (0, 0);
        let mut has_looked = false;
        self.owner.inner.end_threads(OPERATION, wanted.stream)?;
        loop {
            let shortage = match self.try_take(wanted, settled, (&mut chunk, &mut turn)) {
                Ok(taken) => {
                    drop(turn);
                    if settled {
                        self.owner.ask_premap();
                    }
                    return Ok(taken);
                }
                Err(Shortage::Mapping | Shortage::Chunk(_))
                    if !std::mem::replace(&mut has_looked, true)
                        && self.owner.inner.wait_for_threads(OPERATION)? =>
                {
                    continue;
                }
                Err(Shortage::Mapping) => {
                    turn = Some(self.owner.inner.mapping(OPERATION)?);
                    continue;
                }
                Err(Shortage::Space(request)) => match (&turn, is_reserved) {
                    (None, _) => Shortage::Space(request),
                    (Some(mapping), true) => mapping.core()?.shortage_of_addresses(request),
                    (Some(mapping), false) => match mapping.add_space(request) {
                        Ok(()) => {
                            is_reserved = true;
                            continue;
                        }
                        Err(shortage) => shortage,
                    },
                },
                Err(Shortage::Chunk(request)) => match NewChunk::allocate(&self.owner.inner, request) {
                    Ok(new) => {
                        chunk = Some(new);
                        continue;
                    }
                    Err(shortage) => shortage,
                },
                Err(shortage) => shortage,
            };
            (turn, is_reserved) = (None, false);
            if waits.are_at_start() {
                returned = self.kinds.returned(OPERATION)?;
            }
            let of_others = (&shortage, size);
            match shortage {
                Shortage::Moving => self.owner.inner.wait_for_move(OPERATION, &self.tag)?,
                Shortage::Caches if !settled => self.owner.settle(OPERATION, |_, _| true)?,
                _ if self.raise_budget(OPERATION, of_others, BudgetEffort::TakeFree, &mut raises)? => {}
                _ if self.kinds.give_way(&self.owner, OPERATION, of_others, &mut given)? => {}
                ref shortage if can_end(shortage) && waits.climb(&self.kinds, &self.owner, OPERATION)? => {}
                // Other threads may free for ever what does not suffice.
                ref shortage if can_end(shortage) && rounds < ROUNDS && self.may_serve(size, returned)? => {
                    rounds += 1;
                    waits = Waits::new();
                    self.owner.settle(OPERATION, |_, _| true)?;
                }
                ref shortage
                    if can_end(shortage)
                        && !matches!(shortage, Shortage::Taken(_))
                        && self.owner.call_for_memory(size) =>
                {
                    // The memory that the callback freed can still be in use by a stream: wait for it.
                    waits = Waits::new();
                    self.owner.settle(OPERATION, |_, _| true)?;
                }
                // Others give memory back only for what this pool cannot have otherwise.
                _ if self.raise_budget(OPERATION, of_others, BudgetEffort::AskOthers, &mut raises)? => {}
                shortage => return Err(self.tell(OPERATION, shortage, size, &self.tag)),
            }
            settled = true;
        }
    }

    /// Returns true if a request may be served now: memory was returned since `returned` was read, and the budget allows the size.
    fn may_serve(&self, size: Bytes, returned: u64) -> Result<bool> {
        Ok(size <= self.kinds.ledger.budget() && self.kinds.returned(OPERATION)? != returned)
    }

    /// Returns the error of a call that failed with a shortage.
    pub(crate) fn tell(
        &self,
        operation: Operation,
        shortage: Shortage,
        requested: Bytes,
        tag: &Tag,
    ) -> Error {
        self.owner.tell(operation, shortage, (requested, tag), || self.kinds.several())
    }

    /// Takes memory from the core, if it has any. A new chunk serves this request first.
    fn try_take<'a>(
        &'a self,
        wanted: &AllocRequest<'_, B>,
        settled: bool,
        (chunk, turn): (&mut Option<NewChunk<'_, B>>, &mut Option<Mapping<'a, B>>),
    ) -> Result<Ready<B>, Shortage> {
        let &AllocRequest { thread_cache, size, alignment, stream, class, captures, tentative, at } = wanted;
        // One hold from the look at the stream's number to the memory that is taken for it: the number may serve another stream
        // later. If the hold is interrupted to map or overwrite the memory, that belongs to this request already.
        let mut core = match turn {
            Some(mapping) => mapping.core()?,
            None => self.owner.inner.core(OPERATION)?,
        };
        if let Some(chunk) = chunk {
            core.add_chunk(chunk)?;
        }
        let (_, index) = self.bin(&mut core, thread_cache, stream, settled)?;
        // Slots and pieces in thread caches follow the order of their stream. A graph does not.
        let class = class.filter(|_| !captures);
        let tag = self.tag.index;
        // A block with an alignment of more than a page would waste too many of the few addresses for small blocks.
        let small = size.0 <= MEDIUM && alignment.0 <= PAGE.0;
        let rounded = class.map_or(size.0, size_of);
        let request = Request {
            size: rounded,
            alignment: alignment.0,
            tag,
            stream: index,
            captures,
            small,
            tentative,
            at,
        };
        let mut pieces = Vec::new();
        let (mut core, piece, index) = match class.filter(|class| *class < SMALL_CLASSES) {
            None => self.take_range(core, request, stream, (settled, turn))?,
            Some(class) => {
                // Above the budget, cached slots would keep memory.
                let batch =
                    if self.tag.uses_caches() && !core.exceeds_budget() { batch_of(class) } else { 1 };
                pieces.reserve_exact(batch);
                core.check_active(tag)?;
                let mut index = index;
                if !core.take_slots(request, class, batch, &mut pieces) {
                    let wanted = Request { size: slab_size(class), small: true, ..request };
                    let slab;
                    (core, slab, index) = self.take_range(core, wanted, stream, (settled, turn))?;
                    let request = Request { stream: index, ..request };
                    core.add_slab(request, class, slab);
                    core.take_slots(request, class, batch, &mut pieces);
                }
                let piece = pieces.pop().ok_or(Shortage::Caches)?;
                (core, piece, index)
            }
        };
        // Before the core is unlocked: then the bin may serve another tag and stream, unless it has bodies.
        let mut cache = thread_cache.lock();
        // Unless the stream was forgotten while the hold was interrupted.
        let bin = cache.bin(tag, stream).filter(|bin| cache.stream_of(*bin) == index);
        let place = match (class, bin) {
            (Some(class), Some(bin)) => Place::Cached(bin, Class::new(class)),
            _ => Place::Last(tag),
        };
        let body = |piece: BlockMemory| Body::new(thread_cache, piece, (stream, index), size.0, place);
        match place {
            // The budget may have become smaller while the hold was interrupted.
            Place::Cached(bin, class) if !cache.refuses() => {
                pieces.into_iter().for_each(|piece| cache.add(bin, class, body(piece)))
            }
            _ => pieces.into_iter().for_each(|piece| core.give(piece, index)),
        }
        if captures {
            // The next request outside of the capture comes to the core, which records an event.
            self.owner.inner.last.forget();
        } else if class.is_none() && bin.is_some() {
            self.owner.inner.last.set_stream(stream, index);
        }
        let ready = cache.boxed(body(piece));
        cache.count_out(size.0);
        drop(cache);
        // Last: what leaves the core is freed then, without another lock.
        drop(core);
        Ok(ready)
    }

    /// Returns the number of the stream and its bin in the thread cache, for as long as the caller holds the core. Adds the bin if there
    /// is none. `settled` is true if the thread caches were emptied before.
    fn bin(
        &self,
        core: &mut Core<B>,
        thread_cache: &ThreadCacheRef<B>,
        stream: Stream<'static>,
        settled: bool,
    ) -> Result<(u16, StreamIndex), Shortage> {
        let tag = self.tag.index;
        let known = |cache: &Cache<B>| cache.bin(tag, stream).map(|bin| (bin, cache.stream_of(bin)));
        if let Some(known) = known(&thread_cache.lock()) {
            return Ok(known);
        }
        let index = core.streams.index(OPERATION, stream)?;
        // Bins are added in a hold of the core alone.
        match thread_cache.lock().add_bin(tag, stream, index) {
            Some(bin) => Ok((bin, index)),
            None if !settled => Err(Shortage::Caches),
            None => {
                let reason = format!(
                    "live blocks of one thread cache have the maximum of {} pairs of a tag and a stream; free some",
                    usize::from(u16::MAX) + 1
                );
                Err(Error::new(OPERATION, Detail::Unsupported { reason }).into())
            }
        }
    }
}

/// Returns true if memory or addresses are short: waits and the program's callback may end that.
fn can_end(shortage: &Shortage) -> bool {
    match shortage {
        Shortage::Memory(_) | Shortage::Addresses { .. } => true,
        Shortage::Taken(obstacle) => obstacle.may_end,
        // The driver has refused a reservation.
        Shortage::Other(error) => error.kind() == ErrorKind::OutOfAddressSpace,
        Shortage::Caches
        | Shortage::Mapping
        | Shortage::Space(_)
        | Shortage::Suspended
        | Shortage::Moving
        | Shortage::Chunk(_) => false,
    }
}

/// Returns the class of a request. Returns `None` if the request is invalid, large, or needs a range of its own.
#[inline]
fn fit(size: u64, alignment: u64) -> Option<Option<usize>> {
    if size == 0 || size > MEDIUM || !alignment.is_power_of_two() {
        return None;
    }
    let class = class_of(size)?;
    match alignment {
        ..=SMALLEST => Some(Some(class)),
        UNIT => Some(Some(aligned_class(class))),
        // It needs a range of its own.
        _ => None,
    }
}
