//! Several kinds of memory in one pool, and the budget that they share. A device that has no host memory and exports none skips them.

use super::{Hand, adds_up, alloc, builder, check, is_empty, page, pool, write};
use crate::case::cases;
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{
    Backend, BackingStore, Bytes, HandleTypes, Location, Operation, Properties, WaitFor, first_supported,
};
use gpu_vmm_pool::{Block, Pool, PoolError};
use gpu_vmm_testkit::{Random, TestKit};

cases! { "pool":
    /// Blocks of each kind of memory that the device supports lie in memory with its properties, and the device reads and writes it. The
    /// pages are multiples of the recommended granularity.
    kinds_have_their_properties,
    /// All kinds of a pool hold no more than its budget, and the error of a request beyond it has the numbers of each kind.
    kinds_share_the_budget,
    /// Free memory of one kind gives way to a request of another, and memory that waits for a fence as soon as it is done.
    free_memory_of_a_kind_gives_way,
    /// A tag of one kind is suspended and resumed without the tag of the same name of another kind.
    tags_of_kinds_are_apart,
    /// Through random calls in several kinds, each block has its contents, and the kinds hold no more than the budget.
    random_kinds_stay_within_the_budget,
    /// Threads that allocate in different kinds at the same time never hold more than the budget together.
    kinds_of_several_threads,
}

/// Returns the kinds of memory that a pool can have besides its own: the subject skips the case if there are none.
fn others<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>) -> Vec<Properties> {
    let own = subject.properties();
    let wanted = [
        own.located(Location::Host),
        own.located(Location::HostNode(0)),
        own.shareable(),
        own.exported_as(HandleTypes::FABRIC),
        own.remote_dma(),
    ];
    let has = |kind: &Properties| match first_supported(&subject.backend, &[*kind]) {
        Ok(found) => found.properties == *kind && pool.with_memory(*kind).is_ok(),
        Err(error) => {
            assert!(matches!(error.detail(), gpu_vmm_core::Detail::Unsupported { .. }), "{error}");
            false
        }
    };
    let others: Vec<_> = wanted.into_iter().filter(|kind| *kind != own).filter(has).collect();
    if others.is_empty() {
        skip("the device has one kind of memory");
    }
    others
}

/// A pool with a budget of some pages, and handles of its kinds, its own first.
fn with_kinds<B: TestKit>(subject: &Subject<B>, pages: u64) -> (Vec<Pool<B>>, Bytes) {
    let size = page(&pool(subject));
    let pool = builder(subject).page(size).memory(subject.properties()).budget(size * pages).build().unwrap();
    let others = others(subject, &pool);
    let handles: Vec<_> = [pool.clone()]
        .into_iter()
        .chain(others.iter().map(|kind| or_skip(pool.with_memory(*kind))))
        .collect();
    if handles.iter().any(|kind| page(kind) != size) {
        skip("the kinds have pages of several sizes");
    }
    (handles, size)
}

/// Returns what all kinds hold.
fn held<B: Backend>(pool: &Pool<B>) -> u64 {
    pool.kinds().iter().map(|(_, stats)| stats.held).sum()
}

fn kinds_have_their_properties<B: TestKit>(subject: &Subject<B>) {
    let (kinds, page) = with_kinds(subject, 64);
    for (seed, kind) in (1..).zip(&kinds) {
        let unit =
            or_skip(subject.backend.recommended_granularity(Operation::QueryGranularity, &kind.memory()));
        assert!(unit.divides(page), "pages of {page}, and {unit} are recommended");
        let block = alloc(kind, page * 3);
        let (memory, _) = or_skip(kinds[0].memory_at(block.address(), block.size()));
        let granted =
            |properties: Properties| Properties { remote_dma: false, compressible: false, ..properties };
        for one in &memory {
            assert_eq!(granted(one.properties()), granted(kind.memory()));
        }
        assert_eq!(kinds[0].find(block.address()).unwrap().memory, kind.memory());
        write(subject, &block, seed);
        check(subject, &block, seed);
        let small = alloc(kind, Bytes(3000));
        write(subject, &small, seed);
        check(subject, &block, seed);
        check(subject, &small, seed);
        drop((block, small));
        adds_up(kind);
    }
    kinds.iter().for_each(is_empty);
}

