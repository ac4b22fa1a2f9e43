//! Free memory that is mapped where it is needed.

use super::waits::named;
use super::{DEFAULT, adds_up, alloc, builder, check, is_empty, page, pool, write};
use crate::case::cases;
use crate::library::flights::{finish, own, registered};
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, Detail, Stream};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// A block as large as every second one of many that were freed needs no new memory, and disturbs none of the others.
    free_memory_does_not_fragment,
    /// The same with blocks whose ends share pages: all pages in which nothing is left serve.
    shared_pages_stay,
    /// What is done again and again finds its memory mapped where it needs it, and makes no driver calls.
    warm_rounds_make_no_driver_calls,
    /// A block is placed where free memory is mapped, in the smallest place that is large enough, with one stream and with several.
    placed_where_memory_is,
    /// What another stream has freed and done with is found when it fits best, without anybody waiting for it.
    another_streams_place_is_found,
    /// Memory that lies behind several addresses serves one block at a time.
    memory_serves_one_block_at_a_time,
    /// A pool creates its memory in pieces of the size that was said, where that is no less than can be mapped.
    pages_of_another_size,
    /// Free memory is mapped where it is needed, or new is created, by how much more may be held.
    slack_is_kept_to,
    /// How much more may be held goes by what was ever needed at one time, and not by what is needed now.
    slack_of_what_was_needed,
    /// With several streams more may be held before free memory is mapped elsewhere.
    several_streams_have_more_slack,
    /// Memory of one tag serves another one, at the addresses of that.
    tags_share_memory,
}

/// Every second block of many, and all others, which have their patterns.
fn every_second<B: TestKit>(
    subject: &Subject<B>,
    pool: &Pool<B>,
    size: Bytes,
    count: u64,
) -> Vec<(Block<B>, u64)> {
    let all: Vec<_> = (0..count).map(|seed| (alloc(pool, size), seed << 40)).collect();
    all.iter().for_each(|(block, seed)| write(subject, block, *seed));
    let mut index = 0;
    let (stay, go): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| {
        index += 1;
        index % 2 == 0
    });
    drop(go);
    stay
}

/// A block as large as all that is kept needs no new memory, and disturbs none of those that stay.
fn all_that_is_kept_serves<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>, stay: Vec<(Block<B>, u64)>) {
    let before = adds_up(pool);
    let large = alloc(pool, Bytes(before.kept));
    write(subject, &large, 99);
    let after = adds_up(pool);
    assert_eq!(after.driver_calls.create, before.driver_calls.create, "no memory is created");
    assert_eq!((after.held, after.kept), (before.held, 0));
    check(subject, &large, 99);
    stay.iter().for_each(|(block, seed)| check(subject, block, *seed));
    drop((large, stay));
    is_empty(pool);
}

fn free_memory_does_not_fragment<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool);
    let stay = every_second(subject, &pool, Bytes(page.0 * 2), 16);
    assert_eq!(adds_up(&pool).kept, page.0 * 16);
    all_that_is_kept_serves(subject, &pool, stay);
}

fn shared_pages_stay<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool);
    let stay = every_second(subject, &pool, Bytes(page.0 * 3 / 2), 24);
    let before = adds_up(&pool);
    assert!(before.kept >= page.0 * 6, "{before:?}");
    all_that_is_kept_serves(subject, &pool, stay);
}

fn warm_rounds_make_no_driver_calls<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let round = |seed| {
        let small: Vec<_> = (0..8_u64).map(|index| alloc(&pool, Bytes::mib(2 + index % 3))).collect();
        small.iter().for_each(|block| write(subject, block, seed));
        small.iter().for_each(|block| check(subject, block, seed));
        drop(small);
        let large = alloc(&pool, Bytes::mib(22));
        write(subject, &large, seed);
        check(subject, &large, seed);
        let some: Vec<_> = (0..300).map(|index| alloc(&pool, Bytes(index * 100 + 1))).collect();
        drop((large, some));
        pool.stats().driver_calls
    };
    (0..4).for_each(|seed| {
        round(seed);
    });
    let before = round(4);
    assert_eq!(round(5), before);
    assert!(adds_up(&pool).held <= Bytes::mib(36).0, "{}", pool.stats());
    is_empty(&pool);
}

/// Allocates blocks of these numbers of pages on these streams, with a block of one page behind each, and frees the large ones.
/// Returns their addresses, and the blocks of one page.
fn places<B: TestKit>(pool: &Pool<B>, pages: &[(u64, Stream<'static>)]) -> (Vec<Address>, Vec<Block<B>>) {
    let page = page(pool).0;
    let one = |(pages, stream): &(u64, _)| {
        let block = pool.request(Bytes(page * pages)).stream(*stream).alloc().unwrap();
        (block, alloc(pool, Bytes(page)))
    };
    let (go, stay): (Vec<_>, Vec<_>) = pages.iter().map(one).unzip();
    (go.iter().map(Block::address).collect(), stay)
}

fn placed_where_memory_is<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = (own(subject), own(subject));
    for are_several in [false, true] {
        let pool = pool(subject);
        let page = page(&pool).0;
        let streams = are_several.then(|| [registered(&pool, &*one), registered(&pool, &*other)]);
        let (places, mut stay) = places(&pool, &[9, 6, 12].map(|pages| (pages, DEFAULT)));
        let before = adds_up(&pool).driver_calls;
        for (pages, place) in [(5, places[1]), (7, places[0]), (10, places[2])] {
            let block = alloc(&pool, Bytes(page * pages));
            assert_eq!(block.address(), place, "{pages} pages, several streams: {are_several}");
            stay.push(block);
        }
        let after = adds_up(&pool).driver_calls;
        assert_eq!((after.create, after.map, after.unmap), (before.create, before.map, before.unmap));
        drop((stay, streams));
        is_empty(&pool);
    }
}

fn another_streams_place_is_found<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = (own(subject), own(subject));
    let pool = pool(subject);
    let page = page(&pool).0;
    let [ours, theirs] = [registered(&pool, &*one), registered(&pool, &*other)];
    let (places, stay) = places(&pool, &[(6, named(&*other)), (12, named(&*one))]);
    let found = (0..5).any(|_| {
        // Each of another size, so that no freed block is just the right one.
        let found = (0..40).any(|number| {
            let block = ours.alloc(Bytes(page * 6 - number * (page / 20))).unwrap();
            assert!(places.contains(&block.address()), "{:?}", block.address());
            block.address() == places[0]
        });
        // The events that the pool has recorded on it are done then.
        finish(subject, &*other);
        found
    });
    assert!(found, "the pool did not poll the other stream");
    drop((stay, ours, theirs));
    is_empty(&pool);
}

