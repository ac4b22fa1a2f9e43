//! Memory that is suspended, resumed and scrubbed by its tag.

use super::{Hand, adds_up, alloc, builder, check, counts_at_once, is_empty, page, pool, write};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, Error, Operation, PhysicalMemory};
use gpu_vmm_pool::{Block, Pool, PoolError};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "pool":
    /// Suspended blocks keep their addresses and get their bytes back; meanwhile their memory is released to the driver, and
    /// other tags still work.
    suspended_and_resumed,
    /// Blocks of a suspended tag can be freed, and their memory is not restored.
    freed_while_suspended,
    /// A suspended tag refuses allocations of all sizes until it is resumed.
    no_blocks_of_a_suspended_tag,
    /// An unknown tag is an error that names the known tags; suspending a suspended tag and resuming a resumed tag do
    /// nothing.
    no_such_tag_and_twice,
    /// A tag that is suspended stays suspended if suspending it once more fails.
    suspended_again_in_vain,
    /// If the backing store is too small, a suspension fails and leaves everything as it was.
    a_store_that_is_too_small,
    /// On a full device, a resume releases the pool's kept memory to make room; if that does not suffice, the tag stays
    /// suspended and keeps its bytes.
    resumed_on_a_full_device,
    /// A resume releases no more of the pool's kept memory than the budget requires.
    a_resume_leaves_what_is_kept,
    /// Memory that is free, or mapped at other addresses too, is not saved with a tag.
    only_what_is_used_is_saved,
    /// A block that was freed behind a fence which is done is not saved.
    block_behind_done_fence_is_not_saved,
    /// Memory that passes to another tag is overwritten with zeros first; memory that stays within its tag is not.
    scrubbed_between_tags,
    /// Memory that passes between small and large blocks of two tags is overwritten with zeros first.
    small_blocks_are_scrubbed,
    /// Memory of a resumed tag is scrubbed before another tag gets it.
    scrubbed_after_a_resume,
    /// A pool and its blocks can be dropped while a tag is suspended.
    dropped_while_suspended,
    /// The occupied size of a tag is the size of the memory with its blocks, without free memory.
    occupied_by_blocks,
    /// A resume within a budget returns as much of the kept memory as it needs, even if other tags use some of the budget.
    resumed_beside_other_blocks,
    /// A resume that lacks memory takes the memory of freed blocks from the thread caches.
    resumed_with_the_memory_of_caches,
}

/// A backing store that is large enough for all of these cases.
fn store<B: TestKit>(subject: &Subject<B>) -> BackingStore<B> {
    BackingStore::pinned(&subject.backend, Bytes::mib(128)).unwrap()
}

/// Blocks of all size classes with their patterns.
fn some<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>) -> Vec<(Block<B>, u64)> {
    let blocks = [100, 5000, 70_000, 1 << 20, 5 << 20, 3 << 20].map(|size| alloc(pool, Bytes(size)));
    let all: Vec<_> = blocks.into_iter().map(|block| (block.address().0, block)).collect();
    all.iter().for_each(|(seed, block)| write(subject, block, *seed));
    all.into_iter().map(|(seed, block)| (block, seed)).collect()
}

fn are_whole<B: TestKit>(subject: &Subject<B>, blocks: &[(Block<B>, u64)]) {
    blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
}

fn suspended_and_resumed<B: TestKit>(subject: &Subject<B>) {
    let (base, free, store) = (pool(subject), subject.free_here(), store(subject));
    let (weights, cache) = (base.tagged("weights").unwrap(), base.tagged("cache").unwrap());
    let (kept, other) = (some(subject, &weights), some(subject, &cache));
    for _ in 0..3 {
        let before = adds_up(&base);
        let gone = base.suspend("weights", &store, idle()).unwrap();
        let between = adds_up(&base);
        assert!(gone >= Bytes::mib(10), "{gone}");
        assert_eq!((between.held + gone.0, between.live), (before.held, before.live));
        if counts_at_once(subject) {
            assert_eq!(subject.free_here(), free - Bytes(between.held));
        }
        are_whole(subject, &other);
        let more = some(subject, &cache);
        are_whole(subject, &more);
        drop(more);
        base.trim(Bytes::ZERO).unwrap();
        assert_eq!(base.resume("weights").unwrap(), gone);
        are_whole(subject, &kept);
        are_whole(subject, &other);
        assert!(kept.iter().all(|(block, seed)| block.address().0 == *seed), "an address has changed");
        adds_up(&base);
        drop(some(subject, &weights));
    }
    drop((kept, other));
    is_empty(&base);
}

