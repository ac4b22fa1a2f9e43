//! The storage that cubecl's servers allocate from.

use crate::growing::Growing;
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use gpu_vmm::pool::Pool;
use gpu_vmm::{AnyBackend, Stream};
use gpu_vmm_cubecl::cubecl_0_11::{Addresses, PoolStorage};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Blocks of a pool, and allocations that grow.
pub struct Storage {
    pool: Addresses<PoolStorage<AnyBackend>>,
    growing: Arc<Growing>,
    /// The addresses of the allocations that grow.
    addresses: HashMap<StorageId, u64>,
}

impl Storage {
    /// Creates the storage for a stream of cubecl.
    #[allow(unsafe_code)] // the stream is a pointer
    pub fn boxed(
        pool: &Pool<AnyBackend>,
        growing: &Arc<Growing>,
        stream: *mut c_void,
        alignment: usize,
    ) -> Box<dyn ComputeStorage<Resource = u64>> {
        // SAFETY: cubecl's servers live, with their streams, until the process ends.
        let stream = unsafe { Stream::from_raw(stream) };
        let pool = Addresses(PoolStorage::new(pool, stream, alignment));
        Box::new(Self { pool, growing: Arc::clone(growing), addresses: HashMap::new() })
    }
}

impl ComputeStorage for Storage {
    type Resource = u64;

    fn alignment(&self) -> usize {
        self.pool.alignment()
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<u64, IoError> {
        match self.addresses.get(&handle.id) {
            Some(address) => Ok(address + handle.offset()),
            None => self.pool.get(handle),
        }
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let address = self.growing.alloc(size).map_err(|error| IoError::Unknown {
            description: error.to_string(),
            backtrace: Default::default(),
        })?;
        let Some(address) = address else {
            return self.pool.alloc(size);
        };
        let id = StorageId::new();
        self.addresses.insert(id, address);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        let Some(address) = self.addresses.remove(&id) else {
            return self.pool.dealloc(id);
        };
        if let Err(error) = self.growing.free(address) {
            eprintln!("a cache was not freed: {error}");
        }
    }

    fn flush(&mut self) {
        self.pool.flush();
    }

    fn bytes_allocated(&self) -> u64 {
        self.pool.bytes_allocated() + self.growing.mapped().0
    }
}
