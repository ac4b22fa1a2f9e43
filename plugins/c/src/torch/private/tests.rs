//! Private pools on host memory.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::pool_options::PoolOptions;
use crate::status::{GPU_VMM_BUSY, GPU_VMM_FORKED, GPU_VMM_SUSPENDED};
use crate::torch::importers::Importers;
use crate::torch::shared::{Handle, Shared};
use crate::torch::table::GPU_VMM_TORCH_LIVE;
use gpu_vmm::testkit::{CaptureMode, TestKit as _, WorkStream};
use gpu_vmm::{BackingStore, DeviceId, Vendor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const ID: MempoolId = MempoolId { first: 0, second: 7 };
const OTHER: MempoolId = MempoolId { first: 0, second: 8 };
const SIZE: Bytes = Bytes::kib(300);
const STREAM: Stream<'static> = Stream::DEFAULT;

/// The table is the process's, so each test has a device number of its own.
fn pools(device: u8) -> PrivatePools {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let pools = PrivatePools::new(Pool::new(&host, &PoolOptions::DEFAULT).unwrap(), device);
    pools.acquire(ID).unwrap();
    pools
}

/// Returns another stream, without work.
fn other() -> Stream<'static> {
    // SAFETY: the host backend never dereferences a stream.
    unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) }
}

fn alloc(pools: &PrivatePools) -> Address {
    Address(pools.alloc(ID, SIZE, Bytes(512), STREAM).unwrap().address)
}

fn free(pools: &PrivatePools, address: Address) {
    let entry = table::remove(address).unwrap().unwrap();
    let id = entry.private().unwrap();
    pools.free(entry, id).unwrap();
}

fn live(pools: &PrivatePools) -> u64 {
    pools.pool.blocks.stats().live_blocks
}

#[test]
fn a_freed_block_serves_its_pool_alone() {
    let pools = pools(1);
    pools.acquire(OTHER).unwrap();
    let seen = pools.alloc(ID, SIZE, Bytes(512), STREAM).unwrap();
    assert_eq!((seen.size, seen.pool, seen.device, seen.state), (SIZE.0, ID, 1, GPU_VMM_TORCH_LIVE));
    assert!(seen.capacity >= SIZE.0 && seen.stream.is_null() && !seen.used_elsewhere);
    let first = Address(seen.address);
    free(&pools, first);
    let other = Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address);
    assert_ne!(other, first);
    assert_eq!(alloc(&pools), first);
    free(&pools, other);
    free(&pools, first);
    assert_eq!(live(&pools), 2);
    pools.release(OTHER).unwrap();
    assert_eq!((live(&pools), pools.uses(OTHER).unwrap(), pools.uses(ID).unwrap()), (1, 0, 1));
    pools.release(ID).unwrap();
    assert_eq!(live(&pools), 0);
    assert_eq!(pools.release(ID).unwrap_err().status, GPU_VMM_NOT_FOUND);
    assert!(pools.alloc(ID, SIZE, Bytes(512), STREAM).is_err());
}

