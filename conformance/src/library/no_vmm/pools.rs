//! Pools, their limits and their statistics.
#![allow(unsafe_code)] // the device writes blocks

use crate::case::cases;
use crate::library::captures::Announced;
use crate::library::flights::{finish, own, registered};
use crate::library::pool::{adds_up, is_consistent, start};
use crate::library::tools::{idle, refused};
use crate::subject::{Subject, note};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, DeviceId, Operation};
use gpu_vmm_pool::{Block, Pool, PoolBuilder};
use gpu_vmm_premap::PremapThread;
use gpu_vmm_testkit::{Random, TestKit};
use std::time::{Duration, Instant};

cases! { "no_vmm":
    /// A large block has an allocation of its own size in whole pages, and small blocks share one.
    blocks_and_their_allocations,
    /// Freed memory serves the next request of the size, of a smaller one, and of several smaller ones, without a driver call.
    freed_memory_is_reused,
    /// Blocks keep their bytes, whatever is allocated and freed beside them, and the statistics add up at every step.
    random_blocks,
    /// Trimming frees allocations without a block, and keeps those that hold one.
    trimming,
    /// A pool keeps no more free memory than it may.
    the_kept_limit,
    /// A pool holds no more than its budget. If a request exceeds it, allocations of other sizes without a block are freed first.
    the_budget,
    /// If the device has no memory left, allocations without a block are freed for a request of another size.
    memory_of_the_device,
    /// Memory that a stream's work uses serves another stream only after that work, and is not freed before.
    streams_are_waited_for,
    /// If the budget leaves no other way, a request waits for the work on memory, which is not freed before.
    need_waits_for_work,
    /// Tags have allocations of their own, and new memory is zero for a pool that scrubs.
    tags_and_scrubbing,
    /// Suspending a tag, access for another device and the memory behind a block are refused with the reason.
    refused_calls,
    /// Settings without meaning here are accepted: memory that is mapped in advance, and memory that can be exported.
    settings_without_effect,
    /// A pool that is dropped during a capture keeps its memory until the capture has ended.
    dropped_during_a_capture,
}

fn builder<B: TestKit>(subject: &Subject<B>) -> PoolBuilder<'_, B> {
    Pool::builder(&subject.backend).device(subject.device)
}

fn write<B: TestKit>(subject: &Subject<B>, block: &Block<B>, seed: u64) {
    let length = Bytes(block.size().0 / 8 * 8);
    // SAFETY: the block's memory belongs to this case, and no other work uses it.
    unsafe { subject.backend.write_pattern(subject.device, block.address(), length, seed) }.unwrap();
}

#[track_caller]
fn check<B: TestKit>(subject: &Subject<B>, block: &Block<B>, seed: u64) {
    let length = Bytes(block.size().0 / 8 * 8);
    // SAFETY: as above.
    let wrong = unsafe { subject.backend.count_wrong(subject.device, block.address(), length, seed) };
    assert_eq!(wrong.unwrap(), 0, "{} at {}", block.size(), block.address());
}

/// The number of plain allocations that the pool has made and the memory that it holds.
fn made_and_held<B: Backend>(pool: &Pool<B>) -> (u64, Bytes) {
    adds_up(pool);
    is_consistent(pool);
    let stats = pool.stats();
    assert_eq!((stats.mapped, stats.driver_calls.map), (stats.held, 0));
    assert!(stats.reserved == stats.held, "{stats:?}");
    (stats.driver_calls.create, Bytes(stats.held))
}

