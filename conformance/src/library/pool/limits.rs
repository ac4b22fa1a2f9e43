//! How much memory a pool holds, and what it does at the limit.

use super::{Hand, MIN, adds_up, alloc, builder, check, counts_at_once, is_empty, page, pool, write};
use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, PhysicalMemory};
use gpu_vmm_pool::{ExhaustedResource, Pool, PoolError, PoolStats};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

cases! { "pool":
    /// A pool never holds more than its budget, reports the limit with its statistics, and continues with memory that becomes
    /// free.
    within_the_budget,
    /// A budget of one page serves a block of one page; a smaller budget is refused.
    a_budget_of_one_page,
    /// A request that the budget refuses takes nothing, and the pool serves other requests as before.
    a_refused_request_takes_nothing,
    /// When blocks are freed, the pool releases memory beyond its `keep` setting to the driver.
    keeps_no_more_than_was_said,
    /// Trimming releases memory without blocks to the driver, down to the size that the caller keeps.
    trimmed,
    /// Memory in thread caches is collected if a request needs it.
    caches_are_brought_in,
    /// If the driver is out of memory, the error has the pool's statistics, and the pool still works.
    out_of_memory,
    /// If memory does not suffice, the callback is called with the size that is needed, and its result decides about a retry.
    the_callback_is_asked,
    /// The callback may free blocks of the pool itself.
    the_callback_frees_blocks,
    /// A pool that has used all its addresses reports that, however much memory is free, and continues with addresses that
    /// become free.
    out_of_addresses,
    /// A tag leaves addresses to other tags, however many it could use.
    addresses_are_left_to_others,
}

fn within_the_budget<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let budget = Bytes(page.0 * 8);
    let pool = builder(subject).budget(budget).build().unwrap();
    let mut blocks: Vec<_> = (0..4).map(|_| alloc(&pool, Bytes(page.0 * 2))).collect();
    let error = pool.alloc(Bytes(page.0)).unwrap_err();
    let text = error.to_string();
    let Some(PoolError::OutOfMemory { requested, device, stats, source, .. }) = error.extension() else {
        panic!("{text}")
    };
    assert_eq!((*requested, *device, stats.held, stats.live), (page, subject.device, budget.0, budget.0));
    assert!(matches!(**source, ExhaustedResource::Budget(most) if most == budget), "{source:?}");
    assert!(text.contains(&page.to_string()) && text.contains(&budget.to_string()), "{text}");
    blocks.pop();
    blocks.push(alloc(&pool, page));
    blocks.push(alloc(&pool, Bytes(page.0 - 1)));
    assert_eq!(adds_up(&pool).peak_held, budget.0);
    drop(blocks);
    alloc(&pool, budget);
    is_empty(&pool);
}

fn a_budget_of_one_page<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).page(page).budget(page).build().unwrap();
    let block = alloc(&pool, page);
    assert!(pool.alloc(MIN).unwrap_err().is_out_of_memory());
    drop(block);
    is_empty(&pool);
    let error = builder(subject).page(page).budget(Bytes(page.0 - 1)).build().unwrap_err();
    assert!(error.to_string().contains("nothing fits"), "{error}");
}

fn a_refused_request_takes_nothing<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).budget(Bytes(page.0 * 8)).build().unwrap();
    let stays = alloc(&pool, Bytes(page.0 * 3));
    write(subject, &stays, 1);
    for pages in [6, 9, 100] {
        assert!(pool.alloc(Bytes(page.0 * pages)).unwrap_err().is_out_of_memory());
        let stats = adds_up(&pool);
        assert_eq!((stats.live, stats.held - stats.kept), (page.0 * 3, page.0 * 3));
    }
    let rest = alloc(&pool, Bytes(page.0 * 5));
    write(subject, &rest, 2);
    check(subject, &stays, 1);
    check(subject, &rest, 2);
    drop((stays, rest));
    is_empty(&pool);
}

