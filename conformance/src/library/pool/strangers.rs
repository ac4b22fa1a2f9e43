//! Failures of one caller must not affect others, and no thread waits while it holds the pool's locks.

use super::order::{start, start_at};
use super::waits::named;
use super::{Hand, builder, is_empty, page, pool};
use crate::case::cases;
use crate::library::flights::{finish, own};
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail, Error, Operation, Result};
use gpu_vmm_pool::{Fence, Pool};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

cases! { "pool":
    /// Eight threads are served while all calls of one kind fail: creating, recording, querying or waiting for events,
    /// capture queries, and fences.
    failing_strangers,
    /// Memory whose stream cannot be waited for serves no request until that stream is known to have finished.
    a_wait_that_fails,
    /// The pool waits for a fence without holding its locks, so the thread that sets the fence can use the pool first.
    pools_user_sets_its_fence,
    /// The pool waits for a stream without holding its locks, so other threads are served meanwhile.
    others_are_served_while_one_waits,
}

const THREADS: usize = 8;
const ROUNDS: usize = 60;

/// The sets of calls that fail, one set after the other.
const CALLS: [&[Operation]; 6] = [
    &[Operation::CreateEvent],
    &[Operation::RecordEvent],
    &[Operation::QueryEvent],
    &[Operation::WaitForEvent],
    &[Operation::QueryCapture],
    &[
        Operation::CreateEvent,
        Operation::RecordEvent,
        Operation::QueryEvent,
        Operation::WaitForEvent,
        Operation::QueryCapture,
    ],
];

fn failing_strangers<B: TestKit>(subject: &Subject<B>) {
    for calls in CALLS {
        let backend = FaultInject::new(subject.backend.clone());
        let streams: Vec<_> = (0..THREADS).map(|_| own(subject)).collect();
        let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
        let hand = Hand::new();
        hand.set(Hand::FAILING);
        // Some free memory of each stream is recorded in the pool, so that it is queried.
        for own in &streams {
            drop(pool.request(Bytes(3 << 20)).stream(named(&**own)).alloc().unwrap());
        }
        backend.fail_calls(calls);
        let begin = Barrier::new(THREADS);
        thread::scope(|scope| {
            for (number, own) in streams.iter().enumerate() {
                let (pool, hand, begin, streams) = (&pool, &hand, &begin, &streams);
                scope.spawn(move || {
                    begin.wait();
                    for round in 0..ROUNDS {
                        let size = Bytes([100, 40_000, 1 << 20, 3 << 20][(number + round) % 4]);
                        let mut block = pool.request(size).stream(named(&**own)).alloc().unwrap();
                        match round % 8 {
                            2 => block.record_use(named(&*streams[(number + 1) % THREADS])).unwrap(),
                            5 => {
                                block.free_after(hand.fence());
                                continue;
                            }
                            6 => drop(pool.trim(Bytes::mib(64)).unwrap()),
                            _ => {}
                        }
                        drop(block);
                    }
                });
            }
        });
        backend.stop();
        subject.backend.drop_log().take_last();
        hand.set(Hand::DONE);
        is_empty(&pool);
        drop(pool);
        assert_eq!(backend.live(), Default::default());
    }
}

/// A fence that the program sets; waiting blocks until it is set.
#[derive(Debug)]
struct Flag(Arc<AtomicBool>);

impl Fence for Flag {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn wait(&self) -> Result<()> {
        let began = Instant::now();
        while !self.0.load(Ordering::SeqCst) {
            if began.elapsed() > Duration::from_secs(20) {
                let reason = "the thread that sets it waits for the pool".to_owned();
                return Err(Error::new(Operation::WaitForEvent, Detail::Unsupported { reason }));
            }
            thread::yield_now();
        }
        Ok(())
    }
}

fn a_wait_that_fails<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let backend = FaultInject::new(subject.backend.clone());
    let size = page(&pool(subject)).0 * 2;
    let builder = Pool::builder(&backend).device(subject.device).budget(Bytes(size));
    let pool = builder.build().unwrap();
    let block = pool.request(Bytes(size)).stream(named(&*busy)).alloc().unwrap();
    start_at(subject, &*busy, (block.address(), block.size()), 5);
    drop(block);
    backend.fail_calls(&[Operation::WaitForEvent, Operation::WaitForDevice]);
    let answer = pool.request(Bytes(size)).stream(named(&*other)).alloc();
    backend.stop();
    subject.backend.drop_log().take_last();
    match answer {
        Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        Ok(_) => assert!(
            busy.is_done().unwrap(),
            "the block was given to another stream before the work had ended"
        ),
    }
    finish(subject, &*busy);
    drop(pool.request(Bytes(size)).stream(named(&*other)).alloc().unwrap());
    is_empty(&pool);
}

fn pools_user_sets_its_fence<B: TestKit>(subject: &Subject<B>) {
    let size = page(&pool(subject)).0;
    let pool = builder(subject).budget(Bytes(4 * size)).build().unwrap();
    for _ in 0..3 {
        let set = Arc::new(AtomicBool::new(false));
        pool.alloc(Bytes(3 * size)).unwrap().free_after(Arc::new(Flag(Arc::clone(&set))));
        thread::scope(|scope| {
            let setter = pool.clone();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(30));
                // As in a program that prints statistics.
                assert_eq!(setter.stats().pending, 3 * size);
                assert_eq!(setter.snapshot().page, size);
                drop(setter.alloc(Bytes(size)).unwrap());
                set.store(true, Ordering::SeqCst);
            });
            drop(pool.alloc(Bytes(2 * size)).unwrap());
        });
    }
    is_empty(&pool);
}

fn others_are_served_while_one_waits<B: TestKit>(subject: &Subject<B>) {
    /// A busy machine may delay the thread once; a lock delays it every time.
    const TRIES: usize = 5;
    let [busy, other] = [(); 2].map(|()| own(subject));
    let size = page(&pool(subject)).0;
    let pool = builder(subject).budget(Bytes(4 * size)).build().unwrap();
    let kept = pool.request(Bytes(size)).stream(named(&*other)).alloc().unwrap();
    let served = (0..TRIES).any(|_| {
        let block = pool.request(Bytes(3 * size)).stream(named(&*busy)).alloc().unwrap();
        start(subject, &*busy, &block, 5);
        drop(block);
        let began = Instant::now();
        let longest = thread::scope(|scope| {
            let waiting =
                scope.spawn(|| drop(pool.request(Bytes(2 * size)).stream(named(&*other)).alloc().unwrap()));
            let mut longest = Duration::ZERO;
            while !waiting.is_finished() {
                let begun = Instant::now();
                assert!(pool.stats().live_blocks >= 1);
                longest = longest.max(begun.elapsed());
            }
            waiting.join().unwrap();
            longest
        });
        finish(subject, &*busy);
        longest < began.elapsed() / 2
    });
    assert!(served, "a query took as long as the work that another thread waited for");
    drop(kept);
    is_empty(&pool);
}