fn blocks_and_their_allocations<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    let pool = builder(subject).build().unwrap();
    assert_eq!(made_and_held(&pool), (0, Bytes(0)));
    let small: Vec<_> = (1..100).map(|number| pool.alloc(Bytes(number * 100)).unwrap()).collect();
    assert_eq!(made_and_held(&pool), (1, Bytes::mib(2)));
    let large: Vec<_> = [3, 5, 8].map(|size| pool.alloc(Bytes::mib(size)).unwrap()).into();
    assert_eq!(made_and_held(&pool), (4, Bytes::mib(2 + 4 + 6 + 8)));
    assert!(subject.free_here() <= free - Bytes::mib(20));
    for (seed, block) in (0..).zip(small.iter().chain(&large)) {
        assert!(block.address().0.is_multiple_of(256));
        write(subject, block, seed << 32);
    }
    for (seed, block) in (0..).zip(small.iter().chain(&large)) {
        check(subject, block, seed << 32);
    }
    let aligned = [8, 64, 4, 128].map(|alignment| {
        let alignment = Bytes::mib(alignment);
        let block = pool.request(Bytes::kib(1)).alignment(alignment).alloc().unwrap();
        assert!(block.address().is_aligned_to(alignment), "{alignment}: {}", block.address());
        block
    });
    let info = pool.find(large[0].address() + Bytes(5)).unwrap();
    assert_eq!((info.base, info.offset), (large[0].address(), Bytes(5)));
    drop((small, large, aligned, pool));
    assert_eq!(subject.free_here(), free);
}

fn freed_memory_is_reused<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let first = pool.alloc(Bytes::mib(12)).unwrap();
    let address = first.address();
    drop(first);
    for size in [12, 11, 3] {
        let again = pool.alloc(Bytes::mib(size)).unwrap();
        assert_eq!((again.address(), made_and_held(&pool)), (address, (1, Bytes::mib(12))));
    }
    let parts: Vec<_> = (0..6).map(|_| pool.alloc(Bytes::mib(2)).unwrap()).collect();
    assert_eq!(made_and_held(&pool), (1, Bytes::mib(12)));
    // The smallest allocation that fits serves a request.
    drop(parts);
    let (large, other) = (pool.alloc(Bytes::mib(12)).unwrap(), pool.alloc(Bytes::mib(4)).unwrap());
    let address = other.address();
    drop((large, other));
    assert_eq!(pool.alloc(Bytes::mib(3)).unwrap().address(), address);
    assert_eq!(made_and_held(&pool), (2, Bytes::mib(16)));
}

fn random_blocks<B: TestKit>(subject: &Subject<B>) {
    const SEED: u64 = 0x5eed;
    let pool = builder(subject).budget(Bytes::mib(96)).build().unwrap();
    let mut random = Random(SEED);
    let mut blocks: Vec<(Block<B>, u64)> = Vec::new();
    let mut refused = 0;
    for step in 0..300 {
        if random.below(5) < 2 && !blocks.is_empty() {
            let (block, seed) = blocks.swap_remove(random.below(blocks.len()));
            check(subject, &block, seed);
        } else {
            let size = Bytes(match random.below(3) {
                0 => 8 + random.below(10_000),
                1 => 8 + random.below(1 << 20),
                _ => (1 << 20) + random.below(12 << 20),
            } as u64);
            match pool.alloc(size) {
                Ok(block) => {
                    write(subject, &block, step << 32);
                    blocks.push((block, step << 32));
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    refused += 1;
                }
            }
        }
        let (_, held) = made_and_held(&pool);
        assert!(held <= Bytes::mib(96));
        let layout = pool.layout();
        assert_eq!(layout.runs.iter().map(|run| run.size.0).sum::<u64>(), held.0);
    }
    blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
    note(format!("seed {SEED:#x}, {refused} requests beyond the budget"));
}

