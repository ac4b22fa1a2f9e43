//! The driver calls that are none for memory, streams that are refused, and the places of allocations.
#![allow(unsafe_code)]

use gpu_vmm_core::{Backend, Bytes, DeviceId, Operation, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool, PoolBuilder};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::panic::Location;

const PAGE: Bytes = Bytes::mib(2);

fn pool(
    backend: &HostBackend,
    set: impl Fn(PoolBuilder<'_, HostBackend>) -> PoolBuilder<'_, HostBackend>,
) -> Pool<HostBackend> {
    set(Pool::builder(backend)).build().unwrap()
}

fn other(pool: &Pool<HostBackend>) -> u64 {
    pool.stats().driver_calls.other
}

#[test]
fn reservations_and_overwrites_take_one_call() {
    let backend = HostConfig::new().memory(PAGE * 64).open().unwrap();
    let passed_on = |scrub: bool| {
        let pool = pool(&backend, |builder| {
            let builder = builder.budget(PAGE * 3);
            if scrub { builder.scrub() } else { builder }
        });
        assert_eq!(other(&pool), 0, "nothing is reserved before the first block");
        drop(pool.alloc(PAGE * 3).unwrap());
        assert_eq!(other(&pool), 1, "the addresses of large blocks");
        drop(pool.tagged("red").unwrap().alloc(PAGE * 2).unwrap());
        other(&pool)
    };
    // Both pools ask the same about the work on the memory.
    assert_eq!(passed_on(true) - passed_on(false), 2, "two of the pages have gone to another tag");
}

#[test]
fn plain_allocation_takes_two_calls() {
    let backend = HostConfig::new().memory(PAGE * 64).without_virtual_memory().open().unwrap();
    for (scrub, other) in [(false, 0), (true, 1)] {
        let pool = pool(&backend, |builder| if scrub { builder.scrub() } else { builder });
        drop(pool.alloc(PAGE * 3).unwrap());
        let calls = pool.stats().driver_calls;
        assert_eq!((calls.create, calls.other, calls.total()), (1, other, 1 + other));
        assert_eq!(pool.trim(Bytes::ZERO).unwrap(), PAGE * 3);
    }
}

#[test]
fn registered_stream_uses_its_pools_tag() {
    let backend = HostConfig::new().memory(PAGE * 64).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    let pool = pool(&backend, |builder| builder).tagged("kv").unwrap();
    // SAFETY: the stream lives as long as the pool.
    let registered = unsafe { pool.register_stream(own.stream()) }.unwrap();
    assert_eq!(registered.stream(), own.stream());
    let (block, of_pool) = (registered.alloc(PAGE).unwrap(), registered.pool().alloc(PAGE).unwrap());
    assert_eq!((block.stream(), of_pool.stream()), (own.stream(), Stream::DEFAULT));
    for block in [&block, &of_pool] {
        assert_eq!(pool.find(block.address()).map(|info| info.tag), Some("kv".into()));
    }
}

#[test]
fn every_allocation_notes_its_caller() {
    let backend = HostConfig::new().memory(PAGE * 64).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = pool(&backend, |builder| builder.debug());
    // SAFETY: as above.
    let registered = unsafe { pool.register_stream(stream) }.unwrap();
    let size = Bytes::kib(300);
    let is_here = |block: Block<HostBackend>, here: &Location<'_>| {
        let all = pool.unfreed();
        let [one] = &all[..] else { panic!("{all:?}") };
        assert_eq!((one.address, one.size), (block.address(), block.size()));
        assert_eq!((one.allocated_at.file(), one.allocated_at.line()), (here.file(), here.line()));
        drop(block);
        assert!(pool.unfreed().is_empty(), "a freed block stays in the list");
    };
    is_here(pool.alloc(size).unwrap(), Location::caller());
    is_here(pool.request(size).alloc().unwrap(), Location::caller());
    is_here(pool.request(size).alloc_cached().unwrap(), Location::caller());
    is_here(pool.request(size).alloc_mapped().unwrap(), Location::caller());
    is_here(pool.request(PAGE).alloc().unwrap(), Location::caller());
    is_here(pool.request(PAGE).alloc_mapped().unwrap(), Location::caller());
    is_here(registered.alloc(size).unwrap(), Location::caller());
    is_here(registered.request(size).alloc().unwrap(), Location::caller());
    is_here(pool.request(size).tag("kv").alloc().unwrap(), Location::caller());
}

/// A pool of one free plain allocation of each of these sizes.
fn freed(backend: &HostBackend, budget: Bytes, sizes: &[u64]) -> Pool<HostBackend> {
    let pool = pool(backend, |builder| builder.budget(budget));
    drop(sizes.iter().map(|size| pool.alloc(Bytes::mib(*size)).unwrap()).collect::<Vec<_>>());
    pool
}

/// The sizes of the plain allocations in the order of the pool's records, in MiB.
fn allocations(pool: &Pool<HostBackend>) -> Vec<u64> {
    pool.snapshot().spaces.iter().map(|space| space.reserved >> 20).collect()
}

