//! The thread's cache: requests that it alone may serve, and how much it keeps.
#![allow(unsafe_code)]

use gpu_vmm_core::{BackingStore, Bytes, DeviceId, Operation, Stream, WaitFor};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{FaultInject, TestKit};

const SIZE: Bytes = Bytes::kib(300);

#[test]
fn only_cached_blocks_are_served() {
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

/// It is in no thread's cache, and serves a request that it fits exactly.
#[test]
fn last_freed_large_block_is_served() {
    const LARGE: Bytes = Bytes::mib(6);
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    // SAFETY: the stream lives as long as the pool.
    let other: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let address = pool.alloc(LARGE).unwrap().address();
    for refused in [
        pool.request(LARGE).tag("other"),
        pool.request(LARGE).alignment(Bytes(3)),
        pool.request(LARGE).alignment(Bytes(1 << 50)),
        pool.request(LARGE).stream(other),
        pool.request(LARGE + Bytes::mib(1)),
    ] {
        assert!(refused.alloc_cached().is_none());
    }
    let block = pool.request(LARGE - Bytes(100)).alloc_cached().unwrap();
    assert_eq!((block.address(), block.size()), (address, LARGE - Bytes(100)));
    assert_eq!((pool.stats().live_blocks, pool.stats().live), (1, block.size().0));
    assert!(pool.request(LARGE).alloc_cached().is_none(), "it is in use");
}

/// A thread keeps up to 256 blocks of each size up to 64 KiB, 256 KiB at most, and 4 blocks of each larger size. With one block more,
/// the older half of that size returns to the pool.
#[test]
fn the_cache_of_a_thread_is_bounded() {
    for (size, limit) in [(256, 256), (1024, 256), (2048, 128), (8 << 10, 32), (300 << 10, 4), (1 << 20, 4)] {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let mut blocks: Vec<_> = (0..limit * 2).map(|_| pool.alloc(Bytes(size)).unwrap()).collect();
        // A batch of free small blocks may be cached already.
        let before = pool.stats().cached;
        let capacity = blocks[0].capacity().0;
        let mut most = 0;
        let mut halved = false;
        while let Some(block) = blocks.pop() {
            drop(block);
            let cached = pool.stats().cached;
            if cached < most {
                let all = most / capacity + 1;
                assert_eq!((all, cached / capacity), (limit + 1, all / 2), "of {size}");
                halved = true;
                break;
            }
            most = cached;
        }
        assert!(halved, "of {size}: {most} bytes are cached, {before} before");
    }
}

/// All sizes together stay within 8 MiB.
#[test]
fn thread_cache_is_bounded() {
    let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
    let sizes = (0..40).map(|step| Bytes::kib(400 + 16 * step));
    let blocks: Vec<_> = sizes.flat_map(|size| [(); 3].map(|()| pool.alloc(size).unwrap())).collect();
    let mut most = 0;
    for block in blocks {
        drop(block);
        most = most.max(pool.stats().cached);
    }
    assert!((Bytes::mib(7).0..=Bytes::mib(8).0).contains(&most), "{most}");
}

/// Null and the vendors' handle for the default stream are one stream: work on the other handle is in the order of a block's own.
#[test]
fn default_stream_handles_are_one_stream() {
    let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
    // SAFETY: the handle always means the default stream.
    let legacy: Stream<'static> = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(1)) };
    for size in [Bytes(500), SIZE, Bytes::mib(4)] {
        for (one, other) in [(Stream::DEFAULT, legacy), (legacy, Stream::DEFAULT)] {
            let mut block = pool.request(size).stream(one).alloc().unwrap();
            block.record_use(other).unwrap();
            assert!(!block.is_used_elsewhere(), "of {size}");
            let address = block.address();
            drop(block);
            let next = pool.request(size).stream(other).alloc().unwrap();
            // Smaller blocks are cached for each handle.
            assert!(next.address() == address || size < Bytes::mib(4));
        }
    }
}

/// Earlier work of the stream may still use cached blocks, and a graph does not follow that work.
#[test]
fn capturing_stream_gets_no_freed_block() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    for size in [Bytes(1000), SIZE, Bytes::mib(6)] {
        let pool = Pool::builder(&backend).build().unwrap();
        let request = || pool.request(size).stream(stream);
        let address = request().alloc().unwrap().address();
        backend.fail_calls(&[Operation::QueryCapture]);
        assert!(request().alloc_cached().is_none(), "of {size}");
        let mapped = request().alloc_mapped();
        assert!(mapped.is_none_or(|block| block.address() != address), "of {size}");
        backend.stop();
        // Otherwise it gets back what it freed.
        assert_eq!(request().alloc_mapped().unwrap().address(), address, "of {size}");
    }
}

/// What leaves the cache is free memory, of which the pool keeps no more than it may.
#[test]
fn what_leaves_the_cache_is_not_kept() {
    let pool = Pool::builder(&HostConfig::new().open().unwrap()).keep(Bytes::ZERO).build().unwrap();
    let blocks: Vec<_> = (0..32).map(|_| pool.alloc(Bytes::mib(1)).unwrap()).collect();
    let held = pool.stats().held;
    drop(blocks);
    let stats = pool.stats();
    assert!(stats.cached > 0 && stats.held < held && stats.kept == 0, "{stats:?}");
}
