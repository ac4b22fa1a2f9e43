//! The storage whose resources are addresses, for servers that bind them themselves.

use super::cubecl_server::storage::{ComputeStorage, StorageId};
use super::gpu_vmm_cubecl::{Addresses, PoolStorage};
use super::{ALIGNMENT, pool};
use gpu_vmm::Stream;

#[test]
fn resource_is_the_blocks_address() {
    let (_, pool) = pool();
    let storage = PoolStorage::new(&pool, Stream::DEFAULT, ALIGNMENT);
    let mut storage: Box<dyn ComputeStorage<Resource = u64>> = Box::new(Addresses(storage));
    let handle = storage.alloc(1000).unwrap();
    let address = storage.get(&handle).unwrap();
    assert!(address != 0 && address.is_multiple_of(storage.alignment() as u64));
    assert_eq!(storage.get(&handle.offset_start(100)).unwrap(), address + 100);
    assert_eq!((pool.stats().live, storage.bytes_allocated() >= 1000), (1000, true));
    storage.dealloc(handle.id);
    storage.flush();
    assert_eq!((pool.stats().live, storage.bytes_allocated()), (0, 0));
    assert!(storage.get(&handle).is_err());
    storage.dealloc(StorageId::new());
}
