//! When freed memory is reused, with work that really runs.

use super::waits::named;
use super::{alloc, builder, is_empty, pool, write_at, wrong_at};
use crate::case::cases;
use crate::library::flights::{finish, own};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Address, BackingStore, Bytes, Operation, WaitFor};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, TestKit, WorkStream};

cases! { "pool":
    /// Memory that one stream has freed serves another stream only after the first stream's work on it has ended.
    another_stream_waits_for_the_work,
    /// The stream that freed memory gets it back at once, while its work still runs.
    its_own_stream_waits_for_nothing,
    /// Memory that another stream also uses is kept until that stream has finished, even if its own stream already has.
    record_use_holds_memory,
    /// Memory that running work uses is neither unmapped nor mapped over, and the work's result is right.
    nothing_is_unmapped_under_work,
    /// Trimming waits for the work on the memory that it releases.
    trimming_waits,
    /// If the budget leaves no alternative, a request waits for memory whose work still runs.
    work_is_waited_for_in_need,
    /// A failed request returns the memory that it had claimed unchanged: other streams still wait for the work on it.
    what_a_failed_request_had,
    /// Suspending waits for the work on the blocks, and the resume restores the work's result.
    suspending_waits,
}

/// Starts work on a whole block that runs for a while.
pub(crate) fn start<B: TestKit>(subject: &Subject<B>, own: &dyn WorkStream, block: &Block<B>, seed: u64) {
    start_at(subject, own, (block.address(), block.size()), seed);
}

/// Like [`start`], at an address.
#[allow(unsafe_code)]
pub(super) fn start_at<B: TestKit>(
    subject: &Subject<B>,
    own: &dyn WorkStream,
    (address, size): (Address, Bytes),
    seed: u64,
) {
    let length = Bytes(size.0 / 8 * 8);
    for rounds in [64, 256, 512] {
        // SAFETY: the block's memory is mapped, and the pool must not reuse it until the work has ended.
        or_skip(unsafe {
            subject.backend.start_pattern_on(subject.device, own.stream(), address, length, seed, rounds)
        });
        if !own.is_done().unwrap() {
            return;
        }
    }
    panic!("the work ends at once, too fast to check anything")
}

/// Starts work on a block of any size behind long work on a large block, since small work ends at once on some runtimes.
#[allow(unsafe_code)]
pub(super) fn start_behind<B: TestKit>(
    subject: &Subject<B>,
    own: &dyn WorkStream,
    large: &Block<B>,
    block: &Block<B>,
    seed: u64,
) {
    start(subject, own, large, seed);
    let length = Bytes(block.size().0 / 8 * 8);
    // SAFETY: as above; the large block is live until the work has ended.
    or_skip(unsafe {
        subject.backend.start_pattern_on(subject.device, own.stream(), block.address(), length, seed, 1)
    });
}

pub(super) fn overlap<B: TestKit>(block: &Block<B>, range: (u64, u64)) -> bool {
    block.address().0 < range.1 && range.0 < block.address().0 + block.capacity().0
}

pub(super) fn range<B: TestKit>(block: &Block<B>) -> (u64, u64) {
    (block.address().0, block.address().0 + block.capacity().0)
}

fn another_stream_waits_for_the_work<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let block = pool.request(Bytes::mib(4)).stream(named(&*busy)).alloc().unwrap();
    start(subject, &*busy, &block, 5);
    let at = range(&block);
    drop(block);
    let next = pool.request(Bytes::mib(4)).stream(named(&*other)).alloc().unwrap();
    if !busy.is_done().unwrap() {
        assert!(!overlap(&next, at), "memory was given to another stream before the work had ended");
    }
    // Whichever memory it has, the first stream's work must not write to it.
    write_at(&subject.backend, subject.device, next.address(), next.size(), 77);
    finish(subject, &*busy);
    assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 77), 0);
    let created = pool.stats().driver_calls.create;
    let third = pool.request(Bytes::mib(4)).stream(named(&*other)).alloc().unwrap();
    assert_eq!(
        pool.stats().driver_calls.create,
        created,
        "memory was created although the work has ended and its memory is free"
    );
    drop((next, third));
    is_empty(&pool);
}

fn what_a_failed_request_had<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let backend = FaultInject::new(subject.backend.clone());
    let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
    let pages = |count| Bytes(count * pool.snapshot().page);
    let block = pool.request(pages(3)).stream(named(&*busy)).alloc().unwrap();
    start_at(subject, &*busy, (block.address(), block.size()), 5);
    drop(block);
    backend.fail_calls(&[Operation::CreateMemory]);
    pool.request(pages(5)).stream(named(&*busy)).alloc().unwrap_err();
    backend.stop();
    let next = pool.request(pages(3)).stream(named(&*other)).alloc().unwrap();
    write_at(&subject.backend, subject.device, next.address(), next.size(), 77);
    finish(subject, &*busy);
    assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 77), 0);
    drop(next);
    is_empty(&pool);
}

