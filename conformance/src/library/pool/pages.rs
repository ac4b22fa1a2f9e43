//! Several streams, or several tags, in one page of a pool's memory.

use super::order::{overlap, range, start, start_behind};
use super::tags::is_zero;
use super::waits::named;
use super::{Hand, adds_up, alloc, builder, is_empty, page, pool, write, write_at, wrong_at};
use crate::case::cases;
use crate::library::flights::{finish, own};
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, TestKit, WorkStream};

cases! { "pool":
    /// A slab whose last block is freed by a fence waits for the work on the blocks that were freed before.
    a_slab_freed_by_a_fence,
    /// Addresses that several streams have used are unmapped only after all of these streams have finished.
    addresses_of_two_streams,
    /// A page that is freed in parts waits for the stream of each part.
    a_page_freed_in_parts,
    /// A free part of a page serves another stream only after the work on that part has ended, even if the rest of the page
    /// belongs to that stream.
    a_free_part_of_a_page,
    /// An event covers the frees before it, and none after it.
    an_event_tells_of_what_came_before,
    /// A block that another stream has used waits for its own stream too.
    own_stream_is_awaited_after_another,
    /// Memory is scrubbed for another tag only after the old tag's work has ended, also on the same stream.
    scrubbed_behind_the_work,
    /// Memory that returns to a tag after another tag has used it is scrubbed, although it is already mapped there.
    scrubbed_when_it_comes_back,
    /// If scrubbing memory failed, the next request scrubs it.
    scrubbed_when_tried_again,
}

/// Writes to blocks that reuse another stream's memory, and checks that the work of that stream does not overwrite them.
#[track_caller]
fn out_of_reach<B: TestKit>(subject: &Subject<B>, busy: &dyn WorkStream, blocks: &[Block<B>]) {
    blocks.iter().for_each(|block| write(subject, block, 77));
    finish(subject, busy);
    for block in blocks {
        let wrong = wrong_at(&subject.backend, subject.device, block.address(), block.size(), 77);
        assert_eq!(wrong, 0, "work of another stream has written to {} at {}", block.size(), block.address());
    }
}

#[track_caller]
fn on<B: TestKit>(pool: &Pool<B>, stream: &dyn WorkStream, size: u64) -> Block<B> {
    pool.request(Bytes(size)).stream(named(stream)).alloc().unwrap()
}

fn a_slab_freed_by_a_fence<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let elsewhere = pool(subject);
    let large = on(&elsewhere, &*busy, 4 << 20);
    let size = page(&elsewhere);
    let pool = builder(subject).budget(Bytes(size.0 * 2)).build().unwrap();
    let [last, first] = [(); 2].map(|()| on(&pool, &*busy, 64 << 10));
    start_behind(subject, &*busy, &large, &first, 5);
    drop(first);
    let hand = Hand::new();
    last.free_after(hand.fence());
    // This request collects the thread caches, so that one block of the slab is left.
    let whole = on(&pool, &*other, size.0);
    hand.set(Hand::DONE);
    let next = on(&pool, &*other, size.0);
    out_of_reach(subject, &*busy, &[next]);
    drop((whole, large));
    is_empty(&pool);
}

fn addresses_of_two_streams<B: TestKit>(subject: &Subject<B>) {
    let [busy, other, third] = [(); 3].map(|()| own(subject));
    let least = page(&pool(subject)).0;
    let pool = builder(subject).page(Bytes(least * 4)).build().unwrap();
    // Both blocks share a page.
    let (one, two) = (on(&pool, &*busy, least * 3 / 2), on(&pool, &*other, least * 5 / 2));
    start(subject, &*busy, &one, 5);
    let at = range(&one);
    drop(one);
    drop(two);
    let next = [(); 3].map(|()| {
        let next = on(&pool, &*third, least * 8);
        finish(subject, &*other);
        next
    });
    let is_taken = next.iter().any(|next| overlap(next, at));
    assert!(
        !is_taken || busy.is_done().unwrap(),
        "addresses were mapped again before the work on them had ended"
    );
    out_of_reach(subject, &*busy, &next);
    drop(next);
    is_empty(&pool);
}

fn a_page_freed_in_parts<B: TestKit>(subject: &Subject<B>) {
    let [busy, other, third] = [(); 3].map(|()| own(subject));
    let size = page(&pool(subject)).0;
    let pool = builder(subject).budget(Bytes(size * 3)).build().unwrap();
    // The page in the middle belongs half to each block.
    let (one, two) = (on(&pool, &*busy, size * 3 / 2), on(&pool, &*other, size * 3 / 2));
    start(subject, &*busy, &one, 5);
    drop(one);
    drop(two);
    let next = on(&pool, &*third, size * 2);
    out_of_reach(subject, &*busy, &[next]);
    is_empty(&pool);
}