#[test]
fn checkpoint_is_set_of_live_blocks() {
    let pools = pools(2);
    let (kept, freed) = (alloc(&pools), alloc(&pools));
    let checkpoint = pools.checkpoint(ID).unwrap();
    free(&pools, freed);
    let smaller = pools.alloc(ID, SIZE - Bytes(2048), Bytes(512), STREAM).unwrap();
    let smaller = Address(smaller.address);
    assert_eq!(smaller, freed, "the block serves the next request");
    let later = alloc(&pools);
    let counted = || table::with_amounts(2, |amounts| amounts.read()).unwrap();
    assert_eq!(counted().requested.live, [3 * SIZE.0 - 2048, 0]);
    let before = pools.restore(&checkpoint).unwrap();
    assert_eq!((counted().blocks.live, counted().requested.live), ([2, 0], [2 * SIZE.0, 0]));
    // As PyTorch's own allocator counts: all that was live is freed, and all of the checkpoint is allocated.
    assert_eq!((counted().blocks.freed, counted().blocks.allocated), ([4, 0], [6, 0]));
    assert_eq!(before.keys().copied().collect::<Vec<_>>(), {
        let mut all = [kept, freed, later];
        all.sort();
        all
    });
    assert_eq!(pools.checkpoint(ID).unwrap().blocks.len(), 2);
    assert_eq!(table::with(freed, |entry| entry.size()), Some(SIZE.0), "it has the size of the checkpoint");
    assert!(table::with(later, |_| ()).is_none(), "a later block is free");
    assert_eq!(alloc(&pools), later);
    free(&pools, later);
    free(&pools, kept);
    pools.restore(&checkpoint).unwrap();
    assert!(table::with(kept, |_| ()).is_some(), "a freed block is live again");
    free(&pools, kept);
    free(&pools, freed);
    pools.release(ID).unwrap();
    assert_eq!(live(&pools), 0);
}

#[test]
fn checkpoint_lacks_blocks_of_other_pools() {
    let pools = pools(11);
    pools.acquire(OTHER).unwrap();
    let (own, other) =
        (alloc(&pools), Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address));
    let checkpoint = pools.checkpoint(ID).unwrap();
    assert_eq!(checkpoint.blocks.keys().copied().collect::<Vec<_>>(), [own]);
    free(&pools, own);
    pools.restore(&checkpoint).unwrap();
    assert_eq!(table::with(other, |entry| entry.private()), Some(Some(OTHER)), "it stays live");
    free(&pools, own);
    free(&pools, other);
    pools.release(OTHER).unwrap();
    pools.release(ID).unwrap();
    assert_eq!(live(&pools), 0);
}

#[test]
fn checkpoint_lacks_blocks_of_other_devices() {
    let (here, there) = (pools(16), pools(17));
    let (own, other) = (alloc(&here), alloc(&there));
    for (pools, block) in [(&here, own), (&there, other)] {
        assert_eq!(pools.checkpoint(ID).unwrap().blocks.keys().copied().collect::<Vec<_>>(), [block]);
    }
    free(&here, own);
    free(&there, other);
}

#[test]
fn checkpoint_of_released_pool_changes_nothing() {
    let pools = pools(3);
    let (one, two) = (alloc(&pools), alloc(&pools));
    let checkpoint = pools.checkpoint(ID).unwrap();
    free(&pools, one);
    free(&pools, two);
    pools.release(ID).unwrap();
    assert_eq!(pools.restore(&checkpoint).unwrap_err().status, GPU_VMM_NOT_FOUND);
    pools.acquire(ID).unwrap();
    let kept = alloc(&pools);
    let failure = pools.restore(&checkpoint).unwrap_err();
    assert!(failure.text.contains("is no longer in the private pool"), "{}", failure.text);
    assert!(table::with(kept, |_| ()).is_some());
    assert_eq!(live(&pools), 1);
    free(&pools, kept);
}

#[test]
fn own_tag_is_suspended_alone() {
    let pools = pools(7);
    pools.acquire(OTHER).unwrap();
    pools.set_tag(OTHER, "weights").unwrap();
    assert_eq!(
        pools.set_tag(MempoolId { first: 0, second: 9 }, "weights").unwrap_err().status,
        GPU_VMM_NOT_FOUND
    );
    let block = alloc(&pools);
    let tagged = Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address);
    let tag_of = |address| pools.pool.blocks.find(address).unwrap().tag;
    assert_eq!((&*tag_of(tagged), &*tag_of(block)), ("weights", ""));
    free(&pools, tagged);
    assert_eq!(Address(pools.alloc(OTHER, SIZE, Bytes(512), STREAM).unwrap().address), tagged);
    free(&pools, tagged);
    free(&pools, block);
    pools.release(OTHER).unwrap();
}

