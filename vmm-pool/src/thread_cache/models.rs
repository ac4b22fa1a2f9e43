//! Models of thread caches: blocks that other threads free, the end of the pool, and the end of streams.
#![allow(clippy::unwrap_used)] // tests
#![allow(unsafe_code)] // promises that a stream lives

use crate::shared::Inner;
use crate::{Block, Pool};
use gpu_vmm_core::{Bytes, Operation, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_premap::sync::models::{explore, spawn};
use std::sync::{Arc, OnceLock, Weak};

/// The size of a slot, and of a large piece, which is kept outside the core when it is freed.
const SIZES: [Bytes; 2] = [Bytes(300), Bytes(3 << 20)];

fn pool() -> (Pool<HostBackend>, Weak<Inner<HostBackend>>) {
    // One backend for all schedules: its own counters are not part of the model.
    static BACKEND: OnceLock<HostBackend> = OnceLock::new();
    let open = || HostConfig::new().devices(1).memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(BACKEND.get_or_init(open)).build().unwrap();
    let inner = Arc::downgrade(&pool.owner.inner);
    (pool, inner)
}

fn block(pool: &Pool<HostBackend>, size: Bytes) -> Block<HostBackend> {
    pool.alloc(size).unwrap()
}

/// The last of a pool and its blocks frees the thread caches, in any order: each of them refers to the core.
#[test]
fn thread_caches_end_with_pool_and_blocks() {
    for (size, pool_is_last) in SIZES.into_iter().flat_map(|size| [(size, true), (size, false)]) {
        explore("thread_caches_end_with_pool_and_blocks", 5, move || {
            let whole = spawn(move || {
                let (pool, inner) = pool();
                let (one, other) = (block(&pool, size), block(&pool, size));
                let frees = spawn(move || drop(one));
                if pool_is_last {
                    drop(other);
                    drop(pool);
                } else {
                    drop(pool);
                    drop(other);
                }
                frees.join().unwrap();
                assert!(inner.upgrade().is_none(), "a thread cache is left");
            });
            whole.join().unwrap();
        });
    }
}

/// A block that one thread frees while another allocates is handed out once, and no memory is lost.
#[test]
fn a_block_is_handed_out_once() {
    for size in SIZES {
        explore("a_block_is_handed_out_once", 5, move || {
            let whole = spawn(move || {
                let (pool, _) = pool();
                let first = block(&pool, size);
                let other = pool.clone();
                let frees = spawn(move || {
                    drop(first);
                    block(&other, size)
                });
                let own = block(&pool, size);
                let theirs = frees.join().unwrap();
                let end = own.address().0.max(theirs.address().0);
                assert!(end - own.address().0.min(theirs.address().0) >= size.0, "they overlap");
                let stats = pool.stats();
                assert_eq!((stats.live, stats.live_blocks), (2 * size.0, 2));
                drop((own, theirs));
                assert_eq!(pool.stats().live, 0);
            });
            whole.join().unwrap();
        });
    }
}

/// A stream that no program creates. Host memory treats it as one without work.
fn other() -> Stream<'static> {
    // SAFETY: host memory never dereferences a stream.
    unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) }
}

/// Returns true if the pool serves a stream that it knows.
fn serves(pool: &Pool<HostBackend>, stream: Stream<'static>) -> bool {
    pool.owner.inner.core(Operation::QueryPool).unwrap().streams.known(stream).is_some()
}

/// Two threads forget one stream. Its number may serve another stream once the first call has ended: the second call leaves that.
#[test]
fn a_stream_is_forgotten_once() {
    explore("a_stream_is_forgotten_once", 3, || {
        let whole = spawn(|| {
            let (pool, _) = pool();
            drop(block(&pool, SIZES[1]));
            let shared = pool.clone();
            let forgets = spawn(move || {
                shared.forget_stream(Stream::DEFAULT).unwrap();
                let block = shared.request(SIZES[1]).stream(other()).alloc().unwrap();
                assert!(serves(&shared, other()));
                block
            });
            pool.forget_stream(Stream::DEFAULT).unwrap();
            let block = forgets.join().unwrap();
            assert!(serves(&pool, other()), "a stream that no thread has forgotten is retired");
            drop(block);
        });
        whole.join().unwrap();
    });
}

/// A registration that begins while the last one of the same stream ends.
#[test]
fn a_registered_stream_is_not_retired() {
    explore("a_registered_stream_is_not_retired", 3, || {
        let whole = spawn(|| {
            let (pool, _) = pool();
            let register = |pool: &Pool<HostBackend>| {
                // SAFETY: host memory never dereferences a stream.
                unsafe { pool.register_stream(other()) }.unwrap()
            };
            let first = register(&pool);
            let shared = pool.clone();
            let registers = spawn(move || register(&shared));
            drop(first);
            let second = registers.join().unwrap();
            assert!(serves(&pool, other()), "a registered stream is retired");
            drop(second);
            assert!(!serves(&pool, other()));
        });
        whole.join().unwrap();
    });
}
