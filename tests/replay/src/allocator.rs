//! The allocators that serve a trace.
#![allow(unsafe_code)] // plain allocations are freed by their address

use crate::{ReplayError, Streams, TraceFence};
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::TestKit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An allocator that serves a trace, from several threads at once.
pub trait Allocator: Sync {
    /// An allocated block.
    type Block;

    /// Allocates for the stream with this number, which is below the trace's [count](crate::Trace::streams).
    ///
    /// # Errors
    ///
    /// The error of the allocator.
    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<Self::Block, ReplayError>;

    /// Frees a block that may be reused at once.
    ///
    /// # Errors
    ///
    /// The error of the allocator.
    fn free(&self, block: Self::Block) -> Result<(), ReplayError>;

    /// Frees a block that may be reused once a fence is complete.
    ///
    /// # Errors
    ///
    /// The error of the allocator.
    fn free_after(&self, block: Self::Block, fence: Arc<TraceFence>) -> Result<(), ReplayError>;

    /// Returns the number of driver calls so far.
    fn driver_calls(&self) -> u64;

    /// Returns the memory that the allocator holds from the driver, if it keeps account.
    fn held(&self) -> Option<Held>;

    /// Returns by how much the device's free memory has dropped since the start.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn device_took(&self) -> Result<Bytes, ReplayError>;
}

/// The memory that an allocator holds from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Now.
    pub now: Bytes,
    /// The peak.
    pub peak: Bytes,
}

/// A device, and its free memory at the start.
#[derive(Debug)]
struct Start<'a, B> {
    backend: &'a B,
    device: DeviceId,
    free: Bytes,
}

impl<'a, B: Backend> Start<'a, B> {
    fn of(backend: &'a B, device: DeviceId) -> Result<Self, ReplayError> {
        Ok(Self { backend, device, free: backend.memory_info(device)?.free })
    }

    fn took(&self) -> Result<Bytes, ReplayError> {
        Ok(self.free.saturating_sub(self.backend.memory_info(self.device)?.free))
    }
}

/// A pool of gpu-vmm.
#[derive(Debug)]
pub struct Pooled<'a, B: Backend> {
    // Dropped before the streams of its blocks.
    pool: Pool<B>,
    streams: &'a Streams,
    start: Start<'a, B>,
    alignment: Bytes,
}

impl<'a, B: Backend> Pooled<'a, B> {
    /// Creates a pool on a device. Its pages have this size, or the pool's default.
    ///
    /// # Errors
    ///
    /// The error of the driver or the pool.
    pub fn new(
        backend: &'a B,
        device: DeviceId,
        streams: &'a Streams,
        page: Option<Bytes>,
    ) -> Result<Self, ReplayError> {
        let start = Start::of(backend, device)?;
        let builder = Pool::builder(backend).device(device);
        let builder = match page {
            Some(page) => builder.page(page),
            None => builder,
        };
        Ok(Self { pool: builder.build()?, streams, start, alignment: Bytes(1) })
    }

    /// Aligns blocks to a power of two, instead of to what each size has anyway.
    #[must_use]
    pub fn aligned(mut self, alignment: Bytes) -> Self {
        self.alignment = alignment;
        self
    }

    /// Returns the pool.
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }
}

impl<B: Backend> Allocator for Pooled<'_, B> {
    type Block = Block<B>;

    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<Block<B>, ReplayError> {
        Ok(self.pool.request(bytes).alignment(self.alignment).stream(self.streams.get(stream)).alloc()?)
    }

    fn free(&self, block: Block<B>) -> Result<(), ReplayError> {
        drop(block);
        Ok(())
    }

    fn free_after(&self, block: Block<B>, fence: Arc<TraceFence>) -> Result<(), ReplayError> {
        block.free_after(fence);
        Ok(())
    }

    fn driver_calls(&self) -> u64 {
        self.pool.stats().driver_calls.total()
    }

    fn held(&self) -> Option<Held> {
        let account = self.pool.stats();
        Some(Held { now: Bytes(account.held), peak: Bytes(account.peak_held) })
    }

    fn device_took(&self) -> Result<Bytes, ReplayError> {
        self.start.took()
    }
}

/// The driver itself: `cuMemAlloc` and `cuMemFree`, `hipMalloc` and `hipFree`, `mmap` and `munmap`. When memory is freed, a
/// GPU's driver waits until the device has finished with it.
#[derive(Debug)]
pub struct Plain<'a, B: Backend> {
    start: Start<'a, B>,
    calls: AtomicU64,
}

impl<'a, B: Backend> Plain<'a, B> {
    /// Creates an allocator that calls the driver of a device.
    ///
    /// # Errors
    ///
    /// The error of the driver when it reports its free memory.
    pub fn new(backend: &'a B, device: DeviceId) -> Result<Self, ReplayError> {
        Ok(Self { start: Start::of(backend, device)?, calls: AtomicU64::new(0) })
    }
}

/// A plain allocation. Only [`Plain::free`](Allocator::free) frees it.
#[derive(Debug)]
pub struct PlainBlock {
    address: Address,
    bytes: Bytes,
}

impl<B: TestKit> Allocator for Plain<'_, B> {
    type Block = PlainBlock;

    fn allocate(&self, bytes: Bytes, _: u16) -> Result<PlainBlock, ReplayError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let address = self.start.backend.allocate_plain(self.start.device, bytes)?;
        Ok(PlainBlock { address, bytes })
    }

    fn free(&self, block: PlainBlock) -> Result<(), ReplayError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the block was allocated above with this size, is not freed yet, and was never used.
        Ok(unsafe { self.start.backend.free_plain(self.start.device, block.address, block.bytes) }?)
    }

    fn free_after(&self, block: PlainBlock, _: Arc<TraceFence>) -> Result<(), ReplayError> {
        self.free(block)
    }

    fn driver_calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn held(&self) -> Option<Held> {
        None
    }

    fn device_took(&self) -> Result<Bytes, ReplayError> {
        self.start.took()
    }
}
