//! Programs that repeat a few allocations for ever: what a pool uses does not grow with the number of rounds.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_POOL_ROUNDS` | 100000 | the number of rounds of each case |

use super::{DEFAULT, builder, is_empty, page};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::pool::waits::named;
use crate::library::tools::{idle, setting};
use crate::subject::{Subject, note, or_skip};
use gpu_vmm_core::{Backend, Bytes, Stream};
use gpu_vmm_pool::{Block, Pool, PoolStats};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::endurance::most_mapped;
use std::collections::VecDeque;

cases! { "pool":
    /// A double buffer on one stream holds the memory of its two blocks for ever.
    double_buffer,
    /// A double buffer whose blocks belong to two streams by turns, with work on both, stays within the bound of its addresses.
    double_buffer_on_two_streams,
    /// Blocks of four sizes with a large alignment stay within the bound of their addresses.
    aligned_blocks,
    /// Two aligned blocks of one size by turns make no driver call after the first rounds.
    aligned_pairs,
    /// Tags that end without a block give their addresses back when others need them.
    tags_that_end,
    /// A region that loses and gains its last piece for ever keeps the others.
    one_piece_by_turns,
}

const MIB: u64 = 1 << 20;

fn rounds() -> u64 {
    setting("GPU_VMM_POOL_ROUNDS", 100_000)
}

/// Keeps two blocks alive for many rounds, and returns the statistics at the end. `alloc` allocates the block of a round.
fn keep_two<B: Backend>(pool: &Pool<B>, alloc: impl Fn(&Pool<B>, u64) -> Block<B>) -> PoolStats {
    let mut alive = VecDeque::new();
    for round in 0..rounds() {
        alive.push_back(alloc(pool, round));
        if alive.len() > 2 {
            alive.pop_front();
        }
    }
    let stats = pool.stats();
    note(format!(
        "{} rounds, {} of addresses mapped, {} held",
        rounds(),
        Bytes(stats.mapped),
        Bytes(stats.held)
    ));
    drop(alive);
    stats
}

/// The size of a block of 3 million bytes.
const BUFFER: u64 = 3_000_000;

fn double_buffer<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let stats = keep_two(&pool, |pool, _| pool.alloc(Bytes(BUFFER)).unwrap());
    assert!(stats.mapped <= most_mapped(&[(BUFFER, 256); 3], page(&pool).0), "{stats:?}");
    is_empty(&pool);
}

fn double_buffer_on_two_streams<B: TestKit>(subject: &Subject<B>) {
    let owns = [(); 2].map(|()| own(subject));
    let pool = builder(subject).build().unwrap();
    let stats = keep_two(&pool, |pool, round| {
        let own = &*owns[round as usize % 2];
        let block = pool.request(Bytes(BUFFER)).stream(named(own)).alloc().unwrap();
        if round % 16 < 2 {
            work(subject, named(own), &block);
        }
        // The work of at most 1,000 rounds is not done.
        if round % 1000 == 0 {
            subject.backend.synchronize(subject.device).unwrap();
        }
        block
    });
    // The blocks of each stream that are alive or wait for its work.
    assert!(stats.mapped <= most_mapped(&[(BUFFER, 256); 8], page(&pool).0), "{stats:?}");
    assert!(stats.held <= 4 * BUFFER.next_multiple_of(page(&pool).0) + page(&pool).0 * 4, "{stats:?}");
    is_empty(&pool);
}

/// Queues a little work that writes to a block.
#[allow(unsafe_code)]
fn work<B: TestKit>(subject: &Subject<B>, stream: Stream<'static>, block: &Block<B>) {
    // SAFETY: the block is mapped, and the pool unmaps no memory under work of the block's stream.
    or_skip(unsafe {
        subject.backend.start_pattern_on(subject.device, stream, block.address(), Bytes(4096), 1, 1)
    });
}

fn aligned_blocks<B: TestKit>(subject: &Subject<B>) {
    let (sizes, alignment) = ([3, 4, 5, 6].map(|size| size * MIB), 32 * MIB);
    let pool = builder(subject).build().unwrap();
    let stats = keep_two(&pool, |pool, round| {
        let size = sizes[round as usize % sizes.len()];
        pool.request(Bytes(size)).alignment(Bytes(alignment)).alloc().unwrap()
    });
    let blocks = sizes.map(|size| (size, alignment));
    assert!(stats.mapped <= most_mapped(&blocks, page(&pool).0), "{stats:?}");
    is_empty(&pool);
}

fn aligned_pairs<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    let alloc = || pool.request(Bytes(3 * MIB)).alignment(Bytes(4 * MIB)).alloc().unwrap();
    let mut before = 0;
    for round in 0..rounds() {
        drop([alloc(), alloc()]);
        if round == 10 {
            before = pool.stats().driver_calls.map;
        }
    }
    let after = pool.stats().driver_calls.map;
    assert!(rounds() <= 10 || after == before, "{} mappings in {} rounds", after - before, rounds());
    is_empty(&pool);
}

fn tags_that_end<B: TestKit>(subject: &Subject<B>) {
    let pool = builder(subject).build().unwrap();
    for round in 0..rounds() {
        let tagged = pool.tagged(&format!("request-{round}")).unwrap();
        drop(tagged.request(Bytes(BUFFER)).stream(DEFAULT).alloc().unwrap());
    }
    pool.trim(Bytes::ZERO).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.mapped, stats.held), (0, 0), "{stats:?}");
    assert!(stats.reserved <= 1 << 40, "{stats:?}");
}

fn one_piece_by_turns<B: TestKit>(subject: &Subject<B>) {
    const PIECES: u64 = 40;
    let mut region = subject.space(PIECES + 1).build().unwrap();
    for pieces in 1..=PIECES {
        region.grow_to(subject.granules(pieces)).unwrap();
    }
    for _ in 0..rounds() / 100 {
        region.grow_to(subject.granules(PIECES + 1)).unwrap();
        let shrunk = region.shrink_to(subject.granules(PIECES), idle()).unwrap();
        assert_eq!(shrunk.removed, subject.granularity());
    }
    assert_eq!(region.mappings().count() as u64, PIECES);
    region.close(idle()).unwrap();
}
