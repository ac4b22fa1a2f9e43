//! Pools while a stream captures, among them streams of the pool.
#![allow(unsafe_code)] // captures streams, and launches graphs

use super::order::{overlap, range, start_behind};
use super::waits::named;
use super::{Hand, alloc, builder, is_empty, page, pool};
use crate::case::cases;
use crate::library::flights::{finish, own, registered};
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{BackingStore, Bytes, Detail, Operation, Result, WaitFor};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{CaptureMode, FaultInject, Graph, TestKit, WorkStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

cases! { "pool":
    /// A capturing stream gets no memory that earlier work still uses, not even its own, since the graph can be launched on
    /// any stream.
    a_capture_gets_memory_that_nothing_uses,
    /// Captures of a pool's streams end successfully in all three modes, whatever the pool does meanwhile for other streams.
    captures_are_not_spoilt,
    /// If a pool's last block is dropped while one of its streams captures, its memory is kept, and released afterwards.
    the_last_block_during_a_capture,
    /// While a stream of a pool captures, regions and other pools end, and a region shrinks and the pool is suspended, or both return an
    /// error and memory is kept. The capture ends successfully in all three modes, although the program has not announced it.
    regions_end_during_a_pools_capture,
    /// A stream that a pool has forgotten is not asked about any more: it can be destroyed.
    a_forgotten_stream_is_not_asked,
    /// A signaled fence does not release memory to others while a stream that has used the memory captures.
    a_fence_beside_a_capture,
    /// While one stream captures, the pool serves other streams, and treats a lack of memory as at other times.
    others_are_served_during_a_capture,
}

/// Begins a capture. Skips the case on a backend without captures.
fn begin<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream, mode: CaptureMode) {
    // Not when the work is queued: a capture would stay open.
    subject.needs_kernels();
    // SAFETY: each case ends its captures on the same thread, before it drops their streams.
    or_skip(unsafe { subject.backend.begin_capture(subject.device, stream.stream(), mode) });
}

/// Records work on a block into the capture.
fn record<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream, block: &Block<B>, seed: u64) {
    let length = Bytes(block.size().0 / 8 * 8);
    // SAFETY: the block's memory is mapped as long as the block is live, and cases wait for their graphs before they drop it.
    unsafe {
        subject.backend.start_pattern_on(subject.device, stream.stream(), block.address(), length, seed, 1)
    }
    .unwrap();
}

#[track_caller]
fn end<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream) -> Box<dyn Graph> {
    subject.backend.end_capture(subject.device, stream.stream()).expect("a valid capture")
}

fn a_capture_gets_memory_that_nothing_uses<B: TestKit>(subject: &Subject<B>) {
    let [own_, launched] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let large = super::alloc(&pool, Bytes::mib(4));
    for size in [700, 200_000, 6 << 20].map(Bytes) {
        let stream = registered(&pool, &*own_);
        // Without the capture, these would be ready for the stream's next request.
        let blocks: Vec<_> = (0..3).map(|_| stream.alloc(size).unwrap()).collect();
        blocks.iter().for_each(|block| start_behind(subject, &*own_, &large, block, 5));
        let freed: Vec<_> = blocks.iter().map(range).collect();
        drop(blocks);
        begin(subject, &*own_, CaptureMode::Relaxed);
        let graphs: Vec<_> = (0..4).map(|_| stream.alloc(size).unwrap()).collect();
        graphs.iter().for_each(|block| record(subject, &*own_, block, 9));
        let graph = end(subject, &*own_);
        // SAFETY: the blocks are live until the stream has been waited for.
        unsafe { graph.launch(launched.stream()) }.unwrap();
        if !own_.is_done().unwrap() {
            for (graph, freed) in
                graphs.iter().flat_map(|graph| freed.iter().map(move |freed| (graph, freed)))
            {
                assert!(!overlap(graph, *freed), "{size}: a graph has memory that eager work still writes");
            }
        }
        finish(subject, &*launched);
        finish(subject, &*own_);
        for block in &graphs {
            super::check(subject, block, 9);
        }
        drop((graph, graphs, stream));
    }
    drop(large);
    is_empty(&pool);
}

