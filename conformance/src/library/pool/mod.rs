//! Pools: many allocations of all sizes from a device's memory.

mod blocks;
mod bytes;
mod captures;
mod chosen;
mod ends;
mod failing;
mod frames;
mod kinds;
mod limits;
mod moved;
mod order;
mod pages;
mod random;
mod raw;
mod rounds;
mod saved;
mod soak;
mod stats;
mod strangers;
mod streams;
mod tags;
mod usage;
mod waits;

pub(crate) use order::start;
pub(crate) use stats::is_consistent;

use crate::case::Case;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Operation, Stream};
use gpu_vmm_pool::{Block, Fence, Pool, PoolBuilder, PoolStats};
use gpu_vmm_testkit::TestKit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [
        blocks::cases(),
        bytes::cases(),
        order::cases(),
        streams::cases(),
        captures::cases(),
        strangers::cases(),
        waits::cases(),
        frames::cases(),
        pages::cases(),
        limits::cases(),
        stats::cases(),
        usage::cases(),
        kinds::cases(),
        tags::cases(),
        chosen::cases(),
        saved::cases(),
        moved::cases(),
        raw::cases(),
        ends::cases(),
        failing::cases(),
        rounds::cases(),
        random::cases(),
        soak::cases(),
    ]
    .concat()
}

/// Every block's address is a multiple of this.
const MIN: Bytes = Bytes(256);
const DEFAULT: Stream<'static> = Stream::DEFAULT;

fn builder<B: TestKit>(subject: &Subject<B>) -> PoolBuilder<'_, B> {
    Pool::builder(&subject.backend).device(subject.device)
}

fn pool<B: TestKit>(subject: &Subject<B>) -> Pool<B> {
    builder(subject).build().unwrap()
}

/// The size of a pool's pages of physical memory.
fn page<B: Backend>(pool: &Pool<B>) -> Bytes {
    Bytes(pool.snapshot().page)
}

/// Allocates on the default stream.
#[track_caller]
fn alloc<B: Backend>(pool: &Pool<B>, size: Bytes) -> Block<B> {
    let block = pool.alloc(size).unwrap();
    assert!(block.address().0.is_multiple_of(MIN.0) && block.size() == size && block.capacity() >= size);
    block
}

/// Writes the pattern of a seed to a block's whole words with the device.
#[track_caller]
#[allow(unsafe_code)]
pub(super) fn write_at<B: TestKit>(backend: &B, device: DeviceId, at: Address, size: Bytes, seed: u64) {
    // SAFETY: a block's memory is mapped and its device may write it.
    unsafe { backend.write_pattern(device, at, Bytes(size.0 / 8 * 8), seed) }.unwrap();
}

/// The number of the block's words that differ from the pattern.
#[track_caller]
#[allow(unsafe_code)]
pub(super) fn wrong_at<B: TestKit>(
    backend: &B,
    device: DeviceId,
    at: Address,
    size: Bytes,
    seed: u64,
) -> u64 {
    // SAFETY: as above.
    unsafe { backend.count_wrong(device, at, Bytes(size.0 / 8 * 8), seed) }.unwrap()
}

#[track_caller]
fn write<B: TestKit>(subject: &Subject<B>, block: &Block<impl Backend>, seed: u64) {
    write_at(&subject.backend, subject.device, block.address(), block.size(), seed);
}

#[track_caller]
fn check<B: TestKit>(subject: &Subject<B>, block: &Block<impl Backend>, seed: u64) {
    let wrong = wrong_at(&subject.backend, subject.device, block.address(), block.size(), seed);
    assert_eq!(wrong, 0, "words that differ in {} at {}", block.size(), block.address());
}

/// Fails if the pool's statistics contradict themselves or its snapshot.
#[track_caller]
pub(crate) fn adds_up<B: Backend>(pool: &Pool<B>) -> PoolStats {
    let snapshot = pool.snapshot();
    let (stats, page) = (pool.stats(), snapshot.page);
    // Suspended blocks are live and have no memory.
    if snapshot.spaces.iter().all(|space| !space.suspended) {
        assert!(stats.live + stats.cached + stats.pending <= stats.held - stats.kept, "{stats:?}");
    }
    assert!(stats.kept <= stats.held && stats.held.is_multiple_of(page), "{stats:?}");
    assert!(stats.mapped.is_multiple_of(page) && stats.mapped <= stats.reserved, "{stats:?}");
    assert!(stats.held <= stats.peak_held && stats.live_blocks <= stats.allocations, "{stats:?}");
    stats
}

/// Releases all free memory, also from thread caches, and checks that nothing is left.
#[track_caller]
fn is_empty<B: Backend>(pool: &Pool<B>) {
    pool.trim(Bytes::ZERO).unwrap();
    let PoolStats { live, live_blocks, cached, pending, kept, held, mapped, .. } = adds_up(pool);
    assert_eq!([live, live_blocks, cached, pending, kept, held, mapped], [0; 7]);
}

/// Whether the driver counts memory as free as soon as it is released.
fn counts_at_once<B: TestKit>(subject: &Subject<B>) -> bool {
    !["memory-stays-until-free", "release-frees-nothing"].iter().any(|quirk| subject.has_quirk(quirk))
}

/// A fence whose state the case sets.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU8>);

impl Hand {
    const DONE: u8 = 1;
    const FAILING: u8 = 2;
    /// Waiting succeeds at once, although `is_done` still returns false.
    const WAITED: u8 = 3;

    fn new() -> Self {
        Self::default()
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::SeqCst);
    }

    fn fence(&self) -> Arc<dyn Fence> {
        Arc::new(self.clone())
    }

    fn failed() -> gpu_vmm_core::Error {
        gpu_vmm_core::Error::new(
            Operation::QueryEvent,
            gpu_vmm_core::Detail::Unsupported { reason: "it fails".to_owned() },
        )
    }
}

impl Fence for Hand {
    fn is_done(&self) -> gpu_vmm_core::Result<bool> {
        match self.0.load(Ordering::SeqCst) {
            Self::FAILING => Err(Self::failed()),
            state => Ok(state == Self::DONE),
        }
    }

    fn wait(&self) -> gpu_vmm_core::Result<()> {
        match self.0.load(Ordering::SeqCst) {
            Self::DONE | Self::WAITED => Ok(()),
            _ => Err(Self::failed()),
        }
    }
}
