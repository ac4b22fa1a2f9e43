//! Free memory that is remapped where it is needed.

use super::waits::named;
use super::{DEFAULT, adds_up, alloc, builder, check, is_empty, page, pool, write};
use crate::case::cases;
use crate::library::flights::{finish, own, registered};
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, Detail, Stream};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// After every second of many blocks is freed, one block of the total freed size needs no new memory and disturbs no live
    /// block.
    free_memory_does_not_fragment,
    /// Free memory of blocks that share pages with live blocks serves new blocks: every page without a live block is reused.
    shared_pages_stay,
    /// A repeated workload finds its memory mapped where it needs it, and makes no driver calls.
    warm_rounds_make_no_driver_calls,
    /// A block is placed where free memory is mapped, in the smallest sufficient place, with one stream and with several.
    placed_where_memory_is,
    /// Memory that another stream has freed and finished with is used if it fits best, without waiting for that stream.
    another_streams_place_is_found,
    /// Memory that is mapped at several addresses serves one block at a time.
    memory_serves_one_block_at_a_time,
    /// A pool creates its memory in pages of the requested size if that size is at least the minimum that can be mapped.
    pages_of_another_size,
    /// The slack setting decides whether free memory is remapped or new memory is created.
    slack_is_kept_to,
    /// Slack is relative to the memory that was ever needed at one time, not to the memory that is needed now.
    slack_of_what_was_needed,
    /// A pool that serves several streams may hold more memory before it remaps free memory.
    several_streams_have_more_slack,
    /// Free memory of one tag serves another tag, at that tag's addresses.
    tags_share_memory,
}

/// Allocates `count` blocks with patterns and frees every second one. Returns the others.
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

/// Checks that a block as large as the kept memory needs no new memory, and that the live blocks keep their bytes.
fn all_that_is_kept_serves<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>, stay: Vec<(Block<B>, u64)>) {
    let before = adds_up(pool);
    let large = alloc(pool, Bytes(before.kept));
    write(subject, &large, 99);
    let after = adds_up(pool);
    assert_eq!(
        after.driver_calls.create, before.driver_calls.create,
        "memory was created although enough was kept"
    );
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

/// Allocates blocks of these numbers of pages on these streams, each followed by a block of one page, and frees the large
/// ones. Returns the addresses of the large blocks, and the blocks of one page.
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
    let (places, mut stay) = places(&pool, &[(6, named(&*other)), (12, named(&*one))]);
    stay.push(ours.alloc(Bytes(page * 12)).unwrap());
    assert_eq!(stay.last().map(Block::address), Some(places[1]));
    let found = (0..5).any(|_| {
        let mapped = adds_up(&pool).driver_calls.map;
        let block = ours.alloc(Bytes(page * 6)).unwrap();
        let is_there = block.address() == places[0];
        assert_eq!(adds_up(&pool).driver_calls.map == mapped, is_there);
        stay.push(block);
        // Now the events that the pool has recorded on it have completed.
        finish(subject, &*other);
        is_there
    });
    assert!(found, "the pool did not poll the other stream");
    drop((stay, ours, theirs));
    is_empty(&pool);
}

fn pages_of_another_size<B: TestKit>(subject: &Subject<B>) {
    let least = page(&builder(subject).page(Bytes(1)).build().unwrap());
    assert!(least >= Bytes::mib(2) && page(&pool(subject)) >= least, "{least}");
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
    let odd = builder(subject).page(Bytes(least.0 * 3)).build().unwrap_err();
    assert!(matches!(odd.detail(), Detail::BadAlignment { .. }), "{odd}");
    assert!(odd.to_string().contains(&(least.0 * 3).to_string()), "{odd}");
}

fn slack_is_kept_to<B: TestKit>(subject: &Subject<B>) {
    for (percent, new) in [(0, 0), (25, 8), (100, 16)] {
        let pool = builder(subject).slack(percent).build().unwrap();
        let page = page(&pool);
        // 32 single pages, of which every second one is freed, so that no two free pages are adjacent.
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
    // The pool may hold 16 pages, since 8 were needed, so it creates 2 although 8 are free.
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
    // The memory is mapped at the addresses of all of these, one after the other.
    for sizes in [[4, 4, 4], [6, 3, 3], [1, 10, 1], [12, 0, 0], [2, 5, 5]] {
        let blocks: Vec<_> =
            sizes.into_iter().filter(|count| *count > 0).map(|count| alloc(&pool, pages(count))).collect();
        blocks.iter().for_each(|block| write(subject, block, block.address().0));
        blocks.iter().for_each(|block| check(subject, block, block.address().0));
        let mut blocks = blocks.into_iter();
        // The first block stays while the rest is allocated elsewhere.
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