fn kinds_share_the_budget<B: TestKit>(subject: &Subject<B>) {
    let (kinds, page) = with_kinds(subject, 8);
    let _live = [alloc(&kinds[0], page * 5), alloc(&kinds[1], page * 3)];
    for kind in &kinds {
        let error = kind.alloc(page).unwrap_err();
        let text = error.to_string();
        let Some(PoolError::OutOfMemory { kinds: told, .. }) = error.extension() else { panic!("{text}") };
        let held: Vec<_> = told.iter().map(|(_, stats)| stats.held).take(2).collect();
        assert_eq!(held, [page.0 * 5, page.0 * 3], "{text}");
        for size in [page * 5, page * 3] {
            assert!(text.contains(&format!("{size} held")), "{text}");
        }
    }
    assert_eq!(held(&kinds[0]), page.0 * 8);
}

fn free_memory_of_a_kind_gives_way<B: TestKit>(subject: &Subject<B>) {
    let (kinds, page) = with_kinds(subject, 8);
    let [own, other, ..] = &kinds[..] else { return };
    drop(alloc(other, page * 6));
    let block = alloc(own, page * 7);
    write(subject, &block, 1);
    assert!(held(own) <= page.0 * 8);
    check(subject, &block, 1);
    drop(block);
    let hand = Hand::new();
    hand.set(Hand::WAITED);
    alloc(own, page * 6).free_after(hand.fence());
    let block = alloc(other, page * 5);
    write(subject, &block, 2);
    check(subject, &block, 2);
    assert!(held(own) <= page.0 * 8);
    drop(block);
    kinds.iter().for_each(is_empty);
}

fn tags_of_kinds_are_apart<B: TestKit>(subject: &Subject<B>) {
    let (kinds, page) = with_kinds(subject, 32);
    for (seed, kind) in (1..).zip(&kinds) {
        let (tagged, others) = (kind.tagged("kv").unwrap(), kinds[0].tagged("kv").unwrap());
        let block = alloc(&tagged, page * 2);
        let of_other = alloc(&others, page);
        write(subject, &block, seed);
        let store = or_skip(BackingStore::pinned(&subject.backend, page * 4));
        or_skip(tagged.suspend("kv", &store, WaitFor::all_devices()));
        assert!(tagged.is_suspended("kv").unwrap());
        if kind.memory() != kinds[0].memory() {
            assert!(!others.is_suspended("kv").unwrap());
            write(subject, &of_other, seed + 9);
        }
        tagged.resume("kv").unwrap();
        check(subject, &block, seed);
    }
    kinds.iter().for_each(is_empty);
}

/// Calls of one thread: blocks of random sizes in random kinds, each with a pattern. Every block fits beside the others' in the budget.
fn calls<B: TestKit>(subject: &Subject<B>, kinds: &[Pool<B>], page: Bytes, seed: u64, steps: u64) {
    let mut random = Random(seed);
    let mut blocks: Vec<(Block<B>, u64)> = Vec::new();
    for step in 0..steps {
        if blocks.len() == 2 || !blocks.is_empty() && random.below(3) == 0 {
            let (block, pattern) = blocks.swap_remove(random.below(blocks.len()));
            check(subject, &block, pattern);
        } else {
            let block = alloc(&kinds[random.below(kinds.len())], Bytes(1 + random.next() % (2 * page.0)));
            let pattern = seed * 1000 + step;
            write(subject, &block, pattern);
            blocks.push((block, pattern));
        }
    }
    blocks.iter().for_each(|(block, pattern)| check(subject, block, *pattern));
}

fn random_kinds_stay_within_the_budget<B: TestKit>(subject: &Subject<B>) {
    let (kinds, page) = with_kinds(subject, 7);
    for seed in 1..4 {
        calls(subject, &kinds, page, seed, 60);
        let now = held(&kinds[0]);
        assert!(now <= page.0 * 7, "{now} bytes of {}", page.0 * 7);
    }
    kinds.iter().for_each(is_empty);
}

fn kinds_of_several_threads<B: TestKit>(subject: &Subject<B>) {
    const THREADS: u64 = 3;
    let (kinds, page) = with_kinds(subject, 7 * THREADS);
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let kinds = &kinds;
            scope.spawn(move || calls(subject, kinds, page, seed, 60));
        }
    });
    assert!(held(&kinds[0]) <= page.0 * 7 * THREADS);
    kinds.iter().for_each(is_empty);
}
