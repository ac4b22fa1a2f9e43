//! The address, size and bytes of a block.

use super::{MIN, adds_up, alloc, check, is_empty, page, pool, write};
use crate::case::cases;
use crate::library::tools::assert_names;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail};
use gpu_vmm_pool::PoolError;
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// Blocks of all sizes do not overlap, and keep their bytes while others are allocated and freed.
    blocks_are_apart_and_keep_their_bytes,
    /// A block's address is a multiple of the requested alignment, up to 1 GiB, for small and large blocks.
    aligned,
    /// A request is not served with the block that was freed last if that block is not aligned to the requested alignment.
    aligned_to_more_than_the_last,
    /// A size of zero, an alignment that is not a power of two, and a size above the device's memory are refused with the
    /// numbers, before anything is reserved.
    refused_sizes_and_alignments,
    /// A request is rounded up by an eighth at most.
    little_is_lost_by_rounding,
    /// Blocks of many threads do not overlap, whichever thread frees them.
    from_many_threads,
}

/// Sizes of each class: slots, edges of small slabs, medium ranges, large ranges, and one byte more than each.
const SIZES: [u64; 20] = [
    1, 8, 255, 256, 257, 2048, 2049, 4096, 65_535, 65_536, 65_537, 262_144, 1_048_575, 1_048_576, 1_048_577,
    2_097_152, 2_097_153, 3_145_728, 5_000_000, 9_437_184,
];

#[track_caller]
fn are_apart<B: TestKit>(blocks: &[(gpu_vmm_pool::Block<B>, u64)]) {
    let mut ranges: Vec<_> =
        blocks.iter().map(|(block, _)| (block.address().0, block.address().0 + block.capacity().0)).collect();
    ranges.sort_unstable();
    assert!(ranges.is_sorted_by(|one, next| one.1 <= next.0), "{ranges:x?}");
}

fn blocks_are_apart_and_keep_their_bytes<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let mut blocks = Vec::new();
    let mut seed = 0;
    for round in 0..4 {
        for size in SIZES {
            let block = alloc(&pool, Bytes(size));
            seed += 1;
            write(subject, &block, seed << 32);
            blocks.push((block, seed << 32));
        }
        are_apart(&blocks);
        blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
        adds_up(&pool);
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 3 != round % 3
        });
    }
    drop(blocks);
    is_empty(&pool);
}

fn aligned<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let mut blocks = Vec::new();
    for alignment in [1, 8, 256, 512, 4096, 1 << 16, 2 << 20, 64 << 20, 1 << 30] {
        // A device has addresses for several gibibytes at least.
        let count = if alignment == 1 << 30 { 1 } else { 5 };
        for size in [(3 << 20) + 1, 1, 300, 5000, 70_000, 1 << 20].into_iter().take(1 + count) {
            let block = pool.request(Bytes(size)).alignment(Bytes(alignment)).alloc().unwrap();
            let at = block.address();
            assert!(at.0.is_multiple_of(alignment.max(256)), "{at} for {alignment}");
            write(subject, &block, at.0);
            let at = at.0;
            blocks.push((block, at));
        }
    }
    // The slots of some sizes, such as 768 bytes, are not all aligned to 512 bytes.
    for size in [1, 600, 1100, 1700, 2200].into_iter().flat_map(|size| [size; 4]) {
        let block = pool.request(Bytes(size)).alignment(Bytes(512)).alloc().unwrap();
        let at = block.address().0;
        assert!(at.is_multiple_of(512), "{size} bytes at {at:#x}");
        write(subject, &block, at);
        blocks.push((block, at));
    }
    are_apart(&blocks);
    blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
    let held = pool.stats().held;
    assert!(held < 300 << 20, "{held} bytes are held, although addresses between blocks need no memory");
    drop(blocks);
    is_empty(&pool);
}

fn refused_sizes_and_alignments<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let core = |size, alignment| {
        pool.request(Bytes(size)).alignment(Bytes(alignment)).alloc().map(drop).unwrap_err()
    };
    assert!(matches!(core(0, 256).detail(), Detail::ZeroSize));
    for alignment in [0, 3, 257, 1 << 63, u64::MAX] {
        let error = core(8, alignment);
        assert!(matches!(error.detail(), Detail::BadAlignment { .. }), "{error}");
    }
    let total = subject.backend.memory_info(subject.device).unwrap().total;
    for size in [total.0 + 1, u64::MAX - 511, u64::MAX] {
        let error = core(size, 256);
        assert!(matches!(error.detail(), Detail::ExceedsDevice { .. }), "{error}");
        assert_names(&error, &[format!("{total:#}")]);
    }
    let none = pool.request(Bytes(8)).alignment(Bytes(1 << 45)).alloc().unwrap_err();
    assert!(matches!(none.extension(), Some(PoolError::OutOfAddresses { .. })), "{none}");
    let stats = adds_up(&pool);
    assert_eq!((stats.held, stats.live_blocks, stats.driver_calls.create), (0, 0, 0));
    alloc(&pool, Bytes(8));
}

fn little_is_lost_by_rounding<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    for size in (1..=1 << 20).step_by(7777).chain([1 << 21, 3 << 20, 12_345_678]) {
        let block = pool.alloc(Bytes(size)).unwrap();
        let lost = block.capacity().0 - size;
        assert!(lost <= size / 8 || lost <= MIN.0, "{lost} of {size}");
    }
    let all: Vec<_> = (0..1000).map(|_| alloc(&pool, MIN)).collect();
    let stats = adds_up(&pool);
    assert_eq!((stats.live, stats.live_blocks), (256_000, 1000));
    assert!(
        stats.held - stats.kept <= 2 * page(&pool).0,
        "a thousand small blocks take more than two pages: {stats:?}"
    );
    drop(all);
}

fn from_many_threads<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let blocks: Vec<_> = std::thread::scope(|scope| {
        let pool = &pool;
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut blocks = Vec::new();
                    for round in 0..40_u64 {
                        let size = SIZES[(round as usize * 7 + thread) % 15];
                        let (block, seed) = (alloc(pool, Bytes(size)), (thread as u64) << 40 | round << 20);
                        write(subject, &block, seed);
                        if round % 3 > 0 {
                            blocks.push((block, seed));
                        }
                    }
                    blocks
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    are_apart(&blocks);
    blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
    drop(blocks);
    is_empty(&pool);
}

fn aligned_to_more_than_the_last<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let [first, last] = [(); 2].map(|()| alloc(&pool, Bytes::mib(3)));
    let more = Bytes(2 << last.address().0.trailing_zeros());
    drop(last);
    let aligned = pool.request(Bytes::mib(3)).alignment(more).alloc().unwrap();
    assert!(aligned.address().is_aligned_to(more), "{} is not aligned to {more}", aligned.address());
    drop((first, aligned));
    is_empty(&pool);
}