fn a_free_part_of_a_page<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let size = page(&pool).0 * 5 / 8;
    let (one, two) = (on(&pool, &*busy, size), on(&pool, &*other, size));
    start(subject, &*busy, &one, 5);
    drop(one);
    let next = on(&pool, &*other, size);
    out_of_reach(subject, &*busy, &[next, two]);
    is_empty(&pool);
}

fn an_event_tells_of_what_came_before<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let [first, second] = [(); 2].map(|()| on(&pool, &*busy, 4 << 20));
    start(subject, &*busy, &first, 5);
    drop(first);
    // The pool records an event on the stream here, since the request is of another stream.
    let block = on(&pool, &*other, 4 << 20);
    let mut passed = subject.backend.event(subject.device).unwrap();
    passed.record(busy.stream()).unwrap();
    start(subject, &*busy, &second, 6);
    drop(second);
    passed.wait().unwrap();
    let next = [(); 2].map(|()| on(&pool, &*other, 4 << 20));
    out_of_reach(subject, &*busy, &next);
    drop((block, next));
    is_empty(&pool);
}

fn own_stream_is_awaited_after_another<B: TestKit>(subject: &Subject<B>) {
    let [busy, other] = [(); 2].map(|()| own(subject));
    let pool = pool(subject);
    let mut block = on(&pool, &*busy, 4 << 20);
    start(subject, &*busy, &block, 5);
    block.record_use(named(&*other)).unwrap();
    drop(block);
    let next = [(); 3].map(|()| {
        let next = on(&pool, &*other, 4 << 20);
        // Now the events that the pool has recorded on it have completed.
        finish(subject, &*other);
        next
    });
    out_of_reach(subject, &*busy, &next);
    drop(next);
    is_empty(&pool);
}

fn scrubbed_behind_the_work<B: TestKit>(subject: &Subject<B>) {
    let busy = own(subject);
    let size = page(&pool(subject)).0 * 2;
    let pool = builder(subject).scrub().budget(Bytes(size)).build().unwrap();
    let [red, blue] = ["red", "blue"].map(|tag| pool.tagged(tag).unwrap());
    let block = on(&red, &*busy, size);
    start(subject, &*busy, &block, 5);
    drop(block);
    let next = on(&blue, &*busy, size);
    finish(subject, &*busy);
    assert!(is_zero(subject, &next), "the other tag's work wrote after the scrubbing");
    drop(next);
    is_empty(&pool);
}

fn scrubbed_when_it_comes_back<B: TestKit>(subject: &Subject<B>) {
    let size = Bytes(page(&pool(subject)).0 * 2);
    let pool = builder(subject).scrub().budget(size).build().unwrap();
    for tag in ["red", "blue", "red", "blue"] {
        let block = alloc(&pool.tagged(tag).unwrap(), size);
        assert_eq!(adds_up(&pool).peak_held, size.0);
        if pool.stats().allocations > 1 {
            assert!(is_zero(subject, &block), "{tag} sees bytes of another tag");
        }
        write(subject, &block, 0x5a5a);
    }
    is_empty(&pool);
}

fn scrubbed_when_tried_again<B: TestKit>(subject: &Subject<B>) {
    let size = Bytes(page(&pool(subject)).0 * 3);
    for failing in 0.. {
        let backend = FaultInject::new(subject.backend.clone());
        // The budget leaves no room for new memory.
        let builder = Pool::builder(&backend).device(subject.device).budget(size);
        let pool = builder.scrub().build().unwrap();
        let block = alloc(&pool.tagged("red").unwrap(), size);
        write_at(&subject.backend, subject.device, block.address(), size, 0x5a5a);
        drop(block);
        backend.fail(failing, 1);
        let blue = pool.tagged("blue").unwrap();
        let first = blue.alloc(size);
        let calls = backend.stop();
        // The failed call may have been a query that the pool can repeat later.
        subject.backend.drop_log().take_last();
        let block = first.or_else(|_| blue.alloc(size)).unwrap();
        assert!(is_zero(subject, &block), "after call {failing} failed, a tag sees bytes of another tag");
        drop(block);
        is_empty(&pool);
        if calls <= failing {
            break;
        }
    }
}
