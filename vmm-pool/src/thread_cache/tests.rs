//! The numbers of bins.
#![allow(clippy::unwrap_used, unsafe_code)]

use crate::Pool;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_premap::sync::thread_number;

fn pool() -> Pool<HostBackend> {
    Pool::builder(&HostConfig::new().memory(Bytes::mib(256)).open().unwrap()).build().unwrap()
}

/// Returns a stream that no program creates.
fn stream(number: usize) -> Stream<'static> {
    // SAFETY: host memory never dereferences a stream.
    unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096 + number)) }
}

fn bins(pool: &Pool<HostBackend>) -> usize {
    pool.owner.thread_cache(thread_number()).lock().bins()
}

/// More pairs than there are numbers of bins.
#[test]
fn numbers_of_bins_do_not_run_out() {
    let pool = pool();
    let mut cache = pool.owner.thread_cache(thread_number()).lock();
    for number in 0..70_000 {
        let bin = cache.add_bin((number % 9) as u16, stream(number), 1);
        assert_eq!(bin, Some(0), "pair {number}");
    }
}

/// Each tag has a block that is cached and then returned to the core.
#[test]
fn emptied_bins_are_used_again() {
    let pool = pool();
    for tag in 0..300 {
        let tagged = pool.tagged(&tag.to_string()).unwrap();
        drop(tagged.alloc(Bytes(300)).unwrap());
        if tag % 20 == 19 {
            pool.trim(Bytes::ZERO).unwrap();
        }
    }
    assert!(bins(&pool) <= 20, "{}", bins(&pool));
}

/// A block that is freed after its bin was emptied returns to that bin, and no other pair gets it.
#[test]
fn live_blocks_keep_their_bin() {
    let pool = pool();
    let block = |number| pool.request(Bytes(300)).stream(stream(number)).alloc().unwrap();
    let live = block(0);
    let address = live.address();
    pool.trim(Bytes::ZERO).unwrap();
    let other = block(1);
    assert_eq!(bins(&pool), 2, "the bin of a live block serves another stream");
    drop(live);
    assert_ne!(block(1).address(), address);
    assert_eq!(block(0).address(), address);
    drop(other);
    pool.trim(Bytes::ZERO).unwrap();
    drop((block(2), block(3)));
    assert_eq!(bins(&pool), 2, "bins without blocks are not used again");
}

/// Blocks that wait for another stream leave their bin when they are freed.
#[test]
fn blocks_freed_into_core_leave_bin() {
    let pool = pool();
    for number in 0..3 {
        let mut block = pool.request(Bytes(300)).stream(stream(number)).alloc().unwrap();
        block.record_use(stream(9)).unwrap();
        drop(block);
        pool.trim(Bytes::ZERO).unwrap();
    }
    assert_eq!(bins(&pool), 1);
}