fn freed_while_suspended<B: TestKit>(subject: &Subject<B>) {
    let (pool, store) = (pool(subject).tagged("weights").unwrap(), store(subject));
    let page = page(&pool);
    let (stays, goes) = (alloc(&pool, Bytes(page.0 * 3)), alloc(&pool, Bytes(page.0 * 4)));
    let small: Vec<_> = (0..40).map(|_| alloc(&pool, Bytes(3000))).collect();
    let (hand, pending) = (Hand::new(), alloc(&pool, Bytes(page.0 * 2)));
    write(subject, &stays, 8);
    pool.suspend("weights", &store, idle()).unwrap();
    drop((goes, small));
    pending.free_after(hand.fence());
    hand.set(Hand::DONE);
    assert_eq!((adds_up(&pool).live, pool.stats().held), (page.0 * 3, 0));
    pool.resume("weights").unwrap();
    check(subject, &stays, 8);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(adds_up(&pool).held, page.0 * 3, "memory of freed blocks is still held");
    let again = alloc(&pool, Bytes(page.0 * 4));
    write(subject, &again, 9);
    check(subject, &stays, 8);
    check(subject, &again, 9);
    drop((stays, again));
    is_empty(&pool);
}

fn no_blocks_of_a_suspended_tag<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let (pool, store) = (base.tagged("weights").unwrap(), store(subject));
    let blocks = some(subject, &pool);
    let large = alloc(&pool, Bytes(5 << 20));
    // The thread cache has blocks of these sizes.
    drop(some(subject, &pool));
    base.suspend("weights", &store, idle()).unwrap();
    // The first request is for the addresses that were freed last, which have no memory.
    drop(large);
    for size in [5 << 20, 100, 5000, 70_000, 1 << 20] {
        let error = pool.alloc(Bytes(size)).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PoolError::Suspended { tag, .. }) if &**tag == "weights"),
            "{error}"
        );
        alloc(&base, Bytes(size));
    }
    base.resume("weights").unwrap();
    drop(some(subject, &pool));
    are_whole(subject, &blocks);
    drop(blocks);
    is_empty(&base);
}

fn no_such_tag_and_twice<B: TestKit>(subject: &Subject<B>) {
    let (base, store) = (pool(subject), store(subject));
    let pool = base.tagged("weights").unwrap();
    for error in [base.suspend("unknown", &store, idle()).unwrap_err(), base.resume("unknown").unwrap_err()] {
        assert!(matches!(error.extension(), Some(PoolError::NoSuchTag { .. })));
        let text = error.to_string();
        assert!(text.contains("unknown") && text.contains("weights"), "{text}");
    }
    assert_eq!(
        base.suspend("weights", &store, idle()).unwrap(),
        Bytes::ZERO,
        "a tag without memory released some"
    );
    assert_eq!(base.resume("weights").unwrap(), Bytes::ZERO);
    let blocks = some(subject, &pool);
    assert_eq!(base.resume("weights").unwrap(), Bytes::ZERO);
    assert!(base.suspend("weights", &store, idle()).unwrap() > Bytes::ZERO);
    assert_eq!(base.suspend("weights", &store, idle()).unwrap(), Bytes::ZERO);
    assert!(base.resume("weights").unwrap() > Bytes::ZERO);
    assert_eq!(base.resume("weights").unwrap(), Bytes::ZERO);
    are_whole(subject, &blocks);
    drop(blocks);
    is_empty(&base);
}