/// Work of another stream on a block, recorded as a use.
struct Busy(Box<dyn WorkStream>);

impl Busy {
    /// Begins work that takes a second, or some of them.
    fn on(pools: &PrivatePools, block: Address) -> Self {
        let (backend, device) = (&pools.pool.backend, DeviceId(0));
        let own = backend.own_stream(device).unwrap();
        // SAFETY: the block is mapped as long as its pool, which outlives the work: `ends` waits for it.
        unsafe { backend.start_pattern_on(device, own.stream(), block, SIZE, 1, 4000) }.unwrap();
        let busy = Self(own);
        table::with(block, |entry| entry.note_use(busy.stream())).unwrap();
        busy
    }

    fn stream(&self) -> Stream<'static> {
        // SAFETY: the pools forget no stream, and queue no work on it.
        unsafe { Stream::from_raw(self.0.stream().as_raw()) }
    }

    /// Waits for the work, which must not have ended before.
    fn ends(self, pools: &PrivatePools) {
        assert!(!self.0.is_done().unwrap(), "the work has ended before the test has looked");
        pools.pool.backend.synchronize_stream(DeviceId(0), self.0.stream()).unwrap();
    }
}

fn kept(pools: &PrivatePools) -> Vec<(MempoolId, Address, u32)> {
    pools.kept().unwrap().iter().map(|block| (block.pool, Address(block.address), block.state)).collect()
}

#[test]
fn a_freed_block_waits_for_recorded_streams() {
    for (device, captured) in [(4, false), (18, true)] {
        let pools = pools(device);
        let block = alloc(&pools);
        pools.books().unwrap().get(ID).unwrap().captured = captured;
        let busy = Busy::on(&pools, block);
        free(&pools, block);
        // As around a capture that uses the same pool, and that has nothing to do with the work.
        pools.begin(ID, Stream::DEFAULT).unwrap();
        pools.end(ID).unwrap();
        assert_eq!(kept(&pools), [(ID, block, GPU_VMM_TORCH_PENDING)]);
        is_free_after(&pools, block, busy);
        pools.release(ID).unwrap();
        assert_eq!(pools.clear().unwrap(), captured);
        assert_eq!(live(&pools), 0);
    }
}

/// Checks that a freed block serves no request before the other stream's work has ended, and serves the next one then.
fn is_free_after(pools: &PrivatePools, block: Address, busy: Busy) {
    let next = alloc(pools);
    assert_ne!(next, block, "another stream uses it");
    busy.ends(pools);
    assert_eq!(alloc(pools), block);
    free(pools, block);
    free(pools, next);
}

#[test]
fn a_restore_frees_blocks_after_recorded_streams() {
    let pools = pools(19);
    let checkpoint = pools.checkpoint(ID).unwrap();
    let block = alloc(&pools);
    let busy = Busy::on(&pools, block);
    pools.restore(&checkpoint).unwrap();
    is_free_after(&pools, block, busy);
}

#[test]
fn restored_block_has_no_other_user() {
    let pools = pools(20);
    let block = alloc(&pools);
    let checkpoint = pools.checkpoint(ID).unwrap();
    let busy = Busy::on(&pools, block);
    free(&pools, block);
    assert!(!busy.0.is_done().unwrap());
    pools.restore(&checkpoint).unwrap();
    assert!(busy.0.is_done().unwrap(), "the restore has not waited");
    assert!(table::with(block, |_| ()).is_some(), "it is live again");
    free(&pools, block);
}