fn captures_are_not_spoilt<B: TestKit>(subject: &Subject<B>) {
    let blocking = || subject.backend.blocking_stream(subject.device);
    let pool = builder(subject).budget(Bytes::mib(128)).build().unwrap();
    let [one, two] = [(); 2].map(|()| own(subject));
    for mode in CaptureMode::ALL {
        for captured in [Some(own(subject)), blocking().ok()].into_iter().flatten() {
            let stream = registered(&pool, &*captured);
            // The pool has served this stream, which is now idle: nothing waits for it.
            drop(stream.alloc(Bytes(3 << 20)).unwrap());
            pool.trim(Bytes(u64::MAX)).unwrap();
            let own_block = stream.alloc(Bytes(2 << 20)).unwrap();
            let kept = [one.as_ref(), two.as_ref()].map(|own| registered(&pool, own));
            begin(subject, &*captured, mode);
            record(subject, &*captured, &own_block, 4);
            for round in 0..40 {
                // Each stream requests what the other one has freed, so that events are recorded and queried.
                for size in [2 << 20, 5 << 20] {
                    let stream = &kept[round % 2];
                    drop(stream.alloc(Bytes(size)).unwrap());
                    drop(pool.alloc(Bytes(size)).unwrap());
                }
            }
            pool.trim(Bytes::ZERO).unwrap();
            let graph = end(subject, &*captured);
            // SAFETY: the block is live until the stream has been waited for.
            unsafe { graph.launch(one.stream()) }.unwrap();
            finish(subject, &*one);
            super::check(subject, &own_block, 4);
            drop((kept, own_block, stream, graph));
        }
    }
    is_empty(&pool);
}

fn the_last_block_during_a_capture<B: TestKit>(subject: &Subject<B>) {
    let captured = own(subject);
    for mode in CaptureMode::ALL {
        let free = subject.free();
        let before = subject.backend.deferred().kept();
        let pool = pool(subject);
        let block = pool.request(Bytes(6 << 20)).stream(named(&*captured)).alloc().unwrap();
        begin(subject, &*captured, mode);
        record(subject, &*captured, &block, 6);
        drop(pool);
        drop(block);
        let kept = subject.backend.deferred().kept();
        assert!(kept >= before + Bytes(6 << 20), "{kept} are kept");
        let graph = end(subject, &*captured);
        // SAFETY: the memory is kept and still mapped.
        unsafe { graph.launch(captured.stream()) }.unwrap();
        finish(subject, &*captured);
        drop(graph);
        subject.backend.deferred().collect(&subject.backend).unwrap();
        assert_eq!(subject.backend.deferred().kept(), before);
        if super::counts_at_once(subject) {
            assert_eq!(subject.free(), free, "nothing leaks");
        }
        assert!(subject.backend.drop_log().take_last().is_none());
    }
}

fn is_capturing<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| matches!(error.detail(), Detail::Capturing { .. }))
}

fn regions_end_during_a_pools_capture<B: TestKit>(subject: &Subject<B>) {
    let (backend, captured, idle) = (&subject.backend, own(subject), WaitFor::all_devices);
    let pool = pool(subject);
    let store = BackingStore::pinned(backend, Bytes::mib(8)).unwrap();
    let region = || {
        let mut region = subject.region(2).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        region
    };
    for mode in CaptureMode::ALL {
        let before = backend.deferred().kept();
        let block = pool.request(Bytes(3 << 20)).stream(named(&*captured)).alloc().unwrap();
        let (dropped, closed, mut stays) = (region(), region(), region());
        begin(subject, &*captured, mode);
        record(subject, &*captured, &block, 6);
        drop(dropped);
        let refused = [
            is_capturing(closed.close(idle())),
            is_capturing(stays.shrink_to(Bytes::ZERO, idle())),
            is_capturing(pool.suspend("", &store, idle())),
        ];
        let kept = backend.deferred().kept();
        let graph = end(subject, &*captured);
        // Where a wait invalidates no capture, nothing is refused.
        let spoils = backend.waits_spoil_captures();
        let expected = before + if spoils { subject.units(2) } else { Bytes::ZERO };
        assert_eq!((refused, kept), ([spoils; 3], expected), "{mode:?}");
        if pool.is_suspended("").unwrap() {
            pool.resume("").unwrap();
        }
        // SAFETY: the block is live until the stream has been waited for.
        unsafe { graph.launch(captured.stream()) }.unwrap();
        finish(subject, &*captured);
        super::check(subject, &block, 6);
        drop(graph);
        assert_eq!(backend.deferred().collect(backend).unwrap(), expected - before);
        let _ = stays.shrink_to(Bytes::ZERO, idle()).unwrap();
        drop(block);
    }
    assert!(backend.drop_log().take_last().is_none());
    is_empty(&pool);
}