fn keeps_no_more_than_was_said<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).keep(Bytes(page.0 * 2)).build().unwrap();
    let free = subject.free_here();
    let (one, other) = (alloc(&pool, Bytes(page.0 * 10)), alloc(&pool, Bytes(page.0 * 3)));
    write(subject, &other, 4);
    drop(one);
    let stats = gives_back(&pool, page.0 * 2);
    assert_eq!(stats.held, stats.kept + page.0 * 3);
    if counts_at_once(subject) {
        assert_eq!(subject.free_here(), free - Bytes(stats.held));
    }
    check(subject, &other, 4);
    let again = alloc(&pool, Bytes(page.0 * 10));
    write(subject, &again, 5);
    check(subject, &other, 4);
    drop((again, other));
    assert_eq!(gives_back(&pool, page.0 * 2).live, 0);
    is_empty(&pool);
}

/// Frees until at most `keep` bytes are kept: memory that a device may still use is released by a later free.
fn gives_back<B: TestKit>(pool: &Pool<B>, keep: u64) -> PoolStats {
    for _ in 0..1000 {
        let stats = adds_up(pool);
        if stats.kept <= keep {
            return stats;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        drop(alloc(pool, page(pool)));
    }
    panic!("the pool keeps more than its setting: {}", pool.stats())
}

fn trimmed<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let (page, free) = (page(&pool), subject.free_here());
    let pages = |count: u64| Bytes(page.0 * count);
    let (stays, goes) = (alloc(&pool, pages(3)), alloc(&pool, pages(9)));
    write(subject, &stays, 6);
    let counts = counts_at_once(subject);
    if counts {
        assert_eq!(subject.free_here(), free - pages(12));
    }
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO, "trimming released memory with live blocks");
    drop(goes);
    for (keep, gone) in
        [(pages(20), 0), (pages(9), 0), (pages(7), 2), (pages(6) + Bytes(1), 1), (Bytes::ZERO, 6)]
    {
        assert_eq!(pool.trim(keep).unwrap(), pages(gone), "down to {keep}");
        let stats = adds_up(&pool);
        assert_eq!(stats.held, pages(3).0 + stats.kept);
        assert!(stats.kept <= keep.0);
        if counts {
            assert_eq!(subject.free_here(), free - Bytes(stats.held));
        }
    }
    assert_eq!(pool.stats().mapped, pages(3).0);
    check(subject, &stays, 6);
    drop(stays);
    is_empty(&pool);
}

fn caches_are_brought_in<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).budget(page).build().unwrap();
    let medium = page.0 / 4;
    let blocks: Vec<_> = (0..4).map(|_| alloc(&pool, Bytes(medium.min(1 << 20)))).collect();
    drop(blocks);
    assert!(pool.stats().cached > 0);
    let whole = alloc(&pool, page);
    assert_eq!((adds_up(&pool).held, pool.stats().cached), (page.0, 0));
    drop(whole);
    is_empty(&pool);
}

/// All free memory of the device except for `but` bytes.
fn hog<B: TestKit>(subject: &Subject<B>, but: Bytes) -> PhysicalMemory<B> {
    let free = subject.free_here() - but;
    let size = Bytes(free.0 / subject.granularity().0 * subject.granularity().0);
    let mut size = Bytes(size.0 / (2 << 20) * (2 << 20));
    // A driver may be able to create less than it reports as free.
    loop {
        match PhysicalMemory::create(&subject.backend, size, subject.properties()) {
            Ok(memory) => return memory,
            Err(error) if error.is_out_of_memory() && size.0 > but.0 => size -= Bytes::mib(64),
            Err(error) => panic!("{error}"),
        }
    }
}

fn out_of_memory<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let first = alloc(&pool, Bytes::mib(4));
    write(subject, &first, 1);
    let hog = hog(subject, Bytes::mib(64));
    let mut blocks = Vec::new();
    let error = loop {
        match pool.alloc(Bytes::mib(16)) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        assert!(blocks.len() < 40, "the device never runs out of memory");
    };
    let text = error.to_string();
    let Some(PoolError::OutOfMemory { stats, source, .. }) = error.extension() else { panic!("{text}") };
    assert!(matches!(**source, ExhaustedResource::Driver(_)), "{source:?}");
    assert_eq!(stats.live, (4 << 20) + ((blocks.len() as u64) << 24));
    adds_up(&pool);
    drop(hog);
    let next = alloc(&pool, Bytes::mib(16));
    write(subject, &next, 2);
    check(subject, &first, 1);
    drop((first, blocks, next));
    is_empty(&pool);
}

