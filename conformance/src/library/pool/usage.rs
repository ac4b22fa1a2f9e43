//! The memory of a pool as frameworks account for it.

use super::{Hand, alloc, builder, is_empty, page, pool};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{BackingStore, Bytes, Error};
use gpu_vmm_pool::{Pool, PoolError, WaitingBlocks};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// The usage has the memory of small blocks, freed blocks that wait, and the numbers of pages.
    usage_follows_the_blocks,
    /// The slots of a size are live or free, also those in thread caches.
    slots_are_live_or_free,
    /// The memory of a part of a block is the memory of the pages that contain it; a part without memory has none.
    memory_of_a_part,
    /// The peak can be set back, and a smaller budget refuses new memory until it is larger again.
    peak_and_budget_can_be_set,
}

fn usage_follows_the_blocks<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let page = page(&pool).0;
    let (small, large) = (alloc(&pool, Bytes(5000)), alloc(&pool, Bytes(page * 3)));
    let usage = pool.usage();
    assert_eq!([usage.held, usage.peak_held, usage.held_small, usage.page], [page * 4, page * 4, page, page]);
    assert_eq!((usage.created, usage.released), (4, 0));
    let hand = Hand::new();
    let sizes = [&small, &large].map(|block| WaitingBlocks { blocks: 1, bytes: block.capacity().0 });
    let places = [&small, &large].map(|block| (block.address(), block.capacity()));
    small.free_after(hand.fence());
    large.free_after(hand.fence());
    assert_eq!(pool.layout().pending, places);
    let usage = pool.usage();
    assert_eq!([usage.pending_small, usage.pending_large], sizes);
    assert_eq!(usage.held_small, page, "the block that waits is in it");
    hand.set(Hand::DONE);
    // Collects everything, and releases nothing.
    pool.trim(Bytes(u64::MAX)).unwrap();
    let usage = pool.usage();
    assert_eq!([usage.pending_small, usage.pending_large], [WaitingBlocks::default(); 2]);
    assert_eq!((usage.held, usage.held_small), (page * 4, 0), "no block is left in the memory that is kept");
    is_empty(&pool);
    let usage = pool.usage();
    assert_eq!([usage.held, usage.peak_held, usage.created, usage.released], [0, page * 4, 4, 4]);
}

fn slots_are_live_or_free<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let slots = |pool: &Pool<B>| {
        let bins = pool.stats().bins;
        assert_eq!(bins.len(), 1, "{bins:?}");
        (bins[0].live, bins[0].live + bins[0].free)
    };
    let blocks: Vec<_> = (0..3).map(|_| alloc(&pool, Bytes(5000))).collect();
    let (live, all) = slots(&pool);
    assert!(live == 3 && all >= 3, "{live} of {all}");
    drop(blocks);
    assert_eq!(slots(&pool), (0, all));
    is_empty(&pool);
}

fn memory_of_a_part<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject).tagged("kv").unwrap();
    let page = page(&pool);
    let mut blocks = [Bytes(100), Bytes(5000), Bytes(page.0 * 3 / 2 + 8)].map(|size| alloc(&pool, size));
    for block in &mut blocks {
        let bytes: Vec<u8> = (0..block.size().0).map(|at| (at % 251) as u8).collect();
        block.write(Bytes::ZERO, &bytes).unwrap();
        for (offset, length) in [(0, 1), (0, bytes.len()), (bytes.len() - 7, 7)] {
            let (memory, at) =
                pool.memory_at(block.address() + Bytes(offset as u64), Bytes(length as u64)).unwrap();
            assert!(at < page && memory.iter().all(|piece| piece.size() == page));
            assert_eq!(
                memory.len() as u64,
                (at.0 + length as u64).div_ceil(page.0),
                "{length} bytes at {at}"
            );
            // The bytes, read from each piece.
            let mut found = Vec::new();
            for piece in &memory {
                let mut here = vec![0; page.0 as usize];
                piece.read(Bytes::ZERO, &mut here).unwrap();
                found.extend(here);
            }
            assert!(
                found[at.0 as usize..][..length] == bytes[offset..offset + length],
                "{length} bytes at {at}"
            );
        }
    }
    let is_refused = |address, size| {
        let answer = pool.memory_at(address, size);
        assert!(
            matches!(answer.as_ref().map_err(Error::extension), Err(Some(PoolError::NotABlock { .. }))),
            "{answer:?}"
        );
    };
    is_refused(gpu_vmm_core::Address(0), page);
    is_refused(blocks[2].address(), Bytes(u64::MAX));
    let store = BackingStore::pinned(&subject.backend, pool.occupied("kv").unwrap()).unwrap();
    pool.suspend("kv", &store, idle()).unwrap();
    is_refused(blocks[2].address(), page);
    pool.resume("kv").unwrap();
}

fn peak_and_budget_can_be_set<B: TestKit>(subject: &Subject<B>) {
    let page = page(&pool(subject));
    let pool = builder(subject).budget(page * 4).build().unwrap();
    let (one, other) = (alloc(&pool, page), alloc(&pool, page * 3));
    assert!(pool.alloc(page).unwrap_err().is_out_of_memory());
    drop(other);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.usage().peak_held, (page * 4).0);
    pool.reset_peak().unwrap();
    assert_eq!((pool.usage().peak_held, pool.stats().peak_held), (page.0, page.0));
    pool.set_budget(page).unwrap();
    assert!(pool.alloc(page).unwrap_err().is_out_of_memory());
    pool.set_budget(page * 2).unwrap();
    drop((one, alloc(&pool, page)));
    assert_eq!(pool.usage().peak_held, (page * 2).0);
    is_empty(&pool);
}
