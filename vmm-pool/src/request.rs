//! Requests with an alignment, a stream or a tag.

use crate::per_thread;
use crate::pool::DEFAULT_ALIGNMENT;
use crate::{Block, Pool};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Address, Backend, Bytes, Properties, Result, Stream};

/// A request for a [`Block`] that is not allocated yet. [`Pool::request`] returns it.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, Result, Stream};
/// # use gpu_vmm_pool::{Block, Pool};
/// # fn example<B: Backend>(pool: &Pool<B>, stream: Stream<'static>) -> Result<Block<B>> {
/// pool.request(Bytes::mib(3)).alignment(Bytes::kib(64)).stream(stream).tag("weights").alloc()
/// # }
/// ```
///
/// # Thread safety
///
/// Requests of several threads run at the same time.
#[derive(Debug)]
#[must_use = "nothing is allocated before `alloc` is called"]
pub struct BlockRequest<'a, B: Backend> {
    pool: &'a Pool<B>,
    size: Bytes,
    alignment: Bytes,
    stream: Stream<'static>,
    tag: Option<&'a str>,
    memory: Option<Properties>,
    at: Option<Address>,
}

impl<B: Backend> Pool<B> {
    /// Begins a request for a block of at least `size` bytes, for the default stream and with this pool's tag.
    #[inline]
    pub fn request(&self, size: Bytes) -> BlockRequest<'_, B> {
        let (alignment, stream) = (DEFAULT_ALIGNMENT, Stream::DEFAULT);
        BlockRequest { pool: self, size, alignment, stream, tag: None, memory: None, at: None }
    }
}

impl<'a, B: Backend> BlockRequest<'a, B> {
    /// Requests an address that is a multiple of `alignment`, a power of two. Every address is a multiple of 256; textures of linear memory need
    /// 512 on NVIDIA's GPUs.
    ///
    /// With more than 512 bytes, the block occupies a multiple of the alignment, or of 4 KiB if that is less.
    #[inline]
    pub fn alignment(self, alignment: Bytes) -> Self {
        Self { alignment, ..self }
    }

    /// Requests a block whose work is queued on `stream`.
    ///
    /// The stream must exist for as long as the process runs. Streams that end earlier must be
    /// [registered](Pool::register_stream) or [forgotten](Pool::forget_stream).
    ///
    /// The [per-thread default stream](Stream::is_per_thread) is the one of the thread that allocates the block, in the contexts of the
    /// pool's device. It needs neither: the pool forgets it after its thread has ended. Wait for work that destructors of thread-local
    /// variables queue on it.
    #[inline]
    pub fn stream(self, stream: Stream<'static>) -> Self {
        Self { stream, ..self }
    }

    /// Requests a block with this tag instead of the pool's own. The tag is looked up under the pool's lock: for many blocks
    /// with one tag, allocate from [`Pool::tagged`].
    #[inline]
    pub fn tag(self, tag: &'a str) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Requests memory with these properties instead of the pool's own, as [`Pool::with_memory`] does. The kind is looked up for each
    /// request: for many blocks of one kind, allocate from that handle.
    #[inline]
    pub fn memory(self, properties: Properties) -> Self {
        Self { memory: Some(properties), ..self }
    }

    /// Requests a block that begins at this address, a multiple of 512.
    ///
    /// If the tag has addresses there, they must be free. If not, the pool reserves them, in units of a page and of the driver: all
    /// of the block must be in addresses that are reserved already, or none of it. Such a reservation serves requests that name an
    /// address of it alone; the pool releases it once it is empty and the tag needs another one, in [`Pool::trim`] to zero, and when
    /// addresses are short. The caller chooses how far blocks are apart: the [bounds](crate#what-bounds-it) count the free addresses
    /// before such a block as taken.
    ///
    /// Small blocks take no part in the sharing of slabs: each occupies a range of its own.
    #[inline]
    pub fn at(self, address: Address) -> Self {
        Self { at: Some(address), ..self }
    }

    /// Allocates the block.
    ///
    /// The block may use memory that earlier work of the stream still uses, since the device runs the stream's work in order.
    /// A stream that captures receives only memory that no work uses any more, because the graph may be launched on any
    /// stream. A block that a graph uses must live until the last launch of the graph.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](Detail::Unsupported) for more than 65,534 streams, and for the
    ///   [per-thread default stream](Stream::is_per_thread) of a thread that is ending
    /// - [`ZeroSize`](Detail::ZeroSize), [`BadAlignment`](Detail::BadAlignment) or [`ExceedsDevice`](Detail::ExceedsDevice)
    /// - [`OutOfMemory`](crate::PoolError::OutOfMemory) or [`OutOfAddresses`](crate::PoolError::OutOfAddresses)
    /// - [`Suspended`](crate::PoolError::Suspended)
    /// - for a request with an [address](BlockRequest::at): [`AddressTaken`](crate::PoolError::AddressTaken), which names what is there;
    ///   [`Unaligned`](Detail::Unaligned); [`Overflow`](Detail::Overflow); [`Poisoned`](Detail::Poisoned) if a failed call has lost
    ///   the memory there; [`Unsupported`](Detail::Unsupported) on a device without virtual memory management
    /// - the driver's error
    ///
    /// The pool is unchanged then.
    ///
    /// # Waiting
    ///
    /// A request that finds too little memory waits for streams and fences, for suspensions of other tags and for memory that another
    /// request overwrites ([`PoolBuilder::scrub`](crate::PoolBuilder::scrub)). It returns [`Suspended`](crate::PoolError::Suspended)
    /// if its own tag was suspended meanwhile. A request with an [address](BlockRequest::at) waits in the same way for work that may
    /// still use freed memory there.
    #[track_caller]
    #[inline]
    pub fn alloc(self) -> Result<Block<B>> {
        let Self { pool, size, alignment, stream, tag, memory, at } = self;
        let stream = per_thread::named(stream);
        let other;
        let pool = match (memory, tag) {
            (None, None) => pool,
            (None, Some(tag)) => {
                other = pool.tagged(tag)?;
                &other
            }
            (Some(memory), tag) => {
                let of_kind = pool.with_memory(memory)?;
                other = if let Some(tag) = tag { of_kind.tagged(tag)? } else { of_kind };
                &other
            }
        };
        match at {
            None => pool.alloc_as(size, alignment, stream),
            Some(at) => pool.alloc_at((at, size), alignment, stream),
        }
    }

    /// Allocates a block that this thread's cache holds, or the large one that was freed last: the fast path of
    /// [`BlockRequest::alloc`] alone. Returns none if neither is such a block, or if the request names a tag, memory or an address, is
    /// invalid, or is for a stream that captures; `alloc` then serves the request or reports the error.
    #[must_use]
    #[track_caller]
    #[inline]
    pub fn alloc_cached(self) -> Option<Block<B>> {
        match (self.memory, self.tag, self.at) {
            (None, None, None) => {
                self.pool.alloc_cached(self.size, self.alignment, per_thread::named(self.stream))
            }
            _ => None,
        }
    }

    /// Allocates a block from memory that is free and mapped, without mapping or creating any. Returns none if the pool has no
    /// such memory at one place, or if the request names a tag, memory or an address, or is invalid; `alloc` then serves the request or
    /// reports the error. A caller that knows of blocks that it can free calls this first, frees them, and then calls `alloc`.
    #[must_use]
    #[track_caller]
    pub fn alloc_mapped(self) -> Option<Block<B>> {
        match (self.memory, self.tag, self.at) {
            (None, None, None) => {
                self.pool.alloc_mapped(self.size, self.alignment, per_thread::named(self.stream))
            }
            _ => None,
        }
    }
}
