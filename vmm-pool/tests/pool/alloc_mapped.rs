//! Requests that only memory that is mapped and free may serve.

use gpu_vmm_core::{BackingStore, Bytes, WaitFor};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;

/// Small, medium and large: from a slab, a thread cache and a range.
const SIZES: [Bytes; 3] = [Bytes(1000), Bytes::kib(300), Bytes::mib(6)];

#[test]
fn mapped_memory_is_served_without_mapping() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    for size in SIZES {
        let pool = Pool::builder(&backend).build().unwrap();
        let mapped = || pool.request(size).alloc_mapped();
        assert!(mapped().is_none(), "the pool holds nothing");
        assert_eq!((pool.stats().held, pool.stats().driver_calls.map), (0, 0));
        let address = pool.alloc(size).unwrap().address();
        let calls = pool.stats().driver_calls;
        let block = mapped().unwrap();
        assert_eq!((block.address(), block.size()), (address, size));
        assert_eq!((pool.stats().live_blocks, pool.stats().live), (1, size.0));
        assert_eq!(
            (pool.stats().driver_calls.map, pool.stats().driver_calls.create),
            (calls.map, calls.create)
        );
        drop(block);
        let store = BackingStore::pinned(&backend, Bytes::mib(16)).unwrap();
        pool.suspend("", &store, WaitFor::all_devices()).unwrap();
        assert!(mapped().is_none(), "no suspended memory is served");
        pool.resume("").unwrap();
        assert_eq!(pool.stats().live_blocks, 0);
    }
}

#[test]
fn smaller_block_is_cut_from_mapped() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(Bytes::mib(8)).unwrap());
    let held = pool.stats().held;
    let part = pool.request(Bytes::mib(5)).alignment(Bytes::mib(2)).alloc_mapped().unwrap();
    assert!(part.address().0.is_multiple_of(Bytes::mib(2).0));
    assert!(pool.request(Bytes::mib(5)).alloc_mapped().is_none(), "the rest is too small");
    assert_eq!((pool.stats().held, pool.stats().live_blocks), (held, 1));
}

#[test]
fn invalid_requests_are_left_to_alloc() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(Bytes::mib(8)).unwrap());
    for refused in [
        pool.request(Bytes::mib(1)).tag("other"),
        pool.request(Bytes::ZERO),
        pool.request(Bytes::mib(1)).alignment(Bytes(3)),
        pool.request(Bytes::mib(128)),
    ] {
        assert!(refused.alloc_mapped().is_none());
    }
    assert_eq!(pool.stats().live_blocks, 0);
}

/// A caller that has blocks to free does not need more memory: the pool may hold no more because of what it got.
#[test]
fn served_memory_does_not_raise_slack() {
    let page = Bytes::mib(2);
    let backend = HostConfig::new().memory(Bytes::mib(256)).open().unwrap();
    let pool = Pool::builder(&backend).slack(100).build().unwrap();
    let [other, third] = ["other", "third"].map(|tag| pool.tagged(tag).unwrap());
    drop(pool.alloc(page * 8).unwrap());
    let block = other.alloc(page * 2).unwrap();
    let mapped = pool.request(page * 8).alloc_mapped().unwrap();
    assert_eq!(pool.stats().held, (page * 10).0);
    drop((block, mapped));
    // Other requests needed 8 pages at most, so the pool may hold 16.
    let _block = third.alloc(page * 8).unwrap();
    assert_eq!(pool.stats().held, (page * 16).0);
}
