//! The per-thread default stream: one stream for each thread.
#![allow(unsafe_code)] // a registration

use gpu_vmm_core::{BackingStore, Bytes, Detail, ErrorKind, Operation, Stream, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::LateWork;
use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

type Late = LateWork<HostBackend>;

const SMALL: Bytes = Bytes::kib(3);
const LARGE: Bytes = Bytes::mib(8);
/// The numbers of the streams of two threads. Stream 0 is the default stream.
const ONE: usize = 1;
const OTHER: usize = 2;

fn late(memory: Bytes) -> Late {
    LateWork::new(HostConfig::new().memory(memory).open().unwrap(), 8)
}

fn own(pool: &Pool<Late>, size: Bytes) -> Block<Late> {
    pool.request(size).stream(Stream::PER_THREAD).alloc().unwrap()
}

/// Runs `act` on a thread whose default stream is this one, and ends the thread.
fn on_thread<T: Send>(backend: &Late, stream: usize, act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        backend.own_by_thread(stream);
        act()
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap()
}

/// Allocates a block for a thread's stream, queues work on the stream, and frees the block. Returns the block's address.
fn freed_under_work(backend: &Late, pool: &Pool<Late>, stream: usize, size: Bytes) -> u64 {
    let block = own(pool, size);
    backend.queue(stream);
    block.address().0
}

#[test]
fn each_thread_reuses_its_own_memory() {
    for size in [SMALL, LARGE] {
        let backend = late(Bytes::gib(1));
        let pool = Pool::builder(&backend).build().unwrap();
        backend.own_by_thread(ONE);
        let address = freed_under_work(&backend, &pool, ONE, size);
        assert_eq!(own(&pool, size).address().0, address, "its own stream waits for nothing");
        let theirs = on_thread(&backend, OTHER, || freed_under_work(&backend, &pool, OTHER, size));
        assert_ne!(theirs, address, "another thread has memory under work");
        assert_ne!(
            pool.alloc(size).unwrap().address().0,
            address,
            "the default stream has memory under work"
        );
        assert_eq!(own(&pool, size).stream(), Stream::PER_THREAD);
        assert_eq!((backend.done(ONE), backend.done(OTHER)), (0, 0), "a request has waited");
    }
}

/// The thread records the event itself, and others ask it.
#[test]
fn finished_work_of_a_thread_frees_its_memory() {
    let backend = late(Bytes::gib(1));
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(Bytes::mib(2)).unwrap());
    let (next, step) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (told, go) = (next.0, step.1);
            backend.own_by_thread(ONE);
            told.send(freed_under_work(&backend, &pool, ONE, LARGE)).unwrap();
            go.recv().unwrap();
            // It needs more, and asks the streams.
            drop(own(&pool, LARGE * 2));
            told.send(0).unwrap();
            go.recv().unwrap();
        });
        let address = next.1.recv().unwrap();
        step.0.send(()).unwrap();
        next.1.recv().unwrap();
        backend.finish(ONE, 1);
        let created = pool.stats().driver_calls.create;
        let block = pool.alloc(LARGE).unwrap();
        assert_eq!(pool.stats().driver_calls.create, created, "memory at {address:#x} is free");
        drop(block);
        step.0.send(()).unwrap();
    });
}

/// Threads come and go: neither memory nor events nor streams add up.
#[test]
fn ended_threads_leave_nothing() {
    let backend = late(Bytes::gib(4));
    let pool = Pool::builder(&backend).build().unwrap();
    let (mut most, mut events) = (0, 0);
    for round in 0..400 {
        let size = if round % 2 == 0 { LARGE } else { SMALL };
        on_thread(&backend, ONE, || freed_under_work(&backend, &pool, ONE, size));
        if round % 3 == 0 {
            // It is freed after its thread.
            drop(on_thread(&backend, ONE, || (own(&pool, size), backend.queue(ONE)).0));
        }
        most = most.max(pool.stats().held);
        events = events.max(backend.events());
    }
    assert!(most <= LARGE.0 * 4, "{} are held", Bytes(most));
    assert!(events < 64, "{events} events");
    assert!(backend.done(ONE) > 0, "the device was never waited for");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.stats().held, backend.done(ONE)), (0, backend.queued(ONE)));
}

/// In need, memory that another thread's stream uses serves after a wait for the device, and not before.
#[test]
fn block_freed_by_another_thread_waits_for_the_device() {
    let backend = late(Bytes::gib(1));
    let pool = Pool::builder(&backend).budget(LARGE).build().unwrap();
    let block = on_thread(&backend, ONE, || own(&pool, LARGE));
    backend.queue(ONE);
    drop(block);
    assert!(pool.request(LARGE).alloc_mapped().is_none(), "memory is given out under work");
    assert_eq!(backend.done(ONE), 0);
    drop(pool.alloc(LARGE).unwrap());
    assert_eq!(backend.done(ONE), 1);
}

