//! Memory that waits for a fence or for other streams, without running work.

use super::{Hand, adds_up, alloc, builder, is_empty, page, pool};
use crate::case::cases;
use crate::library::flights::own;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// The memory of a freed block serves the next request of the same stream and size, at the same address.
    the_same_address_again,
    /// Memory that was freed behind a fence serves no request before the fence is done, and any request afterwards.
    a_fence_holds_memory,
    /// A failing fence keeps its memory without affecting other requests, and releases it when it reports that it is done.
    a_failing_fence_keeps_its_memory,
    /// If there is no other memory, a request waits for a fence.
    a_fence_is_waited_for_in_need,
    /// Memory that other streams have used and finished with is free for its own stream.
    record_use_lets_go,
    /// The memory of a forgotten stream is free for all streams.
    a_forgotten_stream,
}

/// The stream with a lifetime that a pool accepts.
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
        assert!(pool.find(address).is_none(), "a pending block was found");
        let others: Vec<_> = (0..9).map(|_| alloc(&pool, Bytes(size))).collect();
        assert!(others.iter().all(|other| {
            other.address() >= address + capacity || other.address() + other.capacity() <= address
        }));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().pending, capacity.0, "trimming released pending memory");
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
    // Other requests are served, and never with this memory.
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
    assert!(!block.is_used_elsewhere(), "a use on the block's own stream was recorded");
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
    // Forgetting does not wait: memory that was freed on the stream serves others once its work has ended.
    subject.backend.synchronize_stream(subject.device, own.stream()).unwrap();
    let created = pool.stats().driver_calls.create;
    let next = alloc(&pool, Bytes::mib(8));
    assert_eq!(
        pool.stats().driver_calls.create,
        created,
        "memory was created although the forgotten stream's memory is free"
    );
    drop(next);
    is_empty(&pool);
}