fn a_forgotten_stream_is_not_asked<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
    let kept = own(subject);
    let queries = |wait: &dyn Fn()| {
        let before = backend.made(Operation::QueryCapture);
        wait();
        backend.made(Operation::QueryCapture) - before
    };
    if !subject.backend.waits_spoil_captures() {
        skip("this driver waits for devices without invalidating captures");
    }
    let wait = || WaitFor::all_devices().wait(&backend, || std::iter::once(subject.device)).unwrap();
    drop(pool.request(Bytes(1000)).stream(named(&*kept)).alloc().unwrap());
    for _ in 0..2 {
        let stream = own(subject);
        let served = registered(&pool, &*stream);
        drop(served.alloc(Bytes(1000)).unwrap());
        assert_eq!(queries(&wait), 2);
        drop(served);
        drop(stream);
        assert_eq!(queries(&wait), 1, "the driver is asked about a stream that was destroyed");
    }
    pool.forget_stream(named(&*kept)).unwrap();
    assert_eq!(queries(&wait), 0);
    drop(pool.request(Bytes(1000)).stream(named(&*kept)).alloc().unwrap());
    assert_eq!(queries(&wait), 1);
    drop(pool);
    assert_eq!(queries(&wait), 0, "the pool has ended");
}

fn a_fence_beside_a_capture<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let page = page(&pool(subject));
    let pool = builder(subject).budget(Bytes(page.0 * 4)).build().unwrap();
    let (hand, mut block) = (Hand::new(), alloc(&pool, Bytes(page.0 * 3)));
    begin(subject, &*busy, CaptureMode::Relaxed);
    record(subject, &*busy, &block, 9);
    block.record_use(named(&*busy)).unwrap();
    block.free_after(hand.fence());
    hand.set(Hand::WAITED);
    let next = pool.alloc(Bytes(page.0 * 2));
    drop(end(subject, &*busy));
    assert!(next.is_err(), "the block has memory that the other stream's capture uses");
    finish(subject, &*busy);
    is_empty(&pool);
}

fn others_are_served_during_a_capture<B: TestKit>(subject: &Subject<B>) {
    let [one, captured, other] = [(); 3].map(|()| own(subject));
    let page = super::page(&pool(subject)).0;
    let called = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&called);
    let pool: Pool<B> = builder(subject)
        .budget(Bytes(4 * page))
        .on_out_of_memory(move |_, _| {
            note.store(true, Ordering::SeqCst);
            false
        })
        .build()
        .unwrap();
    // The whole budget, free, last used on another stream.
    drop(pool.request(Bytes(4 * page)).stream(named(&*one)).alloc().unwrap());
    let small = pool.tagged("captured").unwrap();
    drop(small.request(Bytes(100)).stream(named(&*captured)).alloc());
    begin(subject, &*captured, CaptureMode::Global);
    let answer = pool.request(Bytes(3 * page)).stream(named(&*other)).alloc();
    let graph = end(subject, &*captured);
    drop(graph);
    match answer {
        Ok(block) => drop(block),
        Err(error) => {
            assert!(subject.backend.queries_spoil_captures(), "{error}");
            assert!(error.is_out_of_memory() && called.load(Ordering::SeqCst), "{error}");
        }
    }
    drop(pool.request(Bytes(3 * page)).stream(named(&*other)).alloc().unwrap());
    drop(small);
    is_empty(&pool);
}
