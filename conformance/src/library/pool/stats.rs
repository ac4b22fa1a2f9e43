//! The information that a pool reports: look-ups, statistics and snapshots.

use super::{Hand, adds_up, alloc, is_empty, page, pool};
use crate::case::cases;
use crate::library::flights::own;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Backend, BackingStore, Bytes, Operation, Stream, WaitFor};
use gpu_vmm_pool::{BlockState, FramesSnapshot, PagesSnapshot, Pool, PoolSnapshot};
use gpu_vmm_testkit::TestKit;
use std::collections::HashMap;

cases! { "pool":
    /// A block is found by each of its addresses, with its properties, and not by the addresses behind it.
    found_by_inner_addresses,
    /// Memory that is free, pending or in a thread cache is not found as a block.
    only_live_blocks_are_found,
    /// A free small block is not found, even if its neighbor is live.
    a_free_slot_is_no_block,
    /// The statistics follow each block, and are zero at the end.
    the_statistics_follow,
    /// A trim counts the driver calls by which it releases memory.
    releases_are_counted,
    /// The timeline of a snapshot follows the live, the pending and the held memory, also while a tag is suspended.
    the_timeline_follows,
    /// A long timeline is thinned evenly from its beginning to its end.
    a_timeline_is_thinned_out,
    /// Small blocks are counted by their sizes.
    counted_by_size,
    /// A snapshot agrees with the statistics: blocks and pages are in order, do not overlap, are inside of the reservations,
    /// and no page is used twice.
    a_snapshot_is_consistent,
    /// A snapshot names the device, and has the state and the stream of each block.
    a_snapshot_has_states_and_streams,
}

fn found_by_inner_addresses<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let stream = super::waits::named(&*own);
    let pool = pool(subject).tagged("kv").unwrap();
    let sizes = [1, 256, 5000, 65_536, 100_000, 1 << 20, (3 << 20) + 5];
    let blocks: Vec<_> =
        sizes.iter().map(|size| pool.request(Bytes(*size)).stream(stream).alloc().unwrap()).collect();
    for block in &blocks {
        for offset in [0, 1, block.size().0 / 2, block.size().0 - 1] {
            let info = pool.find(block.address() + Bytes(offset)).unwrap();
            assert_eq!((info.base, info.offset), (block.address(), Bytes(offset)));
            assert_eq!((info.device, info.stream, &*info.tag), (subject.device, stream, "kv"));
            assert_eq!(info.capacity, block.capacity());
        }
        let behind = block.address() + block.capacity();
        assert!(pool.find(behind).is_none_or(|info| info.base == behind));
    }
    assert!(pool.find(Address(8)).is_none());
    let at: Vec<_> = blocks.iter().map(|block| block.address()).collect();
    drop(blocks);
    assert!(at.iter().all(|address| pool.find(*address).is_none()), "a freed block was found");
    is_empty(&pool);
}

fn only_live_blocks_are_found<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    for size in [300, 100_000, 4 << 20] {
        let (block, hand) = (alloc(&pool, Bytes(size)), Hand::new());
        let inner = block.address() + Bytes(size / 2);
        assert!(pool.find(inner).is_some());
        block.free_after(hand.fence());
        assert!(pool.find(inner).is_none(), "a pending block was found");
        hand.set(Hand::DONE);
        pool.trim(Bytes(u64::MAX)).unwrap();
        assert!(pool.find(inner).is_none(), "a free block was found");
        let block = alloc(&pool, Bytes(size));
        let inner = block.address();
        drop(block);
        assert!(pool.find(inner).is_none(), "a block in a thread cache was found");
    }
    is_empty(&pool);
}

fn a_free_slot_is_no_block<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let [stays, goes] = [(); 2].map(|()| alloc(&pool, Bytes(300)));
    let at = goes.address();
    drop(goes);
    // This trim collects the thread caches and releases nothing.
    pool.trim(Bytes(u64::MAX)).unwrap();
    assert!(pool.find(at).is_none(), "a free slot was found");
    assert_eq!(pool.find(stays.address()).unwrap().base, stays.address());
    drop(stays);
    is_empty(&pool);
}

fn the_statistics_follow<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    assert_eq!(adds_up(&pool).reserved, 0, "addresses were reserved before the first block");
    let mut blocks = Vec::new();
    let mut live = 0;
    for size in [1, 1000, 70_000, 1 << 20, 5 << 20, 3 << 20] {
        blocks.push(alloc(&pool, Bytes(size)));
        live += size;
        let stats = adds_up(&pool);
        assert_eq!((stats.live, stats.live_blocks), (live, blocks.len() as u64));
        assert_eq!(stats.allocations, blocks.len() as u64);
        assert!(stats.held >= live && stats.peak_live >= live);
    }
    let most = pool.stats();
    while let Some(block) = blocks.pop() {
        live -= block.size().0;
        drop(block);
        let stats = adds_up(&pool);
        assert_eq!((stats.live, stats.live_blocks), (live, blocks.len() as u64));
        assert_eq!((stats.held, stats.peak_live), (most.held, most.peak_live), "freed memory was released");
    }
    assert!(pool.stats().unused() > 0.99);
    is_empty(&pool);
    let stats = pool.stats();
    assert_eq!((stats.peak_held, stats.allocations), (most.peak_held, 6));
    assert!(stats.bins.iter().all(|bin| bin.live == 0), "{:?}", stats.bins);
}