/// A use on a thread's stream keeps a block, also after the thread, and its number serves later threads.
#[test]
fn uses_of_ended_threads_end_with_a_wait() {
    let backend = late(Bytes::gib(1));
    let pool = Pool::builder(&backend).budget(LARGE).build().unwrap();
    for kept in [false, true] {
        let mut block = pool.alloc(LARGE).unwrap();
        let done = backend.done(ONE);
        on_thread(&backend, ONE, || {
            block.record_use(Stream::PER_THREAD).unwrap();
            backend.queue(ONE);
        });
        assert!(block.is_used_elsewhere());
        match kept {
            false => drop(block),
            true => {
                let address = pool.keep(block).unwrap();
                on_thread(&backend, ONE, || pool.record_use_at(address, Stream::PER_THREAD).unwrap());
                pool.free_at(address).unwrap();
            }
        }
        assert!(pool.request(LARGE).alloc_mapped().is_none(), "memory is given out under work");
        drop(pool.alloc(LARGE).unwrap());
        assert_eq!(backend.done(ONE), done + 1);
    }
}

/// A capture on a thread's stream gets no memory that work uses, and no other thread waits for the device meanwhile.
#[test]
fn capture_of_a_thread_is_not_broken() {
    let backend = late(Bytes::gib(1));
    let pool = Pool::builder(&backend).budget(LARGE * 2).build().unwrap();
    backend.own_by_thread(ONE);
    let address = freed_under_work(&backend, &pool, ONE, LARGE);
    backend.set_capturing(ONE, true);
    let captured = own(&pool, LARGE);
    assert_ne!(captured.address().0, address, "a graph has memory under work");
    let refused = on_thread(&backend, OTHER, || pool.alloc(LARGE).unwrap_err());
    assert!(refused.to_string().contains("captur"), "{refused}");
    let forgotten = pool.forget_stream(Stream::PER_THREAD).unwrap_err();
    assert!(matches!(forgotten.detail(), Detail::Capturing { .. }), "{forgotten}");
    backend.set_capturing(ONE, false);
    on_thread(&backend, OTHER, || pool.alloc(LARGE).map(drop).unwrap());
    pool.forget_stream(Stream::PER_THREAD).unwrap();
    drop(captured);
}

/// Suspending waits for the streams of all threads.
#[test]
fn suspending_waits_for_threads() {
    let backend = late(Bytes::gib(1));
    let pool = Pool::builder(&backend).build().unwrap();
    let block = on_thread(&backend, ONE, || own(&pool, LARGE));
    backend.queue(ONE);
    pool.suspend("", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    assert_eq!(backend.done(ONE), 1);
    pool.resume("").unwrap();
    drop(block);
}

/// Host memory has no such stream, and each call says so.
#[test]
fn backend_without_thread_streams_is_refused() {
    let pool = Pool::builder(&HostConfig::new().memory(LARGE * 8).open().unwrap()).build().unwrap();
    for size in [SMALL, LARGE] {
        // A free block of the size, which a thread cache may hold.
        drop(pool.alloc(size).unwrap());
        let request = || pool.request(size).stream(Stream::PER_THREAD);
        let error = request().alloc().map(drop).unwrap_err();
        assert!(error.to_string().contains("0x2 is not a stream of the host backend"), "{error}");
        assert!(request().alloc_cached().is_none() && request().alloc_mapped().is_none());
        let mut block = pool.alloc(size).unwrap();
        assert_eq!(block.record_use(Stream::PER_THREAD).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(!block.is_used_elsewhere());
        let address = pool.keep(block).unwrap();
        let error = pool.record_use_at(address, Stream::PER_THREAD).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        pool.free_at(address).unwrap();
    }
}

#[test]
fn thread_stream_is_not_registered() {
    let pool = Pool::builder(&late(Bytes::mib(64))).build().unwrap();
    // SAFETY: it is refused.
    let error = unsafe { pool.register_stream(Stream::PER_THREAD) }.map(drop).unwrap_err();
    assert_eq!(
        (error.operation(), error.kind()),
        (Operation::RegisterStream, ErrorKind::Unsupported),
        "{error}"
    );
    pool.forget_stream(Stream::PER_THREAD).unwrap();
}

/// Asks a pool for memory when a thread's variables are destroyed.
struct AtEnd {
    pool: Pool<Late>,
    told: mpsc::Sender<String>,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        let answer = self.pool.request(SMALL).stream(Stream::PER_THREAD).alloc();
        self.told.send(answer.map_or_else(|error| error.to_string(), |_| "served".to_owned())).unwrap();
    }
}

#[test]
fn ending_thread_is_refused() {
    thread_local! {
        static LAST: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let backend = late(Bytes::gib(1));
    let [used, unused] = [(); 2].map(|()| Pool::builder(&backend).build().unwrap());
    let (told, tell) = mpsc::channel();
    on_thread(&backend, ONE, || {
        // First: what was made last is destroyed first.
        LAST.with_borrow_mut(|last| *last = Some(AtEnd { pool: unused, told }));
        drop(own(&used, SMALL));
    });
    let answer = tell.recv().unwrap();
    assert!(answer.contains("the thread is ending"), "{answer}");
}
