//! Pools that move to another device.
#![allow(unsafe_code)] // captures a stream, and launches graphs

use super::{adds_up, alloc, builder, is_empty, pool, write, write_at, wrong_at};
use crate::case::cases;
use crate::library::flights::{finish, own};
use crate::library::moved::two;
use crate::library::tools::idle;
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{
    Access, BackingStore, Bytes, Detail, DeviceId, ErrorKind, Location, MovePath, Properties, StagingRing,
    WaitFor,
};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{CaptureMode, TestKit};

cases! { "pool":
    /// After a move, the new device finds the bytes of all blocks of all tags and kinds at their addresses, and writes them. The pool
    /// allocates there, and the old device's memory is free.
    moved_to_another_device,
    /// A graph that was captured before a move works on the same blocks after it and after the move back, if its device has access.
    graphs_before_and_after_a_move,
    /// A move with a suspended tag, with memory that others hold, to a missing device, or with a ring of another backend is refused, and
    /// nothing moves.
    moves_that_are_refused,
}

const SIZES: [u64; 6] = [256, 5000, 70_000, 1 << 20, 5 << 20, (3 << 20) + 8];

#[track_caller]
fn check_on<B: TestKit>(subject: &Subject<B>, device: DeviceId, blocks: &[Block<B>]) {
    for block in blocks {
        let at = block.address();
        assert_eq!(wrong_at(&subject.backend, device, at, block.size(), at.0), 0, "{at} on {device}");
    }
}

fn moved_to_another_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let pool = pool(subject);
    let host = Properties { device: a, ..Properties::on(a).located(Location::HostNode(0)) };
    let kinds = [Ok(pool.clone()), pool.with_memory(Properties::on(a).shareable()), pool.with_memory(host)];
    let handles: Vec<Pool<B>> = kinds.into_iter().flatten().collect();
    let ring = StagingRing::new(&subject.backend, 1, Bytes::mib(3)).unwrap();
    // The first work of a device takes memory that stays.
    let all = handles.iter().map(|handle| alloc(handle, Bytes::mib(1))).collect::<Vec<_>>();
    pool.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    write_at(&subject.backend, b, all[0].address(), all[0].size(), 1);
    pool.move_to_device(a, MovePath::Fastest(None), idle()).unwrap();
    drop(all);
    handles.iter().for_each(is_empty);
    for via in [MovePath::Fastest(None), MovePath::Ring(&ring)] {
        let before = [a, b].map(|device| subject.free_of(device));
        let mut blocks = Vec::new();
        for handle in &handles {
            for tag in ["", "weights"] {
                let tagged = handle.tagged(tag).unwrap();
                for size in SIZES {
                    let block = alloc(&tagged, Bytes(size));
                    write(subject, &block, block.address().0);
                    blocks.push(block);
                }
            }
        }
        // Free memory, which does not move.
        drop(alloc(&pool, Bytes::mib(20)));
        let (live, addresses) = (pool.stats().live, pool.stats().reserved);
        let moved = pool.move_to_device(b, via, idle()).unwrap();
        assert!(moved.by_peer + moved.through_host >= Bytes(live), "{moved:?}");
        assert_eq!((adds_up(&pool).live, pool.stats().kept), (live, 0));
        assert!(pool.stats().reserved <= addresses);
        assert!(handles.iter().all(|handle| handle.memory().device == b));
        check_on(subject, b, &blocks);
        for block in &mut blocks {
            let at = block.address();
            write_at(&subject.backend, b, at, block.size(), at.0);
            let (memory, _) = pool.memory_at(at, block.size()).unwrap();
            assert!(memory.iter().all(|one| one.device() == b));
            let mut bytes = [0];
            block.read(Bytes::ZERO, &mut bytes).unwrap();
        }
        let more = alloc(&pool, Bytes::mib(9));
        write_at(&subject.backend, b, more.address(), more.size(), 3);
        drop(more);
        check_on(subject, b, &blocks);
        pool.move_to_device(a, via, idle()).unwrap();
        check_on(subject, a, &blocks);
        drop(blocks);
        handles.iter().for_each(is_empty);
        if super::counts_at_once(subject) {
            assert_eq!([a, b].map(|device| subject.free_of(device)), before);
        }
    }
}

fn graphs_before_and_after_a_move<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    subject.needs_kernels();
    let (pool, stream) = (pool(subject), own(subject));
    let block = alloc(&pool, Bytes::mib(5));
    // SAFETY: the capture ends below, on the same thread.
    or_skip(unsafe { subject.backend.begin_capture(a, stream.stream(), CaptureMode::Relaxed) });
    // SAFETY: the block lives until the stream has been waited for.
    unsafe { subject.backend.start_pattern_on(a, stream.stream(), block.address(), block.size(), 7, 1) }
        .unwrap();
    let graph = subject.backend.end_capture(a, stream.stream()).expect("a valid capture");
    let replay = |device: DeviceId| {
        write_at(&subject.backend, device, block.address(), block.size(), 1);
        // SAFETY: as above; its device has access to the memory.
        unsafe { graph.launch(stream.stream()) }.unwrap();
        finish(subject, &*stream);
        assert_eq!(wrong_at(&subject.backend, device, block.address(), block.size(), 7), 0, "on {device}");
    };
    replay(a);
    pool.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    pool.allow_access(a).unwrap();
    replay(b);
    pool.move_to_device(a, MovePath::Fastest(None), idle()).unwrap();
    replay(a);
    drop(block);
    is_empty(&pool);
}

fn moves_that_are_refused<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let pool = pool(subject);
    let block = alloc(&pool, Bytes::mib(5));
    write(subject, &block, block.address().0);
    let refused = |device, via: MovePath<'_, B>, is_right: fn(&Detail) -> bool| {
        let error = pool.move_to_device(device, via, idle()).unwrap_err();
        assert!(is_right(error.detail()), "{error}");
        assert_eq!((pool.memory().device, pool.stats().live_blocks), (a, 1));
        assert_eq!(wrong_at(&subject.backend, a, block.address(), block.size(), block.address().0), 0);
    };
    refused(DeviceId(4711), MovePath::Fastest(None), |detail| matches!(detail, Detail::NoSuchDevice { .. }));
    if let Some(foreign) = subject.target.foreign() {
        let ring = StagingRing::new(&foreign, 1, Bytes::mib(2)).unwrap();
        refused(b, MovePath::Ring(&ring), |detail| matches!(detail, Detail::ForeignHandle { .. }));
    }
    let (held, _) = pool.memory_at(block.address(), block.size()).unwrap();
    refused(b, MovePath::Fastest(None), |detail| matches!(detail, Detail::StillReferenced { .. }));
    drop(held);
    let tagged = pool.tagged("kv").unwrap();
    let sleeping = alloc(&tagged, Bytes::mib(3));
    let store = BackingStore::pinned(&subject.backend, pool.occupied("kv").unwrap()).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    let error = pool.move_to_device(b, MovePath::Fastest(None), idle()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    pool.resume("kv").unwrap();
    drop(sleeping);
    pool.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    check_on(subject, b, std::slice::from_ref(&block));
    // Nothing to do.
    assert_eq!(pool.move_to_device(b, MovePath::Fastest(None), idle()).unwrap(), Default::default());
    drop(block);
    is_empty(&pool);
    // An empty pool moves as well, unless a device with access cannot reach the memory.
    let empty = builder(subject).build().unwrap();
    empty.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(empty.memory().device, b);
    if subject.backend.can_access(a, b).unwrap() {
        empty.allow_access_as(a, Access::ReadWrite).unwrap();
    }
}