fn pages_of_another_size<B: TestKit>(subject: &Subject<B>) {
    let least = page(&pool(subject));
    let four = Bytes(least.0 * 4);
    let pool = builder(subject).page(four).budget(Bytes(four.0 * 3)).build().unwrap();
    let block = alloc(&pool, Bytes(four.0 * 2 + 1));
    write(subject, &block, 1);
    let stats = adds_up(&pool);
    assert_eq!((page(&pool), stats.held, stats.driver_calls.create), (four, four.0 * 3, 3));
    assert!(pool.alloc(four).unwrap_err().is_out_of_memory());
    check(subject, &block, 1);
    drop(block);
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes(four.0 * 3));
    is_empty(&pool);
    assert_eq!(page(&builder(subject).page(Bytes(1)).build().unwrap()), least);
    let odd = builder(subject).page(Bytes(least.0 * 3)).build().unwrap_err();
    assert!(matches!(odd.detail(), Detail::BadAlignment { .. }), "{odd}");
    assert!(odd.to_string().contains(&(least.0 * 3).to_string()), "{odd}");
}

fn slack_is_kept_to<B: TestKit>(subject: &Subject<B>) {
    for (percent, new) in [(0, 0), (25, 8), (100, 16)] {
        let pool = builder(subject).slack(percent).build().unwrap();
        let page = page(&pool);
        // So many pages are free, none beside another of them.
        let stay = every_second(subject, &pool, page, 32);
        assert_eq!(adds_up(&pool).held, page.0 * 32);
        let large = alloc(&pool, Bytes(page.0 * 16));
        write(subject, &large, 99);
        assert_eq!(adds_up(&pool).held, page.0 * (32 + new), "{percent} %");
        check(subject, &large, 99);
        stay.iter().for_each(|(block, seed)| check(subject, block, *seed));
        drop((large, stay));
        is_empty(&pool);
    }
}

fn slack_of_what_was_needed<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).slack(100).build().unwrap();
    let page = page(&pool);
    drop(alloc(&pool, Bytes(page.0 * 8)));
    // Eight more than the eight that were needed, though eight are free and two are asked for.
    let block = alloc(&pool.tagged("other").unwrap(), Bytes(page.0 * 2));
    let stats = adds_up(&pool);
    assert_eq!((stats.held, stats.kept), (page.0 * 10, page.0 * 8));
    drop(block);
    is_empty(&pool);
}

fn several_streams_have_more_slack<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    for (are_several, new) in [(false, 0), (true, 2)] {
        let pool = pool(subject);
        let stream = are_several.then(|| registered(&pool, &*own));
        let page = page(&pool);
        let stay = every_second(subject, &pool, page, 32);
        let held = adds_up(&pool).held;
        let large = alloc(&pool, Bytes(page.0 * 16));
        assert_eq!(adds_up(&pool).held, held + page.0 * new, "several: {are_several}");
        drop((large, stay, stream));
        is_empty(&pool);
    }
}

fn memory_serves_one_block_at_a_time<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool);
    let pages = |count: u64| Bytes(page.0 * count);
    // The memory comes to be behind the addresses of all of these, one after the other.
    for sizes in [[4, 4, 4], [6, 3, 3], [1, 10, 1], [12, 0, 0], [2, 5, 5]] {
        let blocks: Vec<_> =
            sizes.into_iter().filter(|count| *count > 0).map(|count| alloc(&pool, pages(count))).collect();
        blocks.iter().for_each(|block| write(subject, block, block.address().0));
        blocks.iter().for_each(|block| check(subject, block, block.address().0));
        let mut blocks = blocks.into_iter();
        // The first stays, while the rest is looked for elsewhere.
        let first = blocks.next().unwrap();
        drop(blocks);
        let held = pool.stats().kept;
        let all = pool.alloc(Bytes(held.max(1))).unwrap();
        write(subject, &all, 3);
        check(subject, &first, first.address().0);
        check(subject, &all, 3);
        adds_up(&pool);
    }
    is_empty(&pool);
}

fn tags_share_memory<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let (one, other) = (pool.tagged("one").unwrap(), pool.tagged("other").unwrap());
    let block = alloc(&one, Bytes::mib(16));
    let address = block.address();
    write(subject, &block, 1);
    drop(block);
    let created = pool.stats().driver_calls.create;
    let block = alloc(&other, Bytes::mib(16));
    assert_ne!(block.address(), address);
    assert_eq!(pool.stats().driver_calls.create, created);
    write(subject, &block, 2);
    let again = alloc(&one, Bytes::mib(4));
    write(subject, &again, 3);
    check(subject, &block, 2);
    check(subject, &again, 3);
    drop((block, again));
    is_empty(&pool);
}
