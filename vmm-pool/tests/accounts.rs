//! Random operations on a pool with several tags and streams: after each, the statistics agree with the calls that reached the
//! driver.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use gpu_vmm_core::{BackingStore, Bytes, DeviceId, Operation, Stream, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, DriverCalls, Pool};
use gpu_vmm_testkit::{FaultInject, Random, TestKit};

type Faulty = FaultInject<HostBackend>;

const PAGE: u64 = 2 << 20;
const TAGS: [&str; 3] = ["", "kv", "weights"];

/// Compares the statistics with the blocks, the driver's objects and the driver's calls.
/// The calls that suspend and resume memory are not in the statistics.
fn adds_up(
    slept: bool,
    backend: &Faulty,
    pool: &Pool<Faulty>,
    blocks: &[(usize, Block<Faulty>)],
    allocations: u64,
) {
    let stats = pool.stats();
    let live: u64 = blocks.iter().map(|(_, block)| block.size().0).sum();
    assert_eq!((stats.live, stats.live_blocks), (live, blocks.len() as u64));
    assert_eq!(stats.allocations, allocations);
    assert_eq!(stats.held, backend.live().handles as u64 * PAGE);
    let DriverCalls { create, map, unmap, set_access, .. } = stats.driver_calls;
    let made = [Operation::CreateMemory, Operation::Map, Operation::Unmap, Operation::SetAccess]
        .map(|call| backend.made(call));
    let reported = [create, map, unmap, set_access];
    assert!(slept || reported == made, "{reported:?} calls are reported, and {made:?} were made");
    let usage = pool.usage();
    assert_eq!((usage.held, usage.created), (stats.held, backend.made(Operation::CreateMemory)));
    assert_eq!(usage.released, usage.created - stats.held / PAGE);
}

#[test]
fn the_statistics_are_those_of_the_driver() {
    for seed in 1..=4 {
        let sleeps = seed > 2;
        let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(256)).open().unwrap());
        let own = backend.own_stream(DeviceId(0)).unwrap();
        // SAFETY: the stream lives as long as the pool.
        let streams = [Stream::DEFAULT, unsafe { Stream::from_raw(own.stream().as_raw()) }];
        let pool = Pool::builder(&backend).budget(Bytes::mib(128)).build().unwrap();
        let pools = TAGS.map(|tag| pool.tagged(tag).unwrap());
        let store = BackingStore::pinned(&backend, Bytes::mib(128)).unwrap();
        let (mut random, mut blocks, mut allocations) = (Random(seed), Vec::new(), 0);
        for _ in 0..150 {
            let tag = random.below(TAGS.len());
            match random.below(12) {
                0..=5 => {
                    let size = [
                        1 + random.below(3000),
                        70_000 + random.below(900_000),
                        (1 << 20) + random.below(9 << 20),
                    ];
                    let request = pools[tag].request(Bytes(size[random.below(3)] as u64));
                    if let Ok(block) = request.stream(streams[random.below(2)]).alloc() {
                        allocations += 1;
                        blocks.push((tag, block));
                    }
                }
                6..=8 if !blocks.is_empty() => drop(blocks.swap_remove(random.below(blocks.len()))),
                9 => drop(pool.trim(Bytes(random.below(64) as u64 * PAGE)).unwrap()),
                10 if sleeps => drop(pool.suspend(TAGS[tag], &store, WaitFor::all_devices())),
                _ => drop(pool.resume(TAGS[tag])),
            }
            adds_up(sleeps, &backend, &pool, &blocks, allocations);
        }
        for tag in TAGS {
            let _ = pool.resume(tag);
        }
        blocks.clear();
        pool.trim(Bytes::ZERO).unwrap();
        adds_up(sleeps, &backend, &pool, &[], allocations);
        assert_eq!(pool.stats().held, 0);
    }
}