fn the_callback_is_asked<B: TestKit>(subject: &Subject<B>) {
    let held = Arc::new(Mutex::new(Some(hog(subject, Bytes::mib(16)))));
    let calls = Arc::new(AtomicU32::new(0));
    let (inside, counts) = (Arc::clone(&held), Arc::clone(&calls));
    let pool = builder(subject)
        .on_out_of_memory(move |stats, needed| {
            assert_eq!((needed, stats.live), (Bytes::mib(300), 0));
            counts.fetch_add(1, Ordering::SeqCst);
            inside.lock().unwrap().take().is_some()
        })
        .build()
        .unwrap();
    let block = alloc(&pool, Bytes::mib(300));
    assert_eq!((calls.load(Ordering::SeqCst), block.size()), (1, Bytes::mib(300)));
    drop(block);
    is_empty(&pool);
    *held.lock().unwrap() = Some(hog(subject, Bytes::mib(16)));
    let refused = held.lock().unwrap().take();
    assert!(pool.alloc(Bytes::mib(300)).unwrap_err().is_out_of_memory());
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the callback returned false and was called again");
    drop(refused);
    is_empty(&pool);
}

fn the_callback_frees_blocks<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let spare = Arc::new(Mutex::new(Vec::new()));
    let inside = Arc::clone(&spare);
    let pool = builder(subject)
        .budget(Bytes(page.0 * 4))
        .on_out_of_memory(move |_, _| inside.lock().unwrap().pop().is_some())
        .build()
        .unwrap();
    spare.lock().unwrap().extend((0..4).map(|_| alloc(&pool, page)));
    let block = alloc(&pool, Bytes(page.0 * 3));
    assert_eq!(spare.lock().unwrap().len(), 1);
    assert_eq!(adds_up(&pool).live, page.0 * 4);
    drop(block);
    spare.lock().unwrap().clear();
    // Freed blocks of this size are in a thread cache at first.
    let (medium, count) = (Bytes::mib(1), (page.0 * 4) >> 20);
    spare.lock().unwrap().extend((0..count).map(|_| alloc(&pool, medium)));
    drop(alloc(&pool, page));
    assert_eq!(spare.lock().unwrap().len() as u64, count - (page.0 >> 20));
    spare.lock().unwrap().clear();
    is_empty(&pool);
}

fn out_of_addresses<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit().0.max(page(&pool(subject)).0);
    let all = Bytes(unit * 16);
    let pool = builder(subject).addresses(all).build().unwrap();
    let block = alloc(&pool, Bytes(unit * 10));
    write(subject, &block, 1);
    let error = pool.alloc(Bytes(unit * 8)).unwrap_err();
    let text = error.to_string();
    let Some(PoolError::OutOfAddresses { requested, used, reserved, limit, stats, .. }) = error.extension()
    else {
        panic!("{text}")
    };
    assert_eq!((*requested, *limit), (Bytes(unit * 8), all));
    assert!(*reserved <= all && *used >= block.size() && stats.reserved <= all.0, "{text}");
    // Another tag gets the remaining addresses, if there are any.
    let (tagged, mut others) = (pool.tagged("other").unwrap(), Vec::new());
    let other = loop {
        match tagged.alloc(Bytes(unit)) {
            Ok(block) => others.push(block),
            Err(error) => break error,
        }
        assert!(others.len() < 7, "more addresses than the pool's limit");
    };
    assert!(matches!(other.extension(), Some(PoolError::OutOfAddresses { .. })), "{other}");
    drop(others);
    check(subject, &block, 1);
    // Addresses that become free after a wait serve the request too.
    let hand = Hand::new();
    block.free_after(hand.fence());
    assert!(pool.alloc(Bytes(unit * 8)).is_err());
    hand.set(Hand::WAITED);
    drop(alloc(&pool, Bytes(unit * 8)));
    is_empty(&pool);
}

fn addresses_are_left_to_others<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit().0.max(page(&pool(subject)).0);
    let pool = builder(subject).addresses(Bytes(unit * 16)).build().unwrap();
    let blocks = ["", "one", "other"].map(|tag| alloc(&pool.tagged(tag).unwrap(), Bytes(unit)));
    assert!(adds_up(&pool).reserved <= unit * 16);
    drop(blocks);
    is_empty(&pool);
}
