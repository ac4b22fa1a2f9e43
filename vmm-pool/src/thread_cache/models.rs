//! Models of thread caches: blocks that other threads free, and the end of the pool.
#![allow(clippy::unwrap_used)] // tests

use crate::shared::Inner;
use crate::{Block, Pool};
use gpu_vmm_core::Bytes;
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_sync::models::{explore, spawn};
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
fn thread_caches_end_with_the_last_of_the_pool_and_its_blocks() {
    for (size, pool_is_last) in SIZES.into_iter().flat_map(|size| [(size, true), (size, false)]) {
        explore("thread_caches_end_with_the_last_of_the_pool_and_its_blocks", 5, move || {
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
