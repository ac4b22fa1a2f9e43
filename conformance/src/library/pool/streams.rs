//! The streams that a pool serves: registered, forgotten, of another device, and the per-thread default stream.

use super::order::{overlap, range, start, start_behind};
use super::waits::named;
use super::{MIN, alloc, builder, is_empty, page, pool, write_at, wrong_at};
use crate::case::cases;
use crate::library::flights::{finish, own, registered, rounds};
use crate::library::tools::{idle, refused};
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{BackingStore, Bytes, Detail, Vendor};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{TestKit, WorkStream};
use std::sync::Barrier;
use std::thread;

cases! { "pool":
    /// Memory that one thread freed on its per-thread default stream serves another thread's only after the work on it has ended, and the
    /// thread itself at once.
    the_stream_of_each_thread,
    /// Memory that a thread's per-thread default stream used before the thread ended serves others after the work has ended.
    the_stream_of_an_ended_thread,
    /// A pool can register and forget more streams, one after the other, than it has numbers for.
    streams_come_and_go,
    /// A stream that has the handle of a forgotten stream is treated as a different stream.
    a_handle_comes_again,
    /// A block belongs to the stream that requested it, even if its memory came from a forgotten stream with the same number.
    a_number_comes_again,
    /// A stream that takes a forgotten stream's number leaves the memory that the forgotten one has freed to all streams.
    a_number_comes_again_over_free_memory,
    /// Memory that a tag freed on a stream with the number of a forgotten stream serves no other tag that had used the forgotten one.
    a_number_comes_again_for_another_tag,
    /// Memory that a forgotten stream has used serves other streams after that stream's work has ended, and not before.
    a_stream_that_ends_under_work,
    /// A block that outlives its stream's registration is free when the stream's work has ended.
    a_block_outlives_its_stream,
    /// Forgetting a stream that is registered has no effect.
    a_registered_stream_stays,
    /// A stream that is registered twice is served until both registrations have ended.
    registered_twice,
    /// A stream that is registered again while its last registration ends is served, and waited for.
    a_registration_begins_as_one_ends,
    /// Two threads that forget one stream at the same time leave the stream that gets its number.
    a_stream_is_forgotten_by_two_threads,
    /// A stream of one pool refuses to record a use of another pool's block.
    a_block_of_another_pool,
    /// A stream of another device keeps the memory that it has used, and blocks no other operation.
    a_stream_of_another_device,
}

/// Allocates a block for the calling thread's default stream and starts long work on it.
#[allow(unsafe_code)]
fn with_work<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>, seed: u64) -> Block<B> {
    let Some(stream) = subject.backend.per_thread_stream() else {
        skip("the backend has no handle for the per-thread default stream");
    };
    let block = pool.request(Bytes::mib(4)).stream(stream).alloc().unwrap();
    assert_eq!(block.stream(), stream);
    // SAFETY: the block's memory is mapped, and the pool must not reuse it until the work has ended.
    or_skip(unsafe {
        subject.backend.start_pattern_on(
            subject.device,
            stream,
            block.address(),
            block.size(),
            seed,
            rounds(subject) * 4,
        )
    });
    block
}

fn the_stream_of_each_thread<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let block = with_work(subject, &pool, 5);
    let (stream, at) = (block.stream(), range(&block));
    drop(block);
    let again = pool.request(Bytes::mib(4)).stream(stream).alloc().unwrap();
    assert_eq!(range(&again), at, "the thread's own stream has waited");
    drop(again);
    let next = thread::scope(|scope| {
        let next = || {
            let next = pool.request(Bytes::mib(4)).stream(stream).alloc().unwrap();
            // Its work runs beside that of the first thread.
            write_at(&subject.backend, subject.device, next.address(), next.size(), 77);
            next
        };
        scope.spawn(next).join().unwrap()
    });
    subject.backend.synchronize_stream(subject.device, stream).unwrap();
    assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 77), 0);
    let mut used = alloc(&pool, Bytes(5000));
    used.record_use(stream).unwrap();
    assert!(used.is_used_elsewhere());
    // SAFETY: it is refused.
    #[allow(unsafe_code)]
    let registered = unsafe { pool.register_stream(stream) }.map(drop);
    let error = registered.unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    drop((used, next));
    is_empty(&pool);
}

