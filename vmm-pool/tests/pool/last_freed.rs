//! The large block that was freed last, which the pool keeps outside the core: which request receives it, and that it is free
//! memory.
#![allow(unsafe_code)]

use gpu_vmm_core::{Address, Bytes, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::Pool;

const A: Bytes = Bytes(256);
const S: Stream<'static> = Stream::DEFAULT;
const SIZE: Bytes = Bytes::mib(4);

fn host() -> HostBackend {
    HostConfig::new().memory(Bytes::mib(64)).open().unwrap()
}

fn pool(backend: &HostBackend) -> Pool<HostBackend> {
    Pool::builder(backend).build().unwrap()
}

/// Frees a block of a size, and returns its address.
fn freed(pool: &Pool<HostBackend>, size: Bytes) -> Address {
    pool.request(size).alignment(A).stream(S).alloc().unwrap().address()
}

#[test]
fn it_serves_what_is_just_as_large() {
    let backend = host();
    let pool = pool(&backend);
    let address = freed(&pool, SIZE);
    let before = pool.stats().driver_calls;
    // `stats` moves the piece into the core. The first request takes it from there, the later ones from outside the core.
    for size in [SIZE, SIZE - Bytes(511), SIZE - Bytes(7)] {
        let block = pool.request(size).alignment(A).stream(S).alloc().unwrap();
        assert_eq!((block.address(), block.size(), block.capacity()), (address, size, SIZE));
    }
    assert_eq!(pool.stats().driver_calls, before);
    // The first half comes from the piece, and the second half from the rest of it.
    let half = Bytes(SIZE.0 / 2);
    let (one, other) = (
        pool.request(half).alignment(A).stream(S).alloc().unwrap(),
        pool.request(half).alignment(A).stream(S).alloc().unwrap(),
    );
    assert_eq!((one.address(), other.address()), (address, address + half));
    assert_eq!(pool.stats().held, SIZE.0);
}

/// The slot has the later one of two freed blocks, although an earlier one of the same size lies at a lower address.
#[test]
fn it_is_the_last_freed_block() {
    let backend = host();
    let pool = pool(&backend);
    let (one, between, other) =
        (pool.alloc(SIZE).unwrap(), pool.alloc(SIZE).unwrap(), pool.alloc(SIZE).unwrap());
    let address = other.address();
    drop(one);
    drop(other);
    assert_eq!(pool.alloc(SIZE).unwrap().address(), address);
    drop(between);
}

#[test]
fn what_it_serves_is_counted() {
    let backend = host();
    let pool = pool(&backend);
    let counted = || {
        let stats = pool.stats();
        (stats.live, stats.live_blocks, stats.allocations)
    };
    freed(&pool, SIZE);
    // Between two queries, since a query moves the block into the core.
    let larger = pool.request(SIZE - Bytes(7)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(counted(), (SIZE.0 - 7, 1, 2));
    drop(larger);
    let smaller = pool.request(SIZE - Bytes(500)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(counted(), (SIZE.0 - 500, 1, 3));
    drop(smaller);
    drop(pool.request(SIZE).alignment(A).stream(S).alloc().unwrap());
    let kept = pool.request(SIZE - Bytes(9)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(counted(), (SIZE.0 - 9, 1, 5));
    drop(kept);
    assert_eq!(counted(), (0, 0, 5));
}

#[test]
fn it_is_free_memory_like_all_other() {
    let backend = host();
    let pool = pool(&backend);
    let address = freed(&pool, SIZE);
    assert_eq!(pool.find(address), None);
    freed(&pool, SIZE);
    let account = pool.stats();
    assert_eq!((account.kept, account.held, account.live, account.peak_live), (SIZE.0, SIZE.0, 0, SIZE.0));
    // Another thread, another size, and all memory of the device.
    freed(&pool, SIZE);
    let all = std::thread::scope(|scope| {
        scope.spawn(|| pool.request(Bytes::mib(64)).alignment(A).stream(S).alloc()).join()
    })
    .unwrap();
    drop(all.unwrap());
    assert_eq!(pool.stats().peak_live, Bytes::mib(64).0);
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::mib(64));
}

#[test]
fn threads_never_have_it_together() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let backend = host();
    let pool = pool(&backend);
    let owners: Vec<_> = (0..3 << 4).map(|_| AtomicU64::new(0)).collect();
    let base = freed(&pool, SIZE).0;
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (pool, owners) = (&pool, &owners);
            scope.spawn(move || {
                for round in 0..3000 {
                    let block =
                        pool.request(Bytes(SIZE.0 << (round % 2))).alignment(A).stream(S).alloc().unwrap();
                    let pages =
                        (block.address().0 - base) >> 21..(block.address().0 + block.size().0 - base) >> 21;
                    for page in pages.clone() {
                        assert_eq!(owners[page as usize].swap(thread, Ordering::Relaxed), 0);
                    }
                    for page in pages {
                        assert_eq!(owners[page as usize].swap(0, Ordering::Relaxed), thread);
                    }
                }
            });
        }
    });
    let account = pool.stats();
    assert_eq!((account.live, account.kept), (0, account.held));
}
