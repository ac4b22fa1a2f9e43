//! The storage, for cubecl's own memory management.

use super::cubecl_server::memory_management::MemoryUsage;
use super::cubecl_server::server::IoError;
use super::cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use super::errors::{refused, unknown};
use super::resource::{PoolResource, usage};
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Backend, Bytes, Stream};
use std::collections::HashMap;

/// A storage whose allocations are blocks of a pool, for the server of one stream.
///
/// Several storages may have clones of one pool: memory that one stream has freed serves the others when the work is done that
/// used it.
#[derive(Debug)]
pub struct PoolStorage<B: Backend> {
    pool: Pool<B>,
    stream: Stream<'static>,
    alignment: Bytes,
    blocks: HashMap<StorageId, Option<Block<B>>>,
    held: Bytes,
}

impl<B: Backend> PoolStorage<B> {
    /// Creates a storage for work on `stream`. Every address is a multiple of `alignment`, a power of two in bytes.
    ///
    /// A stream that is destroyed before the process ends must be [forgotten](Pool::forget_stream) by the pool first.
    pub fn new(pool: &Pool<B>, stream: Stream<'static>, alignment: usize) -> Self {
        let alignment = Bytes(alignment as u64);
        Self { pool: pool.clone(), stream, alignment, blocks: HashMap::new(), held: Bytes::ZERO }
    }

    /// Returns the pool.
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// Returns the usage of the pool, in the form of cubecl's reports. `bytes_reserved` is the physical memory that the pool
    /// holds for all its storages.
    pub fn usage(&self) -> MemoryUsage {
        usage(&self.pool)
    }

    /// Returns all memory that contains no block to the driver, for an explicit cleanup. Waits for pending work.
    ///
    /// # Errors
    ///
    /// [`IoError::Unknown`] with the driver's error.
    pub fn trim(&mut self) -> Result<Bytes, IoError> {
        self.pool.trim(Bytes::ZERO).map_err(|error| unknown(error.to_string()))
    }
}

impl<B: Backend> ComputeStorage for PoolStorage<B> {
    type Resource = PoolResource;

    fn alignment(&self) -> usize {
        self.alignment.0 as usize
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<PoolResource, IoError> {
        let Some(block) = self.blocks.get(&handle.id) else {
            return Err(IoError::StorageHandleNotFound {
                reason: format!("{} in the pool of gpu-vmm", handle.id).into(),
                backtrace: Default::default(),
            });
        };
        PoolResource::within(block.as_ref(), handle.offset(), handle.size())
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        // cubecl has handles of zero bytes. They need an entry and no memory.
        let block = match size {
            0 => None,
            _ => {
                let request = self.pool.request(Bytes(size)).stream(self.stream).alignment(self.alignment);
                Some(request.alloc().map_err(|error| refused(size, &error))?)
            }
        };
        let id = StorageId::new();
        self.held += block.as_ref().map_or(Bytes::ZERO, Block::capacity);
        self.blocks.insert(id, block);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    /// Frees the block in the order of the stream: work that is queued already may still use it.
    fn dealloc(&mut self, id: StorageId) {
        if let Some(Some(block)) = self.blocks.remove(&id) {
            self.held -= block.capacity();
        }
    }

    /// Does nothing: [`dealloc`](Self::dealloc) defers nothing.
    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.held.0
    }
}