fn the_stream_of_an_ended_thread<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).budget(page(&pool(subject)).max(Bytes::mib(4))).build().unwrap();
    for seed in 0..4 {
        // It skips the case on a backend without such streams.
        let kept = thread::scope(|scope| scope.spawn(|| with_work(subject, &pool, seed)).join());
        let kept = kept.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        drop(kept);
        // The budget has room for one block: the request waits for the work.
        let next = alloc(&pool, Bytes::mib(4));
        write_at(&subject.backend, subject.device, next.address(), next.size(), 77);
        subject.backend.synchronize(subject.device).unwrap();
        assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 77), 0);
    }
    is_empty(&pool);
}

/// One more than the pool's stream numbers on host memory, where streams are cheap; otherwise 200.
fn many<B: TestKit>(subject: &Subject<B>) -> usize {
    if subject.backend.vendor() == Vendor::Host { usize::from(u16::MAX) + 1 } else { 200 }
}

fn streams_come_and_go<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let other = pool.tagged("other").unwrap();
    for number in 0..many(subject) {
        let own = own(subject);
        let pool = if number % 3 == 0 { &other } else { &pool };
        let stream = registered(pool, &*own);
        let blocks = [100, 70_000].map(|size| stream.alloc(Bytes(size)).unwrap());
        assert!(blocks.iter().all(|block| block.stream().as_raw() == own.stream().as_raw()));
        drop((blocks, stream));
        if number % 64 == 0 {
            // A stream that is known only by its use, and is then forgotten.
            drop(pool.request(Bytes(3 << 20)).stream(named(&*own)).alloc().unwrap());
            pool.forget_stream(named(&*own)).unwrap();
        }
    }
    let streams: std::collections::BTreeSet<u64> = pool
        .snapshot()
        .spaces
        .iter()
        .flat_map(|space| space.blocks.iter().map(|block| block.stream))
        .collect();
    assert!(streams.len() < 50, "{} streams are known at the end", streams.len());
    is_empty(&pool);
}

fn a_handle_comes_again<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let pool = pool(subject);
    let large = alloc(&pool, Bytes::mib(4));
    for size in [200, 300_000, 5 << 20] {
        let first = registered(&pool, &*own);
        let live = first.alloc(Bytes(size)).unwrap();
        let freed = first.alloc(Bytes(size)).unwrap();
        start_behind(subject, &*own, &large, &freed, 3);
        let at = range(&freed);
        drop(freed);
        drop(first);
        // The same handle, registered again, is a new stream to the pool: the order of its earlier work is unknown.
        let second = registered(&pool, &*own);
        let next = second.alloc(Bytes(size)).unwrap();
        if !own.is_done().unwrap() {
            assert!(!overlap(&next, at), "of {size}");
        }
        let lives = range(&live);
        drop(live);
        let after = second.alloc(Bytes(size)).unwrap();
        if !own.is_done().unwrap() {
            assert!(!overlap(&after, lives), "of {size}: the block was freed after its stream was forgotten");
        }
        assert!(after.stream().as_raw() == own.stream().as_raw());
        finish(subject, &*own);
        drop((next, after, second));
    }
    drop(large);
    is_empty(&pool);
}

fn a_number_comes_again<B: TestKit>(subject: &Subject<B>) {
    let [gone, next] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    for size in [400, 70_000] {
        let first = registered(&pool, &*gone);
        let block = first.alloc(Bytes(size)).unwrap();
        let at = block.address();
        drop(first);
        finish(subject, &*gone);
        pool.wait_for_uses().unwrap();
        // The block is put into the thread cache, from which no other request gets it before the number is reused.
        drop(block);
        let second = registered(&pool, &*next);
        let mut blocks = Vec::new();
        while blocks.len() < 200 && blocks.last().is_none_or(|block: &Block<B>| block.address() != at) {
            blocks.push(second.alloc(Bytes(size)).unwrap());
            assert_eq!(blocks[blocks.len() - 1].stream(), named(&*next), "of {size}");
        }
        assert!(blocks.len() < 200, "of {size}: the freed memory is not reused");
        drop((blocks, second));
        // The number is free again, for the first stream of the next size.
        finish(subject, &*next);
    }
    is_empty(&pool);
}

fn a_number_comes_again_for_another_tag<B: TestKit>(subject: &Subject<B>) {
    let [gone, next] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let [red, blue] = ["red", "blue"].map(|tag| pool.tagged(tag).unwrap());
    for size in [400, 70_000] {
        let first = registered(&red, &*gone);
        drop(first.alloc(Bytes(size)).unwrap());
        drop(first);
        finish(subject, &*gone);
        pool.wait_for_uses().unwrap();
        let (reds, blues) = (registered(&red, &*next), registered(&blue, &*next));
        // Each tag has blocks in the thread cache, and takes its own.
        drop([blues.alloc(Bytes(size)).unwrap(), blues.alloc(Bytes(size)).unwrap()]);
        for (stream, tag) in [(&reds, "red"), (&blues, "blue"), (&reds, "red")] {
            let block = stream.alloc(Bytes(size)).unwrap();
            assert_eq!(&*pool.find(block.address()).unwrap().tag, tag, "of {size}");
        }
        drop((reds, blues));
        finish(subject, &*next);
    }
    is_empty(&pool);
}

