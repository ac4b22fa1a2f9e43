//! Who serves the allocations of a trace.
#![allow(unsafe_code)] // plain allocations are given back by their address

use crate::{ReplayError, Streams, TraceFence};
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::TestKit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who serves the allocations of a trace, from several threads at once.
pub trait Allocator: Sync {
    /// What is allocated.
    type Block;

    /// Allocates for the stream of that number, which is below the trace's [count](crate::Trace::streams).
    ///
    /// # Errors
    ///
    /// What the allocator answers.
    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<Self::Block, ReplayError>;

    /// Frees a block that may be used again at once.
    ///
    /// # Errors
    ///
    /// What the allocator answers.
    fn free(&self, block: Self::Block) -> Result<(), ReplayError>;

    /// Frees a block that may be used again when a fence is done.
    ///
    /// # Errors
    ///
    /// What the allocator answers.
    fn free_after(&self, block: Self::Block, fence: Arc<TraceFence>) -> Result<(), ReplayError>;

    /// How often the driver was called so far.
    fn driver_calls(&self) -> u64;

    /// What the allocator has from the driver by its own account, where it keeps one.
    fn held(&self) -> Option<Held>;

    /// By how much the device's free memory is less than it was at first.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn device_took(&self) -> Result<Bytes, ReplayError>;
}

/// What an allocator has from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Now.
    pub now: Bytes,
    /// The most there ever was.
    pub peak: Bytes,
}

/// A device, and what was free of it at first.
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
    // Before the streams that its blocks are on.
    pool: Pool<B>,
    streams: &'a Streams,
    start: Start<'a, B>,
}

impl<'a, B: Backend> Pooled<'a, B> {
    /// Makes a pool on a device.
    ///
    /// # Errors
    ///
    /// What the driver or the pool answers.
    pub fn new(backend: &'a B, device: DeviceId, streams: &'a Streams) -> Result<Self, ReplayError> {
        let start = Start::of(backend, device)?;
        Ok(Self { pool: Pool::builder(backend).device(device).build()?, streams, start })
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }
}

impl<B: Backend> Allocator for Pooled<'_, B> {
    type Block = Block<B>;

    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<Block<B>, ReplayError> {
        Ok(self.pool.request(bytes).alignment(Bytes(1)).stream(self.streams.get(stream)).alloc()?)
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

/// The driver itself: `cuMemAlloc` and `cuMemFree`, `hipMalloc` and `hipFree`, `mmap` and `munmap`. A GPU's driver waits by
/// itself until the device is done with memory that is freed.
#[derive(Debug)]
pub struct Plain<'a, B: Backend> {
    start: Start<'a, B>,
    calls: AtomicU64,
}

impl<'a, B: Backend> Plain<'a, B> {
    /// The driver of a device.
    ///
    /// # Errors
    ///
    /// What the driver answers when it is asked for its free memory.
    pub fn new(backend: &'a B, device: DeviceId) -> Result<Self, ReplayError> {
        Ok(Self { start: Start::of(backend, device)?, calls: AtomicU64::new(0) })
    }
}

/// A plain allocation. It is given back by [`Plain::free`](Allocator::free) alone.
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
        // SAFETY: the block was allocated above with this size, is not given back yet, and nobody has used it at all.
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
