//! The size of a pool's pages, and the driver calls that depend on it.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm_core::Bytes;
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Pool, PoolBuilder};

/// Returns the page size of a pool on a device with this memory.
fn page_of(
    memory: Bytes,
    set: impl Fn(PoolBuilder<'_, HostBackend>) -> PoolBuilder<'_, HostBackend>,
) -> Bytes {
    let backend = HostConfig::new().memory(memory).open().unwrap();
    Bytes(set(Pool::builder(&backend)).build().unwrap().usage().page)
}

#[test]
fn pages_are_larger_on_devices_with_much_memory() {
    assert_eq!(page_of(Bytes::gib(64) - Bytes::mib(2), |builder| builder), Bytes::mib(2));
    assert_eq!(page_of(Bytes::gib(64), |builder| builder), Bytes::mib(4));
    // Unless the program says otherwise, or nothing would fit into the budget.
    assert_eq!(page_of(Bytes::gib(64), |builder| builder.page(Bytes::mib(2))), Bytes::mib(2));
    assert_eq!(page_of(Bytes::gib(64), |builder| builder.budget(Bytes::mib(3))), Bytes::mib(2));
}

#[test]
fn a_page_takes_one_call_to_create_and_one_to_map_and_a_block_one_for_access() {
    let backend = HostConfig::new().memory(Bytes::gib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = pool.alloc(Bytes::mib(62)).unwrap();
    let calls = pool.stats().driver_calls;
    assert_eq!((calls.create, calls.map, calls.set_access, calls.unmap), (16, 16, 1, 0));
    drop(block);
}

#[test]
fn a_page_that_is_mapped_at_few_addresses_is_mapped_at_further_ones_first() {
    let page = Bytes::mib(2);
    let backend = HostConfig::new().memory(page * 64).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let pages = |count: u64| pool.alloc(page * count).unwrap();
    // Blocks that stay lie between the others, so that freed ones leave gaps.
    let (one, between, two) = (pages(1), pages(1), pages(2));
    let others = [pages(1), pages(1), pages(1), pages(1), pages(1)];
    drop(two);
    pool.trim(Bytes::ZERO).unwrap();
    let held = Bytes(pool.stats().held);
    pool.set_budget(held + page).unwrap();
    let at = one.address();
    drop(one);
    // One page is new, and the other is that of `one`, which is mapped at both places then.
    let two = pages(2);
    assert_eq!(pool.stats().held, (held + page).0);
    drop(two);
    let [first, second, third, fourth, fifth] = others;
    drop((second, fourth));
    // No gap is large enough. Three of four free pages are mapped behind everything.
    let three = pages(3);
    let calls = pool.stats().driver_calls;
    assert_eq!(pages(1).address(), at, "the page of `one` was taken");
    assert_eq!(pool.stats().driver_calls, calls);
    drop((between, first, third, fifth, three));
}