fn its_own_stream_waits_for_nothing<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool = pool(subject);
    for size in [2 << 20, 6 << 20] {
        let block = pool.request(Bytes(size)).stream(named(&*busy)).alloc().unwrap();
        start(subject, &*busy, &block, 5);
        let address = block.address();
        drop(block);
        let again = pool.request(Bytes(size)).stream(named(&*busy)).alloc().unwrap();
        assert_eq!(again.address(), address);
        // Later work of the same stream writes last.
        start(subject, &*busy, &again, 6);
        finish(subject, &*busy);
        assert_eq!(wrong_at(&subject.backend, subject.device, address, again.size(), 6), 0);
    }
    is_empty(&pool);
}

fn record_use_holds_memory<B: TestKit>(subject: &Subject<B>) {
    let [first, second] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let mut block = pool.request(Bytes::mib(4)).stream(named(&*first)).alloc().unwrap();
    start(subject, &*second, &block, 5);
    block.record_use(named(&*second)).unwrap();
    let at = range(&block);
    drop(block);
    let next = pool.request(Bytes::mib(4)).stream(named(&*first)).alloc().unwrap();
    if !second.is_done().unwrap() {
        assert!(!overlap(&next, at), "the block has memory that the other stream still uses");
        assert_eq!(pool.stats().pending, 4 << 20);
    }
    write_at(&subject.backend, subject.device, next.address(), next.size(), 78);
    finish(subject, &*second);
    assert_eq!(wrong_at(&subject.backend, subject.device, next.address(), next.size(), 78), 0);
    drop(next);
    pool.trim(Bytes(u64::MAX)).unwrap();
    assert_eq!(pool.stats().pending, 0);
    is_empty(&pool);
}

fn nothing_is_unmapped_under_work<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = builder(subject).budget(Bytes::mib(64)).build().unwrap();
    let kept: Vec<_> =
        (0..6).map(|_| pool.request(Bytes::mib(3)).stream(named(&*busy)).alloc().unwrap()).collect();
    // Every second block is freed while its work runs; work on the last block ends behind all of them.
    for block in &kept {
        start(subject, &*busy, block, block.address().0);
    }
    let mut left = Vec::new();
    for (index, block) in kept.into_iter().enumerate() {
        if index % 2 == 0 {
            left.push(block);
        }
    }
    // Meanwhile, requests of both streams make the pool map and remap.
    for size in [5, 9, 17, 7, 3] {
        let one = pool.request(Bytes::mib(size)).stream(named(&*other)).alloc().unwrap();
        write_at(&subject.backend, subject.device, one.address(), one.size(), size);
        let two = pool.request(Bytes::mib(size)).stream(named(&*busy)).alloc().unwrap();
        assert_eq!(wrong_at(&subject.backend, subject.device, one.address(), one.size(), size), 0);
        drop((one, two));
    }
    finish(subject, &*busy);
    for block in &left {
        let (at, seed) = (block.address(), block.address().0);
        assert_eq!(wrong_at(&subject.backend, subject.device, at, block.size(), seed), 0);
    }
    drop(left);
    is_empty(&pool);
}

fn trimming_waits<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool = pool(subject);
    let block = pool.request(Bytes::mib(8)).stream(named(&*busy)).alloc().unwrap();
    start(subject, &*busy, &block, 5);
    drop(block);
    let gone = pool.trim(Bytes::ZERO).unwrap();
    assert!(busy.is_done().unwrap(), "unmapped before the work had ended");
    assert_eq!((gone, pool.stats().held), (Bytes::mib(8), 0));
}

fn work_is_waited_for_in_need<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = builder(subject).budget(Bytes::mib(32)).build().unwrap();
    let block = pool.request(Bytes::mib(20)).stream(named(&*busy)).alloc().unwrap();
    start(subject, &*busy, &block, 5);
    drop(block);
    let next = pool.request(Bytes::mib(20)).stream(named(&*other)).alloc().unwrap();
    assert!(busy.is_done().unwrap(), "the block has memory whose work still runs");
    drop(next);
    is_empty(&pool);
}

fn suspending_waits<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let pool: Pool<B> = pool(subject).tagged("weights").unwrap();
    let block = pool.request(Bytes::mib(4)).stream(named(&*busy)).alloc().unwrap();
    let small = alloc(&pool, Bytes(5000));
    start(subject, &*busy, &block, 5);
    let store = BackingStore::pinned(&subject.backend, Bytes::mib(16)).unwrap();
    pool.suspend("weights", &store, WaitFor::all_devices()).unwrap();
    assert!(busy.is_done().unwrap(), "suspended before the work had ended");
    pool.resume("weights").unwrap();
    assert_eq!(wrong_at(&subject.backend, subject.device, block.address(), block.size(), 5), 0);
    drop((block, small));
    is_empty(&pool);
}
