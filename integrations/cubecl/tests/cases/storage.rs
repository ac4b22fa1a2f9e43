//! The storage, alone and under cubecl's memory management.

use super::cubecl_ir::MemoryDeviceProperties;
use super::cubecl_server::logging::ServerLogger;
use super::cubecl_server::memory_management::{
    Cleanup, ErrorGraph, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use super::cubecl_server::server::IoError;
use super::cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use super::gpu_vmm_cubecl::PoolStorage;
use super::{ALIGNMENT, MEMORY, pool};
use gpu_vmm::host::HostBackend;
use gpu_vmm::pool::Pool;
use gpu_vmm::{Backend, Bytes, DeviceId, Stream};
use std::sync::Arc;

fn storage(pool: &Pool<HostBackend>) -> PoolStorage<HostBackend> {
    PoolStorage::new(pool, Stream::DEFAULT, ALIGNMENT)
}

#[test]
fn a_handle_is_a_block() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    let handle = storage.alloc(1000).unwrap();
    let whole = storage.get(&handle).unwrap();
    assert_eq!((handle.offset(), handle.size(), whole.size), (0, 1000, 1000));
    assert!(whole.address.0.is_multiple_of(ALIGNMENT as u64));
    assert_eq!(storage.alignment(), ALIGNMENT);
    let part = storage.get(&handle.offset_start(100).offset_end(50)).unwrap();
    assert_eq!((part.address, part.size), (whole.address + Bytes(100), 850));
    let stats = pool.stats();
    assert_eq!((stats.live, stats.live_blocks), (1000, 1));
    assert!((1000..2000).contains(&storage.bytes_allocated()), "{}", storage.bytes_allocated());
    let usage = storage.usage();
    assert_eq!((usage.number_allocs, usage.bytes_in_use, usage.bytes_reserved), (1, 1000, stats.held));
}

#[test]
fn freed_handle_is_reused_and_unknown() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    let first = storage.alloc(Bytes::mib(3).0).unwrap();
    let address = storage.get(&first).unwrap().address;
    storage.dealloc(first.id);
    storage.dealloc(first.id);
    assert_eq!(storage.bytes_allocated(), 0);
    assert!(matches!(storage.get(&first), Err(IoError::StorageHandleNotFound { .. })));
    let second = storage.alloc(Bytes::mib(3).0).unwrap();
    assert_eq!(storage.get(&second).unwrap().address, address);
}

#[test]
fn empty_handle_holds_no_memory() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    let handle = storage.alloc(0).unwrap();
    assert_eq!(storage.get(&handle).unwrap().size, 0);
    assert_eq!((storage.bytes_allocated(), pool.stats().held), (0, 0));
    storage.dealloc(handle.id);
    assert!(storage.get(&handle).is_err());
}

#[test]
fn a_range_beyond_the_block_is_refused() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    let handle = storage.alloc(1000).unwrap();
    for (offset, size) in [(0, 1 << 20), (1 << 20, 1), (u64::MAX, 2)] {
        let wrong = StorageHandle::new(handle.id, StorageUtilization { offset, size });
        assert!(matches!(storage.get(&wrong), Err(IoError::Unknown { .. })), "{offset} {size}");
    }
    let unknown = StorageHandle::new(StorageId::new(), StorageUtilization { offset: 0, size: 1 });
    assert!(matches!(storage.get(&unknown), Err(IoError::StorageHandleNotFound { .. })));
}

#[test]
fn out_of_memory_is_not_too_large() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    let _half = storage.alloc(MEMORY.0 / 2).unwrap();
    let size = MEMORY.0 / 2 + Bytes::mib(4).0;
    assert!(matches!(storage.alloc(size), Err(IoError::OutOfMemory { size: told, .. }) if told == size));
    assert!(matches!(storage.alloc(MEMORY.0 * 2), Err(IoError::BufferTooBig { .. })));
    assert_eq!(pool.stats().live_blocks, 1);
}

#[test]
fn a_dropped_storage_frees_its_blocks() {
    let (_, pool) = pool();
    let mut storage = storage(&pool);
    storage.alloc(Bytes::mib(5).0).unwrap();
    drop(storage);
    assert_eq!(pool.stats().live, 0);
}

#[test]
fn storages_of_one_pool_share_its_memory() {
    let (_, pool) = pool();
    let mut storages = [storage(&pool), storage(&pool)];
    for storage in &mut storages {
        let handle = storage.alloc(MEMORY.0 / 2 + Bytes::mib(4).0).unwrap();
        storage.dealloc(handle.id);
    }
    assert!(pool.stats().peak_held < MEMORY.0);
}

/// cubecl's memory management over the storage, in which each reservation is a block.
#[test]
fn under_the_memory_management() {
    let (backend, pool) = pool();
    let properties = MemoryDeviceProperties::new(MEMORY.0, ALIGNMENT as u64).with_max_memory(MEMORY.0);
    let mut failures = ErrorGraph::default();
    let mut managed = MemoryManagement::from_configuration(
        storage(&pool),
        &properties,
        MemoryConfiguration::ExclusivePages,
        Arc::new(ServerLogger::default()),
        MemoryManagementOptions::new("test").mode(MemoryAllocationMode::Dedicated),
    );
    let sizes = [100, 4096, 70_000, 3 << 20, 9 << 20];
    let handles: Vec<_> =
        sizes.iter().map(|size| managed.reserve(*size, PageUpdate::Allow, &mut failures).unwrap()).collect();
    let stats = pool.stats();
    let padded = |size: u64| size.next_multiple_of(ALIGNMENT as u64);
    assert_eq!((stats.live_blocks, stats.live), (5, sizes.map(padded).iter().sum()));
    drop(handles);
    managed.cleanup(Cleanup::Explicit, &mut failures);
    assert_eq!((pool.stats().live_blocks, managed.bytes_allocated()), (0, 0));
    assert!(managed.storage().trim().unwrap() > Bytes::ZERO);
    assert_eq!((pool.stats().held, backend.memory_info(DeviceId(0)).unwrap().free), (0, MEMORY));
}