fn the_timeline_follows<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool).0;
    let now = || {
        let timeline = pool.snapshot().timeline;
        assert!(timeline.is_sorted_by(|one, next| one.at <= next.at), "the timeline is not in order");
        timeline.last().map(|moment| [moment.live, moment.pending, moment.held].map(|bytes| bytes / page))
    };
    assert_eq!(now(), None, "the timeline has a point before the first change");
    let (first, second) = (alloc(&pool, Bytes(page * 4)), alloc(&pool, Bytes(page * 3)));
    assert_eq!(now(), Some([7, 0, 7]));
    drop(first);
    assert_eq!(now(), Some([3, 0, 7]));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(now(), Some([3, 0, 3]));
    let hand = Hand::new();
    second.free_after(hand.fence());
    // Pending memory counts as live.
    assert_eq!(now(), Some([3, 3, 3]));
    hand.set(Hand::DONE);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(now(), Some([0, 0, 0]));
    let third = alloc(&pool, Bytes(page * 2));
    let store = BackingStore::pinned(&subject.backend, third.size()).unwrap();
    pool.suspend("", &store, WaitFor::all_devices()).unwrap();
    assert_eq!(now(), Some([2, 0, 0]));
    pool.reset_peak().unwrap();
    pool.resume("").unwrap();
    assert_eq!((now(), pool.usage().peak_held), (Some([2, 0, 2]), page * 2));
    drop(third);
    is_empty(&pool);
}

fn a_timeline_is_thinned_out<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    // Each block is a change of its own, since no size class has its alignment. The live size identifies the change of a
    // point.
    let block = || pool.request(Bytes(256)).alignment(Bytes(1024)).alloc().unwrap();
    let mut blocks = vec![block()];
    let first = pool.snapshot().timeline[0];
    blocks.extend((1..10_000).map(|_| block()));
    let PoolSnapshot { timeline, stats, .. } = pool.snapshot();
    assert!((1000..=2048).contains(&timeline.len()), "{} points", timeline.len());
    assert_eq!(timeline[0], first, "the timeline lacks the pool's first change");
    let all = timeline.iter().map(|moment| moment.live).chain([stats.peak_live]).collect::<Vec<_>>();
    let apart = all.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(apart <= stats.peak_live / 1000, "{apart} of {} without a point", stats.peak_live);
    drop(blocks);
    is_empty(&pool);
}

fn counted_by_size<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let live = |pool: &Pool<B>| -> HashMap<u64, u64> {
        let bins = pool.stats().bins.into_iter().filter(|bin| bin.live > 0);
        bins.map(|bin| (bin.size, bin.live)).collect()
    };
    let blocks: Vec<_> = [256, 256, 512, 1000, 4096, 4000].map(|size| alloc(&pool, Bytes(size))).into();
    assert_eq!(live(&pool), HashMap::from([(256, 2), (512, 1), (1024, 1), (4096, 2)]));
    drop(blocks);
    assert_eq!(live(&pool), HashMap::new());
    is_empty(&pool);
}

/// Fails if a snapshot contradicts itself or the statistics in it.
#[track_caller]
pub(crate) fn is_consistent<B: Backend>(pool: &Pool<B>) -> PoolSnapshot {
    let snapshot = pool.snapshot();
    let (mut used, mut frames) = (HashMap::new(), std::collections::HashSet::new());
    let (mut mapped, mut reserved) = (0, 0);
    for space in &snapshot.spaces {
        reserved += space.reserved;
        let mut end = 0;
        for block in &space.blocks {
            assert_eq!(block.offset, end, "blocks and free ranges are not in order or not contiguous");
            end += block.size;
        }
        assert!(end <= space.reserved);
        let mut end = 0;
        let mut with_memory = std::collections::HashSet::new();
        for pages in &space.pages {
            assert!(pages.offset >= end && pages.count > 0, "pages are not in order");
            end = pages.offset + pages.count * snapshot.page;
            for index in 0..pages.count {
                let (frame, offset) = (u64::from(pages.frame) + index, pages.offset + index * snapshot.page);
                frames.insert(frame);
                mapped += snapshot.page;
                if pages.used {
                    with_memory.insert(offset / snapshot.page);
                    assert_eq!(used.insert(frame, offset), None, "frame {frame} is used at two offsets");
                }
            }
        }
        assert!(end <= space.reserved);
        let follows = |one: &PagesSnapshot, next: &PagesSnapshot| {
            one.used == next.used
                && one.offset + one.count * snapshot.page == next.offset
                && u64::from(one.frame) + one.count == u64::from(next.frame)
        };
        assert!(
            !space.pages.windows(2).any(|two| follows(&two[0], &two[1])),
            "pages that are alike are two runs"
        );
        let taken = space.blocks.iter().filter(|block| block.state != BlockState::Free);
        for block in taken.filter(|_| !space.suspended) {
            let pages = block.offset / snapshot.page..(block.offset + block.size).div_ceil(snapshot.page);
            assert!(pages.into_iter().all(|page| with_memory.contains(&page)), "{block:?} lacks memory");
        }
    }
    let mut unmapped = 0;
    let ends = |one: &FramesSnapshot, next: &FramesSnapshot| {
        u64::from(one.frame) + one.count < u64::from(next.frame)
    };
    assert!(snapshot.unmapped.is_sorted_by(ends), "consecutive frames are two runs: {:?}", snapshot.unmapped);
    for run in &snapshot.unmapped {
        for frame in u64::from(run.frame)..u64::from(run.frame) + run.count {
            assert!(
                frames.insert(frame),
                "frame {frame} is mapped, or unmapped twice: {:?}",
                snapshot.unmapped
            );
            unmapped += 1;
        }
    }
    let stats = &snapshot.stats;
    assert_eq!((stats.mapped, stats.reserved), (mapped, reserved));
    assert_eq!(stats.held, frames.len() as u64 * snapshot.page);
    assert!(unmapped * snapshot.page <= stats.kept);
    assert_eq!(stats.held - stats.kept, used.len() as u64 * snapshot.page);
    snapshot
}

