//! A storage whose resources are addresses.

use super::PoolResource;
use super::cubecl_server::server::IoError;
use super::cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId};

/// A storage whose resources are addresses of device memory: the form that cubecl's servers take with the patch of `patches/`.
#[derive(Debug)]
pub struct Addresses<S>(pub S);

impl<S: ComputeStorage<Resource = PoolResource>> ComputeStorage for Addresses<S> {
    type Resource = u64;

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<u64, IoError> {
        Ok(self.0.get(handle)?.address.0)
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        self.0.alloc(size)
    }

    fn dealloc(&mut self, id: StorageId) {
        self.0.dealloc(id);
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn bytes_allocated(&self) -> u64 {
        self.0.bytes_allocated()
    }
}
