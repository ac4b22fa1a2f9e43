//! Memory that waits for a fence or for other streams, where no device need work for it.

use super::{Hand, adds_up, alloc, builder, is_empty, page, pool};
use crate::case::cases;
use crate::library::flights::own;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// What was freed serves the next request of the same stream and size at the same address.
    the_same_address_again,
    /// Memory that was freed behind a fence serves nobody before the fence is done, and everybody afterwards.
    a_fence_holds_memory,
    /// A fence that fails keeps its memory, refuses nobody else's request, and lets go once it answers.
    a_failing_fence_keeps_its_memory,
    /// Where there is no other memory, a fence is waited for.
    a_fence_is_waited_for_in_need,
    /// What other streams have used, and have done with, comes free for its own stream.
    record_use_lets_go,
    /// A stream that is forgotten leaves its memory to all.
    a_forgotten_stream,
}

/// A stream of one's own under a name that a pool takes.
#[allow(unsafe_code)]
pub(super) fn named(own: &dyn gpu_vmm_testkit::WorkStream) -> Stream<'static> {
    // SAFETY: cases drop their pools before their streams.
    unsafe { Stream::from_raw(own.stream().as_raw()) }
}

fn the_same_address_again<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let pool = pool(subject);
    for stream in [Stream::DEFAULT, named(&*own)] {
        for size in [100, 5000, 100_000, 1 << 20, 3 << 20, 7 << 20] {
            let first = pool.request(Bytes(size)).stream(stream).alloc().unwrap();
            assert_eq!(first.stream(), stream);
            let address = first.address();
            let mapped = |pool: &gpu_vmm_pool::Pool<B>| {
                let calls = pool.stats().driver_calls;
                [calls.create, calls.map, calls.unmap, calls.set_access]
            };
            let calls = mapped(&pool);
            drop(first);
            let again = pool.request(Bytes(size)).stream(stream).alloc().unwrap();
            assert_eq!((again.address(), mapped(&pool)), (address, calls), "of {size}");
        }
    }
    is_empty(&pool);
}

fn a_fence_holds_memory<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    for size in [1000, 200_000, 6 << 20] {
        let (hand, block) = (Hand::new(), alloc(&pool, Bytes(size)));
        let (address, capacity) = (block.address(), block.capacity());
        block.free_after(hand.fence());
        let stats = adds_up(&pool);
        assert_eq!((stats.pending, stats.live), (capacity.0, 0));
        assert!(pool.find(address).is_none(), "nobody has it");
        let others: Vec<_> = (0..9).map(|_| alloc(&pool, Bytes(size))).collect();
        assert!(others.iter().all(|other| {
            other.address() >= address + capacity || other.address() + other.capacity() <= address
        }));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().pending, capacity.0, "trimming does not free it");
        drop(others);
        hand.set(Hand::DONE);
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(adds_up(&pool).pending, 0);
        is_empty(&pool);
    }
}

fn a_failing_fence_keeps_its_memory<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let (hand, block) = (Hand::new(), alloc(&pool, Bytes::mib(4)));
    let (address, size) = (block.address(), block.capacity());
    hand.set(Hand::FAILING);
    block.free_after(hand.fence());
    // Others get theirs; what it keeps is theirs at no time.
    for _ in 0..3 {
        let other = pool.alloc(Bytes::mib(4)).unwrap();
        assert!(other.address() >= address + size || other.address() + other.capacity() <= address);
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(adds_up(&pool).pending, size.0);
    hand.set(Hand::DONE);
    is_empty(&pool);
}

fn a_fence_is_waited_for_in_need<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).budget(Bytes(page.0 * 4)).build().unwrap();
    let (hand, block) = (Hand::new(), alloc(&pool, Bytes(page.0 * 3)));
    block.free_after(hand.fence());
    let error = pool.alloc(Bytes(page.0 * 2)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(pool.stats().pending, page.0 * 3);
    hand.set(Hand::WAITED);
    let next = alloc(&pool, Bytes(page.0 * 2));
    assert_eq!((adds_up(&pool).pending, pool.stats().held <= page.0 * 4), (0, true));
    drop(next);
    is_empty(&pool);
}

fn record_use_lets_go<B: TestKit>(subject: &Subject<B>) {
    let streams = [(); 3].map(|()| own(subject));
    let pool = pool(subject);
    let mut block = alloc(&pool, Bytes::mib(4));
    let address = block.address();
    block.record_use(Stream::DEFAULT).unwrap();
    assert!(!block.is_used_elsewhere(), "its own stream is no other");
    streams.iter().for_each(|own| block.record_use(named(&**own)).unwrap());
    drop(block);
    for own in &streams {
        subject.backend.synchronize_stream(subject.device, own.stream()).unwrap();
    }
    pool.trim(Bytes(u64::MAX)).unwrap();
    assert_eq!(adds_up(&pool).pending, 0);
    assert_eq!(alloc(&pool, Bytes::mib(4)).address(), address);
    is_empty(&pool);
}

fn a_forgotten_stream<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let pool = pool(subject);
    let block = pool.request(Bytes::mib(8)).stream(named(&*own)).alloc().unwrap();
    drop(block);
    pool.forget_stream(named(&*own)).unwrap();
    // Forgetting waits for nothing: what was freed on it serves others once its work is done.
    subject.backend.synchronize_stream(subject.device, own.stream()).unwrap();
    let created = pool.stats().driver_calls.create;
    let next = alloc(&pool, Bytes::mib(8));
    assert_eq!(pool.stats().driver_calls.create, created, "all of it serves another stream");
    drop(next);
    is_empty(&pool);
}