fn trimming<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let kept = pool.alloc(Bytes::mib(4)).unwrap();
    write(subject, &kept, 1);
    let [one, two] = [6, 8].map(|size| pool.alloc(Bytes::mib(size)).unwrap());
    let free = subject.free_here();
    drop((one, two));
    assert_eq!(pool.stats().kept, Bytes::mib(14).0);
    assert_eq!(pool.trim(Bytes::mib(14)).unwrap(), Bytes(0));
    let released = pool.trim(Bytes::mib(10)).unwrap();
    assert_eq!((released, made_and_held(&pool).1), (Bytes::mib(6), Bytes::mib(12)));
    assert_eq!(pool.trim(Bytes(0)).unwrap(), Bytes::mib(8));
    assert_eq!((made_and_held(&pool).1, subject.free_here()), (Bytes::mib(4), free + Bytes::mib(14)));
    check(subject, &kept, 1);
    // The place of a freed allocation in the pool's records is used again.
    let again = pool.alloc(Bytes::mib(2)).unwrap();
    assert_eq!(pool.snapshot().spaces.len(), 2);
    drop((kept, again));
    assert_eq!(pool.trim(Bytes(0)).unwrap(), Bytes::mib(6));
    assert_eq!(made_and_held(&pool).1, Bytes(0));
    assert_eq!((pool.usage().released, pool.usage().created), (10, 10));
    // If no single one suffices, the largest goes first: then fewer go.
    drop([2, 4, 6].map(|size| pool.alloc(Bytes::mib(size)).unwrap()));
    assert_eq!((pool.trim(Bytes::mib(3)).unwrap(), made_and_held(&pool).1), (Bytes::mib(10), Bytes::mib(2)));
}

fn the_kept_limit<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).keep(Bytes::mib(5)).build().unwrap();
    drop(pool.alloc(Bytes::mib(4)).unwrap());
    drop(pool.alloc(Bytes::mib(6)).unwrap());
    // Of these ten only the six have to go, with the free after which the work on them is done.
    let began = Instant::now();
    while made_and_held(&pool).1 != Bytes::mib(4) {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", pool.stats());
        drop(pool.alloc(Bytes::mib(4)).unwrap());
    }
}

fn the_budget<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).budget(Bytes::mib(10)).build().unwrap();
    let [one, two] = [4, 6].map(|size| pool.alloc(Bytes::mib(size)).unwrap());
    let error = pool.alloc(Bytes::mib(2)).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("budget is 10 MiB"), "{error}");
    assert!(pool.alloc(Bytes::mib(11)).unwrap_err().is_out_of_memory());
    write(subject, &two, 2);
    drop(one);
    // The freed four are not enough for eight, and the other block's pages are not free.
    assert!(pool.alloc(Bytes::mib(8)).unwrap_err().is_out_of_memory());
    assert!(made_and_held(&pool).1 <= Bytes::mib(10));
    check(subject, &two, 2);
    drop(two);
    let all = pool.alloc(Bytes::mib(10)).unwrap();
    assert_eq!((made_and_held(&pool).1, all.size()), (Bytes::mib(10), Bytes::mib(10)));
}

fn memory_of_the_device<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let kept = pool.alloc(Bytes::mib(2)).unwrap();
    write(subject, &kept, 1);
    let half = Bytes::mib(subject.free_here().0 / Bytes::mib(1).0 / 2 / 2 * 2 - 16);
    let [one, two] = [half, half].map(|size| pool.alloc(size).unwrap());
    let error = pool.alloc(half).unwrap_err();
    assert!(error.is_out_of_memory() && error.driver_error().is_some(), "{error}");
    drop((one, two));
    let more = pool.alloc(half + Bytes::mib(64)).unwrap();
    assert!(made_and_held(&pool).1 >= more.size());
    check(subject, &kept, 1);
}

fn streams_are_waited_for<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let (stream, other) = (own(subject), own(subject));
    let (working, idler) = (registered(&pool, &*stream), registered(&pool, &*other));
    let block = working.request(Bytes::mib(8)).alloc().unwrap();
    let address = block.address();
    start(subject, &*stream, &block, 5);
    drop(block);
    // Its own stream may use the memory at once, another one may not.
    let again = working.request(Bytes::mib(8)).alloc().unwrap();
    assert_eq!(again.address(), address);
    drop(again);
    let apart = idler.request(Bytes::mib(8)).alloc().unwrap();
    assert!(apart.address() != address || stream.is_done().unwrap());
    drop(apart);
    pool.trim(Bytes(0)).unwrap();
    assert!(stream.is_done().unwrap(), "memory was freed under running work");
    assert_eq!(made_and_held(&pool).1, Bytes(0));
    finish(subject, &*stream);
    drop((working, idler));
}