fn suspended_again_in_vain<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
    let store = BackingStore::pinned(&backend, Bytes(page(&pool).0 * 2)).unwrap();
    let block = alloc(&pool, page(&pool));
    write(subject, &block, 9);
    pool.suspend("", &store, idle()).unwrap();
    backend.fail_calls(&[Operation::WaitForDevice]);
    let error = pool.suspend("", &store, idle()).unwrap_err();
    backend.stop();
    assert!(matches!(error.detail(), Detail::Driver { .. }), "{error}");
    assert!(pool.is_suspended("").unwrap(), "the tag is no longer suspended");
    for size in [100, 70_000, 4 << 20] {
        let answer = pool.alloc(Bytes(size));
        assert!(
            matches!(answer.as_ref().map_err(Error::extension), Err(Some(PoolError::Suspended { .. }))),
            "{answer:?}"
        );
    }
    pool.resume("").unwrap();
    assert!(!pool.is_suspended("").unwrap());
    check(subject, &block, 9);
    drop(block);
    is_empty(&pool);
}

fn a_store_that_is_too_small<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let (pool, page) = (base.tagged("weights").unwrap(), page(&base));
    let blocks = some(subject, &pool);
    // Too small for all blocks, and too small for any.
    for size in [page, Bytes(page.0 / 2)] {
        let store = BackingStore::pinned(&subject.backend, size).unwrap();
        base.trim(Bytes(u64::MAX)).unwrap();
        let before = adds_up(&base);
        let error = base.suspend("weights", &store, idle()).unwrap_err();
        assert!(matches!(error.detail(), Detail::BackingStoreFull { .. }), "{error}");
        let after = adds_up(&base);
        assert_eq!((after.live, after.held - after.kept), (before.live, before.held - before.kept));
        are_whole(subject, &blocks);
        let more = some(subject, &pool);
        are_whole(subject, &more);
        are_whole(subject, &blocks);
    }
    drop(blocks);
    is_empty(&base);
}

fn resumed_on_a_full_device<B: TestKit>(subject: &Subject<B>) {
    if !counts_at_once(subject) {
        crate::subject::skip("on this driver, released memory is not free before its addresses are");
    }
    let (base, store) = (pool(subject), store(subject));
    let pool = base.tagged("weights").unwrap();
    let kept = alloc(&pool, Bytes::mib(32));
    write(subject, &kept, 11);
    base.suspend("weights", &store, idle()).unwrap();
    // The pool keeps as much memory as the resume needs, and the rest of the device is full.
    drop(alloc(&base, Bytes::mib(32)));
    // A device needs some memory to check bytes, less than the resume needs.
    let free = subject.free_here() - Bytes::mib(16);
    let granule = subject.granularity().0;
    let left = Bytes(free.0 / granule * granule);
    let hog = PhysicalMemory::create(&subject.backend, left, subject.properties());
    let hog = match hog {
        Ok(memory) => memory,
        Err(error) => crate::subject::skip(format!("not all free memory can be allocated: {error}")),
    };
    base.resume("weights").unwrap();
    check(subject, &kept, 11);
    base.suspend("weights", &store, idle()).unwrap();
    let rest = alloc(&base, Bytes::mib(32));
    let error = base.resume("weights").unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(matches!(
        pool.alloc(Bytes(8)).as_ref().map_err(Error::extension),
        Err(Some(PoolError::Suspended { .. }))
    ));
    adds_up(&base);
    drop(rest);
    base.resume("weights").unwrap();
    check(subject, &kept, 11);
    drop((kept, hog));
    is_empty(&base);
}