fn a_stream_that_ends_under_work<B: TestKit>(subject: &Subject<B>) {
    let (busy, other) = (own(subject), own(subject));
    let pool = pool(subject);
    let large = alloc(&pool, Bytes::mib(4));
    for size in [400, 200_000, 4 << 20] {
        let (stream, others) = (registered(&pool, &*busy), registered(&pool, &*other));
        let block = stream.alloc(Bytes(size)).unwrap();
        start_behind(subject, &*busy, &large, &block, 5);
        let at = range(&block);
        drop((block, stream));
        // The forgotten stream's number is not reused meanwhile.
        let third = own(subject);
        let thirds = registered(&pool, &*third);
        for stream in [&others, &thirds] {
            let next = stream.alloc(Bytes(size)).unwrap();
            if !busy.is_done().unwrap() {
                assert!(
                    !overlap(&next, at),
                    "of {size}: the memory was given to another stream before the work had ended"
                );
            }
            write_at(&subject.backend, subject.device, next.address(), next.size(), 77);
            finish(subject, &*busy);
            assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 77), 0);
        }
        drop((others, thirds));
    }
    drop(large);
    is_empty(&pool);
}

fn a_block_outlives_its_stream<B: TestKit>(subject: &Subject<B>) {
    let (busy, other) = (own(subject), own(subject));
    let pool = pool(subject);
    let large = alloc(&pool, Bytes::mib(4));
    for size in [400, 200_000, 4 << 20] {
        let stream = registered(&pool, &*busy);
        let block = stream.alloc(Bytes(size)).unwrap();
        start_behind(subject, &*busy, &large, &block, 5);
        drop(stream);
        let at = range(&block);
        // Blocks that are freed meanwhile have nothing to do with that stream.
        drop(alloc(&pool, Bytes::mib(6)));
        drop(block);
        let next = pool.request(Bytes(size)).stream(named(&*other)).alloc().unwrap();
        if !busy.is_done().unwrap() {
            assert!(
                !overlap(&next, at),
                "of {size}: the memory was reused before the stream's work had ended"
            );
        }
        finish(subject, &*busy);
        pool.trim(Bytes::ZERO).unwrap();
        let stats = pool.stats();
        assert_eq!(
            (stats.kept, stats.cached),
            (0, 0),
            "of {size}: memory is still held although the work has ended"
        );
        drop(next);
    }
    pool.forget_stream(named(&*other)).unwrap();
    drop(large);
    is_empty(&pool);
}

fn a_number_comes_again_over_free_memory<B: TestKit>(subject: &Subject<B>) {
    let (first, second) = (own(subject), own(subject));
    let pool = pool(subject);
    let size = page(&pool);
    let stream = registered(&pool, &*first);
    drop(stream.alloc(size).unwrap());
    drop(stream);
    finish(subject, &*first);
    pool.wait_for_uses().unwrap();
    let stream = registered(&pool, &*second);
    let held = pool.stats().held;
    // The default stream has freed nothing, so it gets what the forgotten stream has freed.
    let block = alloc(&pool, size);
    assert_eq!(pool.stats().held, held, "the memory still counts as used by a stream that is idle");
    drop((block, stream));
    is_empty(&pool);
}

fn a_registered_stream_stays<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool = pool(subject);
    let stream = registered(&pool, &*busy);
    let block = stream.alloc(Bytes::mib(4)).unwrap();
    start(subject, &*busy, &block, 5);
    let address = block.address();
    drop(block);
    pool.forget_stream(named(&*busy)).unwrap();
    let next = stream.alloc(Bytes::mib(4)).unwrap();
    assert_eq!(next.address(), address, "the stream did not get back the memory that it freed");
    finish(subject, &*busy);
    drop((next, stream));
    is_empty(&pool);
}

/// The number of times that two threads meet. A pool that looked a stream's number up, and acted on it later, failed in a tenth of
/// them on an H100.
const MEETINGS: usize = 60;