#[test]
fn graph_memory_is_kept_until_idle() {
    let pools = pools(5);
    let (backend, device) = (&pools.pool.backend, DeviceId(0));
    let own = Busy(backend.own_stream(device).unwrap());
    // SAFETY: the capture is ended below.
    unsafe { backend.begin_capture(device, own.0.stream(), CaptureMode::Relaxed) }.unwrap();
    pools.begin(ID, Stream::DEFAULT).unwrap();
    let block = alloc(&pools);
    pools.books().unwrap().get(ID).unwrap().captured = true;
    table::with(block, |entry| entry.note_use(own.stream())).unwrap();
    free(&pools, block);
    assert_eq!(kept(&pools), [(ID, block, GPU_VMM_TORCH_PENDING)], "it stays its pool's");
    assert_ne!(alloc(&pools), block, "the other stream of the capture may use it");
    pools.release(ID).unwrap();
    assert!(!pools.clear().unwrap(), "a wait would invalidate the capture");
    assert_eq!(kept(&pools), [(MempoolId::default(), block, GPU_VMM_TORCH_FREE)]);
    // A second capture that has begun before the first one ends.
    pools.acquire(OTHER).unwrap();
    pools.begin(OTHER, Stream::DEFAULT).unwrap();
    drop(backend.end_capture(device, own.0.stream()).unwrap());
    pools.end(ID).unwrap();
    assert!(!pools.clear().unwrap(), "the other capture goes on");
    pools.end(OTHER).unwrap();
    assert!(pools.clear().unwrap());
    assert_eq!(pools.pool.blocks.stats().pending, 0);
    assert_eq!(live(&pools), 1, "the output of the graph stays");
}

#[test]
fn block_freed_in_capture_is_free_after() {
    let pools = pools(15);
    let (backend, device) = (&pools.pool.backend, DeviceId(0));
    let own = Busy(backend.own_stream(device).unwrap());
    let block = alloc(&pools);
    // SAFETY: the capture is ended below.
    unsafe { backend.begin_capture(device, own.0.stream(), CaptureMode::Relaxed) }.unwrap();
    pools.begin(ID, Stream::DEFAULT).unwrap();
    pools.books().unwrap().get(ID).unwrap().captured = true;
    table::with(block, |entry| entry.note_use(own.stream())).unwrap();
    free(&pools, block);
    drop(backend.end_capture(device, own.0.stream()).unwrap());
    assert_eq!(pools.begin(OTHER, Stream::DEFAULT).unwrap_err().status, GPU_VMM_NOT_FOUND);
    pools.end(ID).unwrap();
    assert_eq!(kept(&pools), [(ID, block, GPU_VMM_TORCH_FREE)], "a graph joins all of its streams");
    assert_eq!(alloc(&pools), block);
    assert_eq!(pools.uses(ID).unwrap(), 1);
    pools.release(ID).unwrap();
    free(&pools, block);
    assert_eq!(live(&pools), 1, "the graph of the pool that has ended may use it");
    let gone = [(MempoolId::default(), block, GPU_VMM_TORCH_FREE)];
    assert_eq!(kept(&pools), gone);
    // A wait would invalidate a capture of the program's own. The memory waits for a later call.
    pools.pool.backend.deferred().capture_begins();
    for _ in 0..2 {
        assert_eq!(pools.clear().unwrap_err().status, GPU_VMM_BUSY);
    }
    pools.pool.backend.deferred().capture_ends();
    assert_eq!((kept(&pools), live(&pools)), (gone.to_vec(), 1));
    assert!(pools.clear().unwrap() && !pools.clear().unwrap());
    assert_eq!(live(&pools), 0);
}

#[test]
fn the_stream_of_a_capture_is_watched() {
    let pools = pools(21);
    let (backend, device) = (&pools.pool.backend, DeviceId(0));
    let own = Busy(backend.own_stream(device).unwrap());
    let knows = || backend.deferred().knows_capture(backend);
    pools.acquire(OTHER).unwrap();
    for id in [ID, OTHER] {
        pools.begin(id, own.stream()).unwrap();
    }
    assert!(!knows());
    // SAFETY: the capture is ended below.
    unsafe { backend.begin_capture(device, own.0.stream(), CaptureMode::Relaxed) }.unwrap();
    assert!(knows());
    pools.end(ID).unwrap();
    assert!(knows(), "the other pool has begun with it as well");
    pools.end(OTHER).unwrap();
    assert!(!knows(), "the stream may end");
    drop(backend.end_capture(device, own.0.stream()).unwrap());
}