fn only_what_is_used_is_saved<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let (pool, page) = (base.tagged("weights").unwrap(), page(&base));
    let pages = |count: u64| Bytes(page.0 * count);
    // Memory that one tag has used, then another tag, then the first at another address.
    drop(alloc(&pool, pages(6)));
    drop(alloc(&base, pages(6)));
    let blocks: Vec<_> = (0..3).map(|_| alloc(&pool, pages(2))).collect();
    blocks.iter().for_each(|block| write(subject, block, block.address().0));
    drop(alloc(&pool, pages(5)));
    let mut blocks = blocks.into_iter();
    drop(blocks.next_back());
    let blocks: Vec<_> = blocks.collect();
    let store = BackingStore::pinned(&subject.backend, pages(4)).unwrap();
    assert_eq!(base.suspend("weights", &store, idle()).unwrap(), pages(4));
    let other = alloc(&base, pages(6));
    write(subject, &other, 1);
    base.resume("weights").unwrap();
    blocks.iter().for_each(|block| check(subject, block, block.address().0));
    check(subject, &other, 1);
    drop((blocks, other));
    is_empty(&base);
}

fn block_behind_done_fence_is_not_saved<B: TestKit>(subject: &Subject<B>) {
    let (base, store) = (pool(subject), store(subject));
    let (pool, page) = (base.tagged("weights").unwrap(), page(&base));
    let (hand, stays, goes) = (Hand::new(), alloc(&pool, page), alloc(&pool, Bytes(page.0 * 3)));
    write(subject, &stays, 3);
    goes.free_after(hand.fence());
    hand.set(Hand::DONE);
    assert_eq!(base.suspend("weights", &store, idle()).unwrap(), page);
    base.resume("weights").unwrap();
    check(subject, &stays, 3);
    drop(stays);
    is_empty(&base);
}

/// Whether all bytes of a block are zero.
pub(super) fn is_zero<B: TestKit>(subject: &Subject<B>, block: &Block<impl Backend>) -> bool {
    let mut bytes = vec![1; block.size().0 as usize];
    #[allow(unsafe_code)]
    // SAFETY: a block's memory is mapped, and its device may read it.
    unsafe { subject.backend.copy_to_host(subject.device, &mut bytes, block.address()) }.unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

fn scrubbed_after_a_resume<B: TestKit>(subject: &Subject<B>) {
    let size = Bytes(page(&pool(subject)).0 * 2);
    let base = builder(subject).scrub().budget(size).build().unwrap();
    let store = store(subject);
    let [red, blue] = ["red", "blue"].map(|tag| base.tagged(tag).unwrap());
    let secret = alloc(&red, size);
    write(subject, &secret, 0x5a5a);
    base.suspend("red", &store, idle()).unwrap();
    drop(alloc(&blue, size));
    base.trim(Bytes::ZERO).unwrap();
    base.resume("red").unwrap();
    check(subject, &secret, 0x5a5a);
    drop(secret);
    let block = alloc(&blue, size);
    assert!(is_zero(subject, &block), "a tag sees bytes of another tag");
    drop(block);
    is_empty(&base);
}

fn small_blocks_are_scrubbed<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    // Both tags use the same page, one after the other.
    let pool = builder(subject).scrub().budget(page).build().unwrap();
    let [red, blue] = ["red", "blue"].map(|tag| pool.tagged(tag).unwrap());
    // Half of a page with small blocks, the same with medium ones, and a whole page.
    let sizes = [Bytes(4000), Bytes::kib(100), page];
    let count = |size: Bytes| if size == page { 1 } else { page.0 / 2 / size.0 };
    for (first, second) in sizes.into_iter().flat_map(|first| sizes.map(|second| (first, second))) {
        let secrets: Vec<_> = (0..count(first)).map(|_| alloc(&red, first)).collect();
        secrets.iter().for_each(|block| write(subject, block, 0x5a5a));
        drop(secrets);
        let blocks: Vec<_> = (0..count(second)).map(|_| alloc(&blue, second)).collect();
        for block in &blocks {
            assert!(is_zero(subject, block), "{first}, then {second}: a tag sees bytes of another tag");
        }
        assert_eq!(adds_up(&pool).held, page.0, "{first}, then {second}: this is not the same memory");
    }
    is_empty(&pool);
}

