//! The driver calls that are none for memory, and the places of allocations.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use gpu_vmm_core::{Bytes, DeviceId, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool, PoolBuilder};
use gpu_vmm_testkit::TestKit;
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
fn each_reservation_and_each_page_that_is_overwritten_is_one_call() {
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
fn a_plain_allocation_is_created_by_one_call_and_overwritten_by_another() {
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
fn each_way_to_allocate_notes_the_place_of_its_caller() {
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