fn need_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).budget(Bytes::mib(8)).build().unwrap();
    let (stream, other) = (own(subject), own(subject));
    let (working, idler) = (registered(&pool, &*stream), registered(&pool, &*other));
    let block = working.request(Bytes::mib(8)).alloc().unwrap();
    start(subject, &*stream, &block, 5);
    drop(block);
    let next = idler.request(Bytes::mib(6)).alloc().unwrap();
    assert!(stream.is_done().unwrap(), "memory was freed under running work");
    finish(subject, &*stream);
    write(subject, &next, 6);
    check(subject, &next, 6);
    drop((next, working, idler));
}

fn tags_and_scrubbing<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).scrub().build().unwrap();
    let [one, two] = ["one", "two"].map(|tag| pool.tagged(tag).unwrap());
    let (first, second) = (one.alloc(Bytes::mib(4)).unwrap(), two.alloc(Bytes::mib(4)).unwrap());
    assert_eq!(pool.occupied("one").unwrap(), Bytes::mib(4));
    write(subject, &first, 1);
    write(subject, &second, 2);
    let address = first.address();
    drop(first);
    let third = two.alloc(Bytes::mib(4)).unwrap();
    assert_ne!(third.address(), address, "memory of another tag");
    assert_eq!((pool.occupied("one").unwrap(), pool.occupied("two").unwrap()), (Bytes(0), Bytes::mib(8)));
    let mut bytes = vec![1; 4 << 20];
    third.read(Bytes(0), &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    check(subject, &second, 2);
}

fn refused_calls<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap().tagged("kv").unwrap();
    let block = pool.alloc(Bytes::mib(3)).unwrap();
    write(subject, &block, 1);
    let device = subject.backend.device(Operation::QueryDevice, subject.device).unwrap();
    let reason = device.no_virtual_memory.clone().unwrap();
    let store = BackingStore::pinned(&subject.backend, Bytes::mib(8)).unwrap();
    let other = DeviceId(subject.device.0 + 1);
    refused!(@Suspend pool.suspend("kv", &store, idle()), Detail::Unsupported { .. }, subject.device, reason);
    refused!(@SetAccess pool.allow_access(other), Detail::Unsupported { .. }, subject.device, reason);
    let memory = pool.memory_at(block.address(), block.size());
    refused!(@ExportMemory memory, Detail::Unsupported { .. }, subject.device, reason);
    assert!(!pool.is_suspended("kv").unwrap());
    pool.allow_access(subject.device).unwrap();
    assert!(pool.alloc(Bytes::mib(1)).is_ok());
    check(subject, &block, 1);
}

fn settings_without_effect<B: TestKit>(subject: &Subject<B>) {
    let thread = PremapThread::start(Bytes::mib(64)).unwrap();
    let pool = builder(subject).shareable().premap(&thread, Bytes::mib(16)).build().unwrap();
    let block = pool.alloc(Bytes::mib(4)).unwrap();
    drop(thread);
    assert_eq!(made_and_held(&pool), (1, block.size()));
}

fn dropped_during_a_capture<B: TestKit>(subject: &Subject<B>) {
    let (pool, free) = (builder(subject).build().unwrap(), subject.free_here());
    let block = pool.alloc(Bytes::mib(4)).unwrap();
    drop(block);
    {
        let _announced = Announced::new(&subject.backend);
        drop(pool);
        assert_eq!(subject.backend.deferred().kept(), Bytes::mib(4));
    }
    assert_eq!(subject.backend.deferred().collect(&subject.backend).unwrap(), Bytes::mib(4));
    assert_eq!(subject.free_here(), free);
}