fn a_snapshot_is_consistent<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool).0;
    is_consistent(&pool);
    let tagged = pool.tagged("weights").unwrap();
    let mut blocks: Vec<_> = (0..12).map(|_| alloc(&pool, Bytes(page * 3 / 2))).collect();
    blocks.extend((0..50).map(|index| alloc(&tagged, Bytes(index * 1000 + 1))));
    is_consistent(&pool);
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    is_consistent(&pool);
    let large = alloc(&tagged, Bytes(page * 7));
    let snapshot = is_consistent(&pool);
    let states = |state| {
        let all = snapshot.spaces.iter().flat_map(|space| &space.blocks);
        all.filter(|block| block.state == state).count()
    };
    assert!(states(BlockState::Live) >= 7 && states(BlockState::Bins) > 0 && states(BlockState::Free) > 0);
    let hand = Hand::new();
    pool.alloc(Bytes(page)).unwrap().free_after(hand.fence());
    let snapshot = is_consistent(&pool);
    let pending = snapshot.spaces.iter().flat_map(|space| &space.blocks);
    assert_eq!(pending.filter(|block| block.state == BlockState::Pending).count(), 1);
    hand.set(Hand::DONE);
    let store = BackingStore::pinned(&subject.backend, Bytes(page * 16)).unwrap();
    pool.suspend("weights", &store, WaitFor::all_devices()).unwrap();
    assert!(is_consistent(&pool).spaces.iter().any(|space| space.suspended && space.tag == "weights"));
    pool.resume("weights").unwrap();
    let snapshot = is_consistent(&pool);
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(
        serde_json::from_str::<PoolSnapshot>(&text).unwrap(),
        snapshot,
        "the snapshot changed on the way through JSON"
    );
    drop((blocks, large));
    is_consistent(&pool);
    is_empty(&pool);
}

fn a_snapshot_has_states_and_streams<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let stream = super::waits::named(&*own);
    let pool = pool(subject);
    let on = |size, stream| pool.request(size).stream(stream).alloc().unwrap();
    let [ours, theirs] = [super::DEFAULT, stream].map(|stream| on(Bytes::mib(3), stream));
    let cached = on(Bytes::kib(100), stream).address();
    let snapshot = is_consistent(&pool);
    let device = subject.backend.device(Operation::QueryDevice, subject.device).unwrap();
    let named = format!("{} {}: {}", subject.backend.vendor(), device.id, device.name);
    assert_eq!(snapshot.device, named);
    let found = |address: Address| {
        let spaces = snapshot.spaces.iter();
        let mut all =
            spaces.flat_map(|space| space.blocks.iter().map(|block| (space.base + block.offset, block)));
        all.find(|(at, _)| *at == address.0).map(|(_, block)| (block.state, block.stream))
    };
    let raw = |stream: Stream<'_>| stream.as_raw().addr() as u64;
    assert_eq!(found(ours.address()), Some((BlockState::Live, raw(super::DEFAULT))));
    assert_eq!(found(theirs.address()), Some((BlockState::Live, raw(stream))));
    assert_eq!(found(cached), Some((BlockState::Cached, raw(stream))));
    drop((ours, theirs));
    is_empty(&pool);
}

fn releases_are_counted<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool);
    let pages = |count: u64| Bytes(page.0 * count);
    drop(alloc(&pool, pages(9)));
    // From here on, no running work delays the release.
    assert_eq!(pool.trim(pages(8)).unwrap(), pages(1));
    let before = pool.stats().driver_calls;
    assert_eq!(pool.trim(pages(3)).unwrap(), pages(5));
    let after = pool.stats().driver_calls;
    assert_eq!((after.other - before.other, after.create - before.create), (5, 0));
    is_empty(&pool);
}
