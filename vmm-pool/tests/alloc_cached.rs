//! Requests that only the thread's cache may serve.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm_core::{BackingStore, Bytes, WaitFor};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;

const SIZE: Bytes = Bytes::kib(300);

#[test]
fn a_cached_block_is_served_and_nothing_else() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let cached = || pool.request(SIZE).alloc_cached();
    assert!(cached().is_none(), "the cache is empty");
    let address = pool.request(SIZE).alloc().unwrap().address();
    let block = cached().unwrap();
    assert_eq!((block.address(), block.size()), (address, SIZE));
    assert_eq!((pool.stats().live_blocks, pool.stats().live), (1, SIZE.0));
    drop(block);
    for refused in [
        pool.request(SIZE).tag("other"),
        pool.request(Bytes::ZERO),
        pool.request(SIZE).alignment(Bytes(3)),
        pool.request(Bytes::mib(32)),
    ] {
        assert!(refused.alloc_cached().is_none());
    }
    let store = BackingStore::pinned(&backend, Bytes::mib(16)).unwrap();
    pool.suspend("", &store, WaitFor::all_devices()).unwrap();
    assert!(cached().is_none(), "no suspended memory is served");
    pool.resume("").unwrap();
    drop(pool.request(SIZE).alloc().unwrap());
    assert_eq!(pool.stats().live_blocks, 0);
}