#[test]
fn failing_query_means_stream_may_capture() {
    let pools = pools(14);
    // SAFETY: the host backend never dereferences a stream. It has none with this number.
    let unknown = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(3)) };
    assert!(pools.pool.backend.is_capturing(unknown).is_err());
    let block = Address(pools.alloc(ID, SIZE, Bytes(512), unknown).unwrap().address);
    free(&pools, block);
    pools.release(ID).unwrap();
    assert_eq!(live(&pools), 1, "a graph may use the memory until the device is idle");
    assert!(pools.clear().unwrap());
    assert_eq!(live(&pools), 0);
}

#[test]
fn a_block_is_described_with_its_stream() {
    let pools = pools(16);
    let seen = pools.alloc(ID, SIZE, Bytes(512), other()).unwrap();
    assert_eq!(seen.stream, other().as_raw());
    free(&pools, Address(seen.address));
}

#[test]
fn spare_memory_serves_others_if_it_may() {
    let pools = pools(6);
    let block = alloc(&pools);
    free(&pools, block);
    assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
    pools.set_on_oom(ID, true).unwrap();
    let spare = pools.alloc_spare(Bytes::kib(100), STREAM).unwrap();
    assert_eq!(spare.map(|spare| spare.address), Some(block.0));
    assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
    free(&pools, block);
}

