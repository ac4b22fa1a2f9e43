//! The memory management.

use super::cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, PageUpdate,
};
use super::cubecl_server::server::{IoError, ServerError};
use super::gpu_vmm_cubecl::PoolMemory;
use super::{ALIGNMENT, MEMORY, pool};
use gpu_vmm::host::HostBackend;
use gpu_vmm::pool::Pool;
use gpu_vmm::{Backend, BackingStore, Bytes, DeviceId, Stream, WaitFor};
use gpu_vmm_replay::Streams;

const SIZE: u64 = Bytes::mib(3).0;

fn memory(pool: &Pool<HostBackend>) -> PoolMemory<HostBackend> {
    PoolMemory::new(pool, Stream::DEFAULT, ALIGNMENT).unwrap()
}

fn reserve(memory: &mut PoolMemory<HostBackend>, size: u64) -> Result<ManagedMemoryHandle, IoError> {
    memory.reserve(size, PageUpdate::Allow, &mut ErrorGraph::default())
}

#[test]
fn a_reservation_is_a_block() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let handle = reserve(&mut memory, 1000).unwrap();
    let whole = memory.get_resource(handle.clone().binding(), None, None).unwrap();
    assert!(whole.size == 1000 && whole.address.0.is_multiple_of(ALIGNMENT as u64));
    let part = memory.get_resource(handle.clone().binding(), Some(100), Some(50)).unwrap();
    assert_eq!((part.address, part.size), (whole.address + Bytes(100), 850));
    for (start, end) in [(900, 101), (u64::MAX, 1), (0, 1001)] {
        assert!(memory.get_resource(handle.clone().binding(), Some(start), Some(end)).is_err());
    }
    let (stats, usage) = (pool.stats(), memory.usage());
    assert_eq!((stats.live, stats.live_blocks), (1000, 1));
    assert_eq!((usage.number_allocs, usage.bytes_in_use, usage.bytes_reserved), (1, 1000, stats.held));
    let report = memory.memory_report().usage();
    assert_eq!((report.number_allocs, report.bytes_in_use), (1, 1000));
    assert_eq!(report.bytes_padding, report.bytes_reserved - 1000);
    assert!((1000..2000).contains(&memory.bytes_allocated()), "{}", memory.bytes_allocated());
    assert!(!memory.has_outdated());
}

#[test]
fn dropped_handle_frees_its_memory() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let first = reserve(&mut memory, SIZE).unwrap();
    let binding = first.clone().binding();
    let address = memory.get_resource(binding.clone(), None, None).unwrap().address;
    drop(first);
    // The binding keeps the memory.
    let second = reserve(&mut memory, SIZE).unwrap();
    let second = second.binding();
    assert_ne!(memory.get_resource(second.clone(), None, None).unwrap().address, address);
    drop(binding);
    let third = reserve(&mut memory, SIZE).unwrap();
    assert_eq!(memory.get_resource(third.binding(), None, None).unwrap().address, address);
}

#[test]
fn a_stale_handle_names_no_other_allocation() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let reserved = reserve(&mut memory, SIZE).unwrap();
    let assigned = ManagedMemoryHandle::new();
    assert!(matches!(memory.get_cursor(assigned.clone().binding()), Err(IoError::NotFound { .. })));
    memory.bind(reserved.clone(), assigned.clone(), 7, &mut ErrorGraph::default()).unwrap();
    assert_eq!(memory.get_cursor(assigned.clone().binding()).unwrap(), 7);
    assert!(matches!(memory.get_cursor(reserved.clone().binding()), Err(IoError::NotFound { .. })));
    assert!(memory.bind(reserved, ManagedMemoryHandle::new(), 0, &mut ErrorGraph::default()).is_err());
    assert!(memory.get_resource(assigned.binding(), None, None).is_ok());
}

#[test]
fn shortage_searches_older_allocations() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let count = MEMORY.0 / 2 / Bytes::kib(64).0;
    let handles: Vec<_> = (0..count).map(|_| reserve(&mut memory, Bytes::kib(64).0).unwrap()).collect();
    drop(handles);
    let half = reserve(&mut memory, MEMORY.0 / 2).unwrap();
    assert_eq!(pool.stats().live_blocks, 1);
    assert!(pool.stats().held < MEMORY.0 / 4 * 3, "{}", pool.stats());
    drop(half);
}

#[test]
fn unused_allocation_serves_every_reservation() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let size = MEMORY.0 / 256;
    let mut handles: Vec<_> = (0..256).map(|_| reserve(&mut memory, size).unwrap()).collect();
    assert!(matches!(reserve(&mut memory, size), Err(IoError::OutOfMemory { .. })));
    // All allocations were looked at just now. The one that is dropped is neither among the newest nor among the next ones.
    drop(handles.remove(128));
    handles.push(reserve(&mut memory, size).unwrap());
    drop(handles.remove(128));
    handles.push(memory.reserve(size, PageUpdate::Forbidden, &mut ErrorGraph::default()).unwrap());
    assert_eq!(pool.stats().live_blocks, 256);
}

