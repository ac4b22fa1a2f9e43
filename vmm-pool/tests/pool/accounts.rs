//! Random operations on a pool with several tags and streams: after each, the statistics agree with the calls that reached the
//! driver.
#![allow(unsafe_code)]

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

/// The limit up to which a pool creates memory follows the most that was ever needed, not what the last request needed.
#[test]
fn the_most_that_was_needed_is_remembered() {
    let backend = HostConfig::new().memory(Bytes::mib(256)).open().unwrap();
    for (most, held) in [(Bytes::mib(64), Bytes::mib(48)), (Bytes::mib(8), Bytes::mib(32))] {
        let pool = Pool::builder(&backend).slack(0).build().unwrap();
        drop(pool.alloc(most).unwrap());
        pool.trim(Bytes::ZERO).unwrap();
        let [one, two, three, four] = [(); 4].map(|()| pool.alloc(Bytes::mib(8)).unwrap());
        drop((one, three));
        // It fits into neither gap.
        let block = pool.alloc(Bytes::mib(16)).unwrap();
        assert!(block.address() > four.address());
        assert_eq!(pool.stats().held, held.0, "after a need of {most}");
        drop((two, four));
    }
}

/// Unless the program sets another limit: a hundredth for one stream, a fourteenth for several.
#[test]
fn pool_creates_little_excess_memory() {
    let backend = HostConfig::new().memory(Bytes::mib(512)).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    for (streams, held) in [(1, Bytes::mib(128)), (2, Bytes::mib(136))] {
        let pool = Pool::builder(&backend).build().unwrap();
        // SAFETY: the stream lives longer than its registration.
        let _registered = (streams == 2).then(|| unsafe { pool.register_stream(own.stream()) }.unwrap());
        let blocks: Vec<_> = (0..8).map(|_| pool.alloc(Bytes::mib(16)).unwrap()).collect();
        // No two free blocks are neighbours.
        let _stay: Vec<_> = blocks.into_iter().step_by(2).collect();
        let _block = pool.alloc(Bytes::mib(32)).unwrap();
        assert_eq!(pool.stats().held, held.0, "with {streams} streams");
    }
}

#[test]
fn statistics_follow_a_suspended_tag() {
    let backend = HostConfig::new().memory(Bytes::mib(256)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap().tagged("kv").unwrap();
    // The large block takes three pages, the small one a page of its own, and two pages stay free.
    let (large, small) = (pool.alloc(Bytes::mib(5)).unwrap(), pool.alloc(Bytes(1000)).unwrap());
    drop(pool.request(Bytes::mib(4)).alignment(Bytes(PAGE)).alloc().unwrap());
    let check = |held: u64, kept: u64, mapped: u64, released: u64| {
        let stats = pool.stats();
        let pages = [stats.held, stats.kept, stats.mapped].map(|bytes| bytes / PAGE);
        assert_eq!(pages, [held, kept, mapped], "{stats}");
        assert_eq!((stats.live, stats.live_blocks), (Bytes::mib(5).0 + 1000, 2));
        assert_eq!((stats.allocations, stats.pending, stats.peak_held), (3, 0, 6 * PAGE));
        assert_eq!(stats.reserved, Bytes::mib(256 + 16).0);
        let usage = pool.usage();
        assert_eq!((usage.held, usage.released), (held * PAGE, released));
        let occupied = if pool.is_suspended("kv").unwrap() { 0 } else { 4 * PAGE };
        assert_eq!(pool.occupied("kv").unwrap(), Bytes(occupied));
        let snapshot = pool.snapshot();
        let unmapped: Vec<_> = snapshot.unmapped.iter().map(|run| (run.frame, run.count)).collect();
        let free = if occupied == 0 { kept } else { held - mapped };
        // Free pages with consecutive numbers are one run.
        assert_eq!(unmapped.iter().map(|run| run.1).sum::<u64>(), free);
        assert!(unmapped.windows(2).all(|two| u64::from(two[0].0) + two[0].1 < u64::from(two[1].0)));
        assert!(snapshot.timeline.last().is_some_and(|last| last.at <= snapshot.at));
    };
    check(6, 2, 6, 0);
    let store = BackingStore::pinned(&backend, Bytes(4 * PAGE)).unwrap();
    let suspend = || pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    assert_eq!(suspend(), Bytes(4 * PAGE));
    check(2, 2, 0, 4);
    assert_eq!(suspend(), Bytes::ZERO, "it is suspended already");
    check(2, 2, 0, 4);
    assert_eq!(pool.trim(Bytes(PAGE + 1)).unwrap(), Bytes(PAGE));
    check(1, 1, 0, 5);
    assert_eq!(pool.resume("kv").unwrap(), Bytes(4 * PAGE));
    check(5, 1, 4, 5);
    assert_eq!(pool.resume("kv").unwrap(), Bytes::ZERO);
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes(PAGE));
    check(4, 0, 4, 6);
    drop((large, small));
}

/// Meanwhile free pages serve the new places of another tag.
#[test]
fn suspended_memory_counts_as_held() {
    let backend = HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let kept = pool.tagged("kv").unwrap().alloc(Bytes::mib(64)).unwrap();
    pool.suspend("kv", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    // No block fits before the one of 2 MiB that stays behind the last.
    let alloc = |size| {
        let _freed = pool.alloc(Bytes::mib(size)).unwrap();
        pool.alloc(Bytes::mib(2)).unwrap()
    };
    let _stay: Vec<_> = (24..28).map(alloc).collect();
    pool.resume("kv").unwrap();
    let (held, most) = (pool.stats().held, Bytes::mib(64 + 27 + 4 * 2).0 + 2 * PAGE);
    assert!(held <= most, "{held} of {most}: {}", pool.stats());
    drop(kept);
}