#[test]
fn free_memory_that_sleeps_serves_nothing() {
    let pools = pools(8);
    pools.set_tag(ID, "weights").unwrap();
    pools.set_on_oom(ID, true).unwrap();
    let block = alloc(&pools);
    free(&pools, block);
    let tags = &pools.pool.blocks;
    tags.suspend("weights", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    let refused = pools.alloc(ID, SIZE, Bytes(512), STREAM).map(|seen| seen.address).unwrap_err();
    assert_eq!(refused.status, GPU_VMM_SUSPENDED, "{}", refused.text);
    assert!(pools.alloc_spare(Bytes::kib(100), STREAM).unwrap().is_none());
    assert_eq!(live(&pools), 1, "the refusal keeps it");
    tags.resume("weights").unwrap();
    assert_eq!(alloc(&pools), block);
    free(&pools, block);
}

#[test]
fn sleeping_pool_continues_spare_memory_search() {
    let pools = pools(12);
    let ids = (0..8).map(|second| MempoolId { first: 1, second }).collect::<Vec<_>>();
    // Of several pools, whose order is random, the memory of one alone does not sleep.
    let blocks = ids.iter().enumerate().map(|(place, id)| {
        pools.acquire(*id).unwrap();
        pools.set_tag(*id, if place == 0 { "awake" } else { "asleep" }).unwrap();
        pools.set_on_oom(*id, true).unwrap();
        Address(pools.alloc(*id, SIZE, Bytes(512), STREAM).unwrap().address)
    });
    let blocks = blocks.collect::<Vec<_>>();
    blocks.iter().for_each(|block| free(&pools, *block));
    pools.pool.blocks.suspend("asleep", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    let spare = pools.alloc_spare(Bytes::kib(100), STREAM).unwrap();
    assert_eq!(spare.map(|spare| spare.address), Some(blocks[0].0));
    free(&pools, blocks[0]);
}

#[test]
fn restored_block_has_checkpoint_size() {
    let pools = pools(13);
    let seen = pools.alloc(ID, Bytes(1000), Bytes(512), STREAM).unwrap();
    assert!(seen.capacity > 1000);
    let checkpoint = pools.checkpoint(ID).unwrap();
    let block = Address(seen.address);
    free(&pools, block);
    pools.restore(&checkpoint).unwrap();
    assert_eq!(table::with(block, |entry| entry.size()), Some(1000));
    free(&pools, block);
}

#[test]
fn later_block_at_address_is_not_shared() {
    let pools = pools(21);
    let block = alloc(&pools);
    let begin = |address| table::with(address, |entry| entry.begin_share().err().unwrap()).unwrap();
    let shared = || {
        let handle = Handle { offset: 0, page: 0, pages: Vec::new() };
        Arc::new(Shared { handle, _offered: Vec::new(), _importers: Importers::admit() })
    };
    let share = |number| table::with(block, |entry| entry.share(number, shared()).is_some()).unwrap();
    let number = begin(block);
    assert_eq!(begin(block), number, "two threads may share it at the same time");
    free(&pools, block);
    assert_eq!(alloc(&pools), block);
    assert!(!share(number));
    assert!(share(begin(block)));
    free(&pools, block);
}

#[test]
fn failed_restore_keeps_the_free_blocks() {
    let pools = pools(9);
    // The restore takes blocks in the order of their addresses: two before the missing one, and none after it.
    let mut blocks = [alloc(&pools), alloc(&pools), alloc(&pools)];
    blocks.sort();
    let [first, second, missing] = blocks;
    let checkpoint = pools.checkpoint(ID).unwrap();
    free(&pools, first);
    free(&pools, second);
    // It leaves the private pool.
    drop(table::remove(missing).unwrap());
    let failure = pools.restore(&checkpoint).unwrap_err();
    assert_eq!(failure.status, GPU_VMM_NOT_FOUND, "{}", failure.text);
    assert!(failure.text.contains(&missing.to_string()), "{}", failure.text);
    let mut kept = kept(&pools);
    kept.sort_by_key(|(_, address, _)| *address);
    assert_eq!(kept, [first, second].map(|block| (ID, block, GPU_VMM_TORCH_FREE)));
    assert_eq!(pools.checkpoint(ID).unwrap().blocks.len(), 0, "none of them is live");
    let mut again = [alloc(&pools), alloc(&pools)];
    again.sort();
    assert_eq!(again, [first, second], "they serve the next requests");
    again.into_iter().for_each(|block| free(&pools, block));
}

/// The memory belongs to the parent, and another thread may have held the lock during the fork.
#[test]
fn forked_child_is_refused_by_calls() {
    let pools = pools(10);
    let block = alloc(&pools);
    let checkpoint = pools.checkpoint(ID).unwrap();
    let entry = table::remove(block).unwrap().unwrap();
    // SAFETY: the child makes only calls that return before they take a lock, and exits at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let answers = catch_unwind(AssertUnwindSafe(|| {
            [
                pools.acquire(ID),
                pools.begin(ID, Stream::DEFAULT),
                pools.end(ID),
                pools.release(ID),
                pools.uses(ID).map(drop),
                pools.set_on_oom(ID, true),
                pools.alloc(ID, SIZE, Bytes(512), STREAM).map(drop),
                pools.alloc_spare(SIZE, STREAM).map(drop),
                pools.clear().map(drop),
                pools.checkpoint(ID).map(drop),
                pools.restore(&checkpoint).map(drop),
                pools.kept().map(drop),
                pools.free(entry, ID),
            ]
        }));
        let is_refused =
            |answer: &CallResult| matches!(answer, Err(failure) if failure.status == GPU_VMM_FORKED);
        let status = match answers {
            Ok(answers) => {
                answers.iter().position(|answer| !is_refused(answer)).map_or(0, |call| call as i32 + 1)
            }
            Err(_) => 100,
        };
        // SAFETY: exits without the runtime's exit handlers.
        unsafe { libc::_exit(status) };
    }
    table::insert(entry).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child that was forked above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "the number of the call that was not refused, or 100 for a panic"
    );
    assert_eq!(live(&pools), 1, "the parent goes on");
    free(&pools, block);
}