/// Calls both at the same time, the second one a little later in each round.
fn meet<T: Send>(round: usize, one: impl FnOnce(), other: impl FnOnce() -> T + Send) -> T {
    let begin = Barrier::new(2);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            begin.wait();
            (0..round % 20 * 20).for_each(|_| std::hint::spin_loop());
            other()
        });
        begin.wait();
        one();
        other.join().unwrap()
    })
}

/// Frees a block of the default stream that a stream uses, and checks that no request gets it before the stream's work has ended.
fn is_waited_for<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>, busy: &dyn WorkStream) {
    let mut block = alloc(pool, Bytes::mib(4));
    block.record_use(named(busy)).unwrap();
    start(subject, busy, &block, 3);
    let at = range(&block);
    drop(block);
    let next = alloc(pool, Bytes::mib(4));
    assert!(
        busy.is_done().unwrap() || !overlap(&next, at),
        "memory was reused while a stream that the pool serves uses it"
    );
    finish(subject, busy);
}

#[allow(unsafe_code)]
fn a_registration_begins_as_one_ends<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool = pool(subject);
    let stream = named(&*busy);
    // SAFETY: the stream lives until the end of the case.
    let register = || unsafe { pool.register_stream(stream) }.unwrap();
    for round in 0..MEETINGS {
        let first = register();
        let second = meet(round, || drop(first), register);
        is_waited_for(subject, &pool, &*busy);
        drop(second);
    }
    is_empty(&pool);
}

fn a_stream_is_forgotten_by_two_threads<B: TestKit>(subject: &Subject<B>) {
    let (first, second) = (own(subject), own(subject));
    let pool = pool(subject);
    let (forgotten, served) = (named(&*first), named(&*second));
    let size = Bytes::mib(4);
    for round in 0..MEETINGS {
        drop(pool.request(size).stream(forgotten).alloc().unwrap());
        let forget = || pool.forget_stream(forgotten).unwrap();
        let block = meet(round, forget, || {
            forget();
            pool.request(size).stream(served).alloc().unwrap()
        });
        start(subject, &*second, &block, 3);
        let at = range(&block);
        drop(block);
        let next = alloc(&pool, size);
        assert!(
            second.is_done().unwrap() || !overlap(&next, at),
            "memory was reused while a stream that no call has forgotten uses it"
        );
        finish(subject, &*second);
        pool.forget_stream(served).unwrap();
    }
    is_empty(&pool);
}

fn registered_twice<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool = pool(subject);
    let (first, second) = (registered(&pool, &*busy), registered(&pool, &*busy));
    let mut block = alloc(&pool, Bytes::mib(4));
    drop(first);
    start(subject, &*busy, &block, 5);
    second.record_use(&mut block).unwrap();
    let at = range(&block);
    drop(block);
    // Enough requests to make the pool poll its streams.
    let next: Vec<_> = (0..40).map(|_| alloc(&pool, Bytes::mib(4))).collect();
    let is_taken = next.iter().any(|next| overlap(next, at));
    assert!(
        !is_taken || busy.is_done().unwrap(),
        "memory was reused while the stream that is still registered uses it"
    );
    finish(subject, &*busy);
    drop((next, second));
    is_empty(&pool);
}

fn a_block_of_another_pool<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let (one, other) = (pool(subject), pool(subject));
    let stream = registered(&one, &*own);
    let mut block = alloc(&other, MIN);
    refused!(@RecordUse stream.record_use(&mut block), Detail::ForeignHandle { .. }, "another pool, not to the pool of the stream");
    assert!(!block.is_used_elsewhere());
    drop((block, stream));
    is_empty(&other);
}

fn a_stream_of_another_device<B: TestKit>(subject: &Subject<B>) {
    let (_, other) = subject.two_devices();
    let theirs = subject.backend.own_stream(other).unwrap();
    let pool = pool(subject);
    let size = page(&pool);
    let mut block = alloc(&pool, size);
    block.record_use(named(&*theirs)).unwrap();
    let at = range(&block);
    drop(block);
    for _ in 0..3 {
        let next = alloc(&pool, size);
        assert!(
            !overlap(&next, at) || pool.stats().pending == 0,
            "the memory was reused without a wait for the other device's stream"
        );
        pool.suspend("", &BackingStore::nothing(), idle()).unwrap();
        pool.resume("").unwrap();
        pool.trim(Bytes(u64::MAX)).unwrap();
    }
    pool.forget_stream(named(&*theirs)).unwrap();
    // If necessary, the pool waits for the devices, and the memory is free again.
    is_empty(&pool);
}