#[test]
fn best_plain_allocation_is_released() {
    let backend = HostConfig::new().memory(PAGE * 64).without_virtual_memory().open().unwrap();
    let no_limit = PAGE * 64;
    for (keep, released, left) in [
        (24, 0, &[4_u64, 8, 6, 6][..]),
        (23, 4, &[8, 6, 6]),
        (20, 4, &[8, 6, 6]),
        // Five are too much, so the first of two equal ones goes.
        (19, 6, &[4, 8, 6]),
        (16, 8, &[4, 6, 6]),
        // None is enough: the largest goes, then the smallest that is.
        (15, 12, &[6, 6]),
        (0, 24, &[]),
    ] {
        let pool = freed(&backend, no_limit, &[4, 8, 6, 6]);
        let other = other(&pool);
        assert_eq!(pool.trim(Bytes::mib(keep)).unwrap(), Bytes::mib(released), "with {keep} MiB to keep");
        assert_eq!(allocations(&pool), left, "with {keep} MiB to keep");
        assert!(pool.stats().driver_calls.other - other >= 4 - left.len() as u64);
    }
    // A request within the budget: 10 MiB more than the 24 that are held.
    for (budget, left) in
        [(34, &[4, 8, 6, 6, 10][..]), (33, &[10, 8, 6, 6]), (30, &[10, 8, 6, 6]), (29, &[4, 8, 10, 6])]
    {
        let pool = freed(&backend, Bytes::mib(budget), &[4, 8, 6, 6]);
        let _block = pool.alloc(Bytes::mib(10)).unwrap();
        assert_eq!(allocations(&pool), left, "with a budget of {budget} MiB");
    }
    let pool = freed(&backend, Bytes::mib(24), &[4, 8, 6, 6]);
    let _all = pool.alloc(Bytes::mib(24)).unwrap();
    assert_eq!(allocations(&pool), [24], "a request of the whole budget");
}

/// Otherwise a call would go through as many ranges as there are gaps between small blocks.
#[test]
fn blocks_of_one_alignment_leave_no_gaps() {
    let backend = HostConfig::new().open().unwrap();
    let pool = pool(&backend, |builder| builder);
    let occupied = |size, alignment| {
        let block = pool.request(Bytes(size)).alignment(Bytes(alignment)).alloc().unwrap();
        assert!(block.address().is_aligned_to(Bytes(alignment)));
        block.capacity().0
    };
    assert_eq!(occupied(256, 1024), 1024);
    assert_eq!(occupied(1025, 1024), 2048);
    assert_eq!(occupied(256, 1 << 16), 4096);
    assert_eq!(occupied((3 << 20) + 1, 4096), (3 << 20) + 4096);
    assert_eq!(occupied((3 << 20) + 1, 512), (3 << 20) + 512);
}

/// Otherwise a request with an alignment makes plain allocations until one fits by chance.
#[test]
fn an_aligned_block_takes_one_plain_allocation() {
    let backend = HostConfig::new().memory(PAGE * 256).without_virtual_memory().open().unwrap();
    let (pool, alignment) = (pool(&backend, |builder| builder), PAGE * 32);
    let blocks = [(); 4].map(|()| pool.request(PAGE).alignment(alignment).alloc().unwrap());
    assert!(blocks.iter().all(|block| block.address().is_aligned_to(alignment)), "{blocks:?}");
    let stats = pool.stats();
    assert_eq!((stats.driver_calls.create, stats.held), (4, (PAGE * 4).0));
}

/// Memory in use does not count as kept.
#[test]
fn free_plain_allocations_are_kept_limited() {
    let backend = HostConfig::new().memory(PAGE * 64).without_virtual_memory().open().unwrap();
    let pool = pool(&backend, |builder| builder);
    let _live = pool.alloc(PAGE * 4).unwrap();
    drop(pool.alloc(PAGE * 2).unwrap());
    for (keep, released, kept) in [(2, 0, 2), (1, 2, 0)] {
        assert_eq!(pool.trim(PAGE * keep).unwrap(), PAGE * released);
        let stats = pool.stats();
        assert_eq!((stats.kept, stats.mapped), ((PAGE * kept).0, (PAGE * (4 + kept)).0));
    }
}

#[test]
fn small_blocks_have_own_plain_allocations() {
    let backend = HostConfig::new().memory(PAGE * 64).without_virtual_memory().open().unwrap();
    let pool = pool(&backend, |builder| builder);
    // The rest of the large block's last page has room for the small one.
    let (_large, _small) = (pool.alloc(Bytes::mib(3)).unwrap(), pool.alloc(Bytes(3000)).unwrap());
    assert_eq!(allocations(&pool), [4, 2]);
    assert_eq!(pool.usage().held_small, PAGE.0);
}

#[test]
fn each_question_about_work_is_one_call() {
    const ASKED: [Operation; 4] =
        [Operation::QueryCapture, Operation::RecordEvent, Operation::QueryEvent, Operation::WaitForEvent];
    let backend = FaultInject::new(HostConfig::new().memory(PAGE * 64).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    let (asked, mut released) = (|| ASKED.map(|call| backend.made(call)), 0);
    for size in 1..=8 {
        drop(pool.alloc(PAGE * size).unwrap());
        drop(pool.alloc(PAGE * (size + 1)).unwrap());
        released += pool.trim(PAGE).unwrap().0 / PAGE.0;
        let made = backend.made(Operation::Reserve) + released + asked().iter().sum::<u64>();
        assert_eq!(pool.stats().driver_calls.other, made, "{:?}", asked());
    }
    assert!(asked().iter().all(|made| *made > 0), "{:?}", asked());
    // The same few events serve again and again.
    let created = backend.made(Operation::CreateEvent);
    assert!(created <= 3, "{created} events for {:?}", asked());
}

#[test]
fn failed_query_is_in_drop_log() {
    let backend = FaultInject::new(HostConfig::new().memory(PAGE * 64).open().unwrap());
    for call in [&[Operation::QueryCapture], &[Operation::RecordEvent], &[Operation::QueryEvent]] {
        let pool = Pool::builder(&backend).build().unwrap();
        drop(pool.alloc(PAGE * 2).unwrap());
        backend.drop_log().take_last();
        backend.fail_calls(call);
        drop(pool.alloc(PAGE * 3).unwrap());
        backend.stop();
        let logged = backend.drop_log().take_last().map(|error| error.operation());
        assert_eq!(logged, Some(call[0]));
    }
}