#[test]
fn a_forbidden_update_maps_no_memory() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let failures = &mut ErrorGraph::default();
    assert!(matches!(
        memory.reserve(SIZE, PageUpdate::Forbidden, failures),
        Err(IoError::PageUpdateForbidden { size: SIZE, .. })
    ));
    assert_eq!(pool.stats().held, 0);
    drop(memory.reserve(SIZE, PageUpdate::AddOnly, failures).unwrap());
    let held = pool.stats().held;
    let _again = memory.reserve(SIZE, PageUpdate::Forbidden, failures).unwrap();
    assert!(memory.reserve(2 * SIZE, PageUpdate::Forbidden, failures).is_err());
    assert_eq!(pool.stats().held, held);
}

#[test]
fn out_of_memory_is_not_too_large() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let _half = reserve(&mut memory, MEMORY.0 / 2).unwrap();
    let size = MEMORY.0 / 2 + SIZE;
    assert!(
        matches!(reserve(&mut memory, size), Err(IoError::OutOfMemory { size: told, .. }) if told == size)
    );
    assert!(matches!(reserve(&mut memory, MEMORY.0 * 2), Err(IoError::BufferTooBig { .. })));
    assert_eq!(pool.stats().live_blocks, 1);
}

#[test]
fn cleanup_returns_memory_to_driver() {
    let (backend, pool) = pool();
    let mut memory = memory(&pool);
    let failures = &mut ErrorGraph::default();
    let kept = reserve(&mut memory, SIZE).unwrap();
    drop(reserve(&mut memory, 4 * SIZE).unwrap());
    memory.cleanup(Cleanup::Periodic, failures);
    assert_eq!(pool.stats().live_blocks, 2);
    memory.cleanup(Cleanup::Explicit, failures);
    assert_eq!((pool.stats().live_blocks, pool.stats().held), (1, Bytes::mib(4).0));
    drop(kept);
    memory.cleanup(Cleanup::Explicit, failures);
    assert_eq!((pool.stats().held, backend.memory_info(DeviceId(0)).unwrap().free), (0, MEMORY));
}

#[test]
fn nested_persistent_windows_suspend_together() {
    let (backend, pool) = pool();
    let mut memory = memory(&pool);
    memory.mode(MemoryAllocationMode::Persistent);
    memory.mode(MemoryAllocationMode::Persistent);
    memory.mode(MemoryAllocationMode::Auto);
    let _weight = reserve(&mut memory, SIZE).unwrap();
    memory.mode(MemoryAllocationMode::Auto);
    memory.mode(MemoryAllocationMode::Dedicated);
    let _probe = reserve(&mut memory, 2 * SIZE).unwrap();
    memory.mode(MemoryAllocationMode::Auto);
    let _value = reserve(&mut memory, 4 * SIZE).unwrap();
    let report = memory.memory_report();
    let in_use = |report: &_| -> u64 {
        let report: &super::cubecl_server::memory_management::MemoryPoolReport = report;
        report.usage.bytes_in_use
    };
    assert_eq!((in_use(&report.persistent), in_use(&report.dedicated)), (SIZE, 2 * SIZE));
    assert_eq!(report.dynamic.iter().map(in_use).sum::<u64>(), 4 * SIZE);
    let store = BackingStore::pinned(&backend, Bytes::mib(16)).unwrap();
    let suspended = pool.suspend("persistent", &store, WaitFor::all_devices()).unwrap();
    assert!((SIZE..2 * SIZE).contains(&suspended.0), "{suspended}");
    pool.resume("persistent").unwrap();
}

#[test]
fn a_guard_keeps_the_allocation() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let recorded = reserve(&mut memory, SIZE).unwrap();
    let guard = memory.guard(recorded.descriptor().location()).unwrap();
    assert!(recorded.can_mut(), "a guard leaves updates in place alone");
    drop(recorded);
    memory.cleanup(Cleanup::Explicit, &mut ErrorGraph::default());
    assert_eq!(pool.stats().live_blocks, 1);
    drop(guard);
    memory.cleanup(Cleanup::Explicit, &mut ErrorGraph::default());
    assert_eq!(pool.stats().live_blocks, 0);
}

#[test]
fn failure_ends_range_or_allocation() {
    let (_, pool) = pool();
    let mut memory = memory(&pool);
    let failures = &mut ErrorGraph::default();
    let handle = memory.reserve(1000, PageUpdate::Allow, failures).unwrap();
    let binding = handle.binding();
    let failure =
        failures.insert(ServerError::Generic { reason: "a test".into(), backtrace: Default::default() });
    memory.taint(&binding, 0..1000, failure, failures);
    assert_eq!(memory.failure(&binding, 10..20), Some(failure));
    memory.written(&binding, 0..500, failures);
    assert_eq!((memory.failure(&binding, 10..20), memory.failure(&binding, 500..501)), (None, Some(failure)));
    drop(binding);
    memory.cleanup(Cleanup::Explicit, failures);
    assert!(failures.is_empty());
}

#[test]
fn streams_free_each_others_unused_memory() {
    let (backend, pool) = pool();
    let streams = Streams::of(&backend, DeviceId(0), 2).unwrap();
    let stream = streams.get(1);
    let mut first = memory(&pool);
    let mut second = first.for_stream(stream);
    drop(reserve(&mut first, MEMORY.0 / 2 + SIZE).unwrap());
    let _kept = reserve(&mut second, MEMORY.0 / 2 + SIZE).unwrap();
    assert_eq!(first.memory_report().usage().number_allocs, 0);
    assert_eq!(second.memory_report().usage().number_allocs, 1);
    drop(second);
    assert_eq!(pool.stats().live, 0, "a dropped memory management frees its allocations");
    pool.forget_stream(stream).unwrap();
}
