//! One interface for all allocators: the pool, and those that are compared with it.

use crate::raw::{Raw, RawStream};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Backend, Bytes, DeviceId, Stream};
use gpu_vmm_pool::{Block, Pool};
use std::alloc::Layout;

/// An allocator.
pub trait Allocator {
    /// An allocated block.
    type Block: Send;

    /// Returns its name.
    fn name(&self) -> String;

    /// Allocates memory.
    ///
    /// # Errors
    ///
    /// Why the allocation failed.
    fn alloc(&self, size: Bytes) -> StepResult<Self::Block>;

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// Why it could not be freed.
    fn free(&self, block: Self::Block) -> StepResult;

    /// Prepares a thread, which must call this first.
    ///
    /// # Errors
    ///
    /// Why the thread cannot allocate.
    fn enter(&self) -> StepResult {
        Ok(())
    }
}

/// Frees each block before the next allocation.
pub(crate) fn pairs<A: Allocator>(allocator: &A, size: Bytes, count: u64) -> StepResult {
    for _ in 0..count {
        allocator.free(allocator.alloc(size)?)?;
    }
    Ok(())
}

/// The pool, on one stream.
pub(crate) struct Pooled<B: Backend> {
    pub(crate) pool: Pool<B>,
    stream: Stream<'static>,
}

impl<B: Backend> Pooled<B> {
    pub(crate) fn new(backend: &B, device: DeviceId, stream: Stream<'static>) -> StepResult<Self> {
        Ok(Self { pool: Pool::builder(backend).device(device).build()?, stream })
    }
}

impl<B: Backend> Allocator for Pooled<B> {
    type Block = Block<B>;

    fn name(&self) -> String {
        "pool".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<Block<B>> {
        Ok(self.pool.request(size).stream(self.stream).alloc()?)
    }

    fn free(&self, block: Block<B>) -> StepResult {
        drop(block);
        Ok(())
    }
}

/// The driver's own pool, on a stream.
pub(crate) struct DriversPool {
    raw: Raw,
    stream: RawStream,
}

impl DriversPool {
    /// Makes the driver keep all memory of its pool, as in a warm program, until this is dropped.
    pub(crate) fn new(raw: &Raw) -> StepResult<Self> {
        raw.enter()?;
        raw.keep_in_pool(Bytes(u64::MAX))?;
        Ok(Self { raw: raw.clone(), stream: raw.stream()? })
    }

    /// Returns the stream for the library.
    pub(crate) fn stream(&self) -> Stream<'static> {
        self.stream.stream()
    }
}

impl Drop for DriversPool {
    fn drop(&mut self) {
        // If the driver keeps the memory nevertheless, later pairs report that they lack it.
        let _ = self.raw.keep_in_pool(Bytes::ZERO).and_then(|()| self.raw.synchronize());
    }
}

impl Allocator for DriversPool {
    type Block = u64;

    fn name(&self) -> String {
        self.raw.name("cuMemAllocAsync", "hipMallocAsync", "no pool")
    }

    fn alloc(&self, size: Bytes) -> StepResult<u64> {
        self.raw.allocate_async(size, self.stream)
    }

    fn free(&self, block: u64) -> StepResult {
        self.raw.free_async(block, self.stream)
    }

    fn enter(&self) -> StepResult {
        self.raw.enter()
    }
}

/// The program's own allocator of host memory.
pub(crate) struct Heap;

/// A block of the program's own memory.
pub(crate) struct HeapBlock(*mut u8, Layout);

#[allow(unsafe_code)]
// SAFETY: the block owns the memory.
unsafe impl Send for HeapBlock {}

impl Allocator for Heap {
    type Block = HeapBlock;

    fn name(&self) -> String {
        "malloc".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<HeapBlock> {
        let layout = Layout::from_size_align(size.0 as usize, 16)
            .map_err(|error| Stop::Failed(format!("{size} cannot be allocated: {error}")))?;
        #[allow(unsafe_code)]
        // SAFETY: no size here is zero.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return Err(Stop::Failed(format!("malloc has no {size}")));
        }
        // Otherwise the compiler removes the unused allocation.
        Ok(HeapBlock(std::hint::black_box(start), layout))
    }

    fn free(&self, HeapBlock(start, layout): HeapBlock) -> StepResult {
        #[allow(unsafe_code)]
        // SAFETY: it was allocated above with this layout, and is freed once.
        unsafe {
            std::alloc::dealloc(start, layout);
        }
        Ok(())
    }
}