fn scrubbed_between_tags<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).scrub().budget(Bytes(page.0 * 8)).build().unwrap();
    let [red, blue] = ["red", "blue"].map(|tag| pool.tagged(tag).unwrap());
    for round in 0..3 {
        for (tenant, size) in [(&red, page.0 * 8), (&blue, page.0 * 6), (&red, page.0 * 7)] {
            let block = alloc(tenant, Bytes(size));
            let came = pool.stats().driver_calls;
            // Memory that stays within a tag is not scrubbed; in the first round, all of blue's memory comes from red.
            if round == 0 && std::ptr::eq(tenant, &raw const blue) {
                assert!(is_zero(subject, &block), "a tag sees bytes of another tag");
            }
            write(subject, &block, 0x5a5a);
            drop(block);
            let again = alloc(tenant, Bytes(size));
            assert_eq!(pool.stats().driver_calls, came, "a driver call for memory that stays within its tag");
            check(subject, &again, 0x5a5a);
        }
        pool.trim(Bytes(u64::MAX)).unwrap();
    }
    is_empty(&pool);
}

fn dropped_while_suspended<B: TestKit>(subject: &Subject<B>) {
    let (free, store) = (subject.free_here(), store(subject));
    for pool_first in [true, false] {
        let pool = pool(subject).tagged("weights").unwrap();
        let blocks = some(subject, &pool);
        let other = alloc(&pool.tagged("cache").unwrap(), Bytes::mib(4));
        pool.suspend("weights", &store, idle()).unwrap();
        if pool_first {
            drop(pool);
            drop((blocks, other));
        } else {
            drop((blocks, other));
            drop(pool);
        }
        assert_eq!(subject.free_here(), free);
    }
}

fn a_resume_leaves_what_is_kept<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject)).0;
    let base = builder(subject).budget(Bytes(page * 8)).build().unwrap();
    let (pool, store) = (base.tagged("weights").unwrap(), store(subject));
    let block = alloc(&pool, Bytes(page * 2));
    base.suspend("weights", &store, idle()).unwrap();
    drop(alloc(&base, Bytes(page * 8)));
    assert_eq!(adds_up(&base).kept, page * 8);
    base.resume("weights").unwrap();
    let stats = adds_up(&base);
    assert_eq!((stats.held, stats.kept), (page * 8, page * 6));
    drop(block);
    is_empty(&base);
}

fn occupied_by_blocks<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let (pool, page) = (base.tagged("weights").unwrap(), page(&base));
    let occupied = || base.occupied("weights").unwrap();
    assert_eq!(occupied(), Bytes::ZERO);
    let (one, other) = (alloc(&pool, Bytes(page.0 * 3)), alloc(&pool, Bytes(page.0 * 2)));
    let _small = alloc(&pool, Bytes(100));
    assert_eq!(occupied(), Bytes(page.0 * 6));
    drop(other);
    assert_eq!((occupied(), adds_up(&base).held), (Bytes(page.0 * 4), page.0 * 6));
    drop(one);
    assert_eq!(occupied(), page);
}

fn resumed_beside_other_blocks<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject)).0;
    let base = builder(subject).budget(Bytes(page * 8)).build().unwrap();
    let (pool, store) = (base.tagged("weights").unwrap(), store(subject));
    let block = alloc(&pool, Bytes(page * 2));
    write(subject, &block, 9);
    base.suspend("weights", &store, idle()).unwrap();
    let (other, freed) = (alloc(&base, Bytes(page * 4)), alloc(&base, Bytes(page * 4)));
    drop(freed);
    base.resume("weights").unwrap();
    check(subject, &block, 9);
    let stats = adds_up(&base);
    assert_eq!((stats.held, stats.kept), (page * 8, page * 2));
    drop((block, other));
    is_empty(&base);
}

fn resumed_with_the_memory_of_caches<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let base = builder(subject).budget(page).build().unwrap();
    let (pool, store) = (base.tagged("weights").unwrap(), store(subject));
    let block = alloc(&pool, page);
    write(subject, &block, 9);
    base.suspend("weights", &store, idle()).unwrap();
    drop(alloc(&base, Bytes(5000)));
    assert!(adds_up(&base).cached > 0, "a cache has the freed block");
    base.resume("weights").unwrap();
    check(subject, &block, 9);
    drop(block);
    is_empty(&base);
}
