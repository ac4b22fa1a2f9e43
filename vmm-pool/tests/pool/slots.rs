//! Free slots of slabs serve every stream once their work is done.

use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::LateWork;
use std::collections::HashSet;

type Late = LateWork<HostBackend>;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The most memory in the thread cache of the test's thread.
const CACHE: u64 = 8 * MIB;

fn pool(streams: usize) -> (Late, Pool<Late>) {
    let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), streams);
    let pool = Pool::builder(&backend).build().unwrap();
    (backend, pool)
}

fn alloc(pool: &Pool<Late>, stream: Stream<'static>, size: u64) -> Block<Late> {
    pool.request(Bytes(size)).stream(stream).alloc().unwrap()
}

/// Each stream leaves one block of each of four sizes alive.
#[test]
fn streams_share_slabs() {
    let (backend, pool) = pool(65);
    let mut left = Vec::new();
    for index in 1..=64 {
        for size in [256, 4 * KIB, 16 * KIB, 64 * KIB] {
            let mut blocks: Vec<_> = (0..4).map(|_| alloc(&pool, backend.stream(index), size)).collect();
            left.push(blocks.swap_remove(2));
        }
        backend.queue(index);
        backend.finish(index, 1);
    }
    let stats = pool.stats();
    assert!(stats.held <= stats.live + CACHE + 4 * MIB, "{stats}");
}

/// Each stream keeps one block of each slab that it has made.
#[test]
fn streams_leave_free_slots_to_others() {
    let (backend, pool) = pool(65);
    let mut left = Vec::new();
    for index in 1..=64 {
        let mut blocks: Vec<_> = (0..400).map(|_| alloc(&pool, backend.stream(index), 4 * KIB)).collect();
        backend.queue(index);
        left.extend(blocks.extract_if(.., |block| block.address().0 % (64 * KIB) == 0));
        drop(blocks);
        backend.finish(index, 1);
    }
    let stats = pool.stats();
    assert!(stats.held <= stats.live + CACHE + 4 * MIB, "{stats}");
}

/// Another stream gets a slot after the work that was queued when it was freed, and not before.
#[test]
fn slots_wait_for_their_streams_work() {
    let (backend, pool) = pool(3);
    let [one, two] = [1, 2].map(|index| backend.stream(index));
    let addresses =
        |blocks: &[Block<Late>]| blocks.iter().map(|block| block.address()).collect::<HashSet<_>>();
    let many = |stream| (0..600).map(|_| alloc(&pool, stream, 2 * KIB)).collect::<Vec<_>>();
    let mut blocks = many(one);
    let freed = addresses(&blocks);
    // A block of each slab stays alive.
    let kept: Vec<_> = blocks.extract_if(.., |block| block.address().0 % (32 * KIB) == 0).collect();
    backend.queue(1);
    drop(blocks);
    let early = many(two);
    assert!(addresses(&early).is_disjoint(&freed));
    backend.finish(1, 1);
    let late = many(two);
    let again = addresses(&late).intersection(&freed).count();
    // The others are in the thread cache.
    assert!(again >= 400, "{again} of 600");
    let found = late.iter().map(|block| pool.find(block.address()).unwrap().stream);
    assert!(found.into_iter().all(|stream| stream == two));
    assert_eq!(pool.find(kept[0].address()).unwrap().stream, one);
}

/// A slab without a block returns its memory once all streams that its slots waited for are done.
#[test]
fn slabs_of_several_streams_return_their_memory() {
    let (backend, pool) = pool(3);
    let [one, two] = [1, 2].map(|index| backend.stream(index));
    let mut first: Vec<_> = (0..8).map(|_| alloc(&pool, one, 64 * KIB)).collect();
    let mut kept = first.split_off(4);
    drop(first);
    pool.trim(Bytes(u64::MAX)).unwrap();
    kept.extend((0..4).map(|_| alloc(&pool, two, 64 * KIB)));
    assert_eq!(pool.stats().held, 2 * MIB);
    [1, 2].into_iter().for_each(|index| backend.queue(index));
    drop(kept);
    [1, 2].into_iter().for_each(|index| backend.finish(index, 1));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.stats().held, pool.stats().bins.len()), (0, 0));
}
