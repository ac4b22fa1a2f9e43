//! Drops in any order, and forks.

use super::{DEFAULT, Hand, alloc, builder, check, pool, write};
use crate::case::cases;
use crate::fork_server::Ended;
use crate::library::captures::Announced;
use crate::library::flights::{own, registered};
use crate::library::fork::{first_wrong, forked};
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{BackingStore, Bytes};
use gpu_vmm_pool::Fence;
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::forked::is_forked;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

cases! { "pool":
    /// Blocks outlive their pool with their bytes, and the last block releases all memory.
    the_pool_is_dropped_first,
    /// A pool whose memory waits for a fence can be dropped.
    dropped_with_pending_memory,
    /// A pool that is dropped during a capture waits for its fences, since they do not belong to the capture.
    dropped_with_a_fence_during_a_capture,
    /// Blocks that were never freed are reported with the place of their allocation, on request and when the pool is dropped.
    what_was_never_freed,
    /// In a child that is forked while threads use the pool, every call returns an error and none blocks, including drops.
    forked_while_it_is_used,
    /// In a forked child, the block that the parent freed last serves no request.
    forked_behind_a_free,
}

fn the_pool_is_dropped_first<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    let pool = pool(subject);
    let blocks: Vec<_> = [100, 70_000, 5 << 20].map(|size| alloc(&pool, Bytes(size))).into();
    drop(pool);
    blocks.iter().for_each(|block| write(subject, block, block.address().0));
    blocks.iter().for_each(|block| check(subject, block, block.address().0));
    assert!(subject.free_here() < free);
    drop(blocks);
    assert_eq!(subject.free_here(), free);
}

fn dropped_with_pending_memory<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    for state in [Hand::DONE, Hand::WAITED] {
        let (pool, hand) = (pool(subject), Hand::new());
        alloc(&pool, Bytes::mib(4)).free_after(hand.fence());
        alloc(&pool, Bytes(700)).free_after(hand.fence());
        hand.set(state);
        drop(pool);
        assert_eq!(subject.free_here(), free);
    }
}

/// A fence that records that it was waited for.
#[derive(Debug, Default)]
struct Noted(AtomicBool);

impl Fence for Noted {
    fn is_done(&self) -> gpu_vmm_core::Result<bool> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn wait(&self) -> gpu_vmm_core::Result<()> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }
}

fn dropped_with_a_fence_during_a_capture<B: TestKit>(subject: &Subject<B>) {
    let (pool, fence) = (pool(subject), Arc::new(Noted::default()));
    alloc(&pool, Bytes::mib(4)).free_after(Arc::clone(&fence) as Arc<dyn Fence>);
    let announced = Announced::new(&subject.backend);
    drop(pool);
    assert!(fence.is_done().unwrap(), "the fence was not waited for");
    drop(announced);
    subject.backend.deferred().collect(&subject.backend).unwrap();
}

fn what_was_never_freed<B: TestKit>(subject: &Subject<B>) {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let inside = Arc::clone(&recorded);
    let pool =
        builder(subject).on_unfreed(move |all| inside.lock().unwrap().extend(all.to_vec())).build().unwrap();
    let cache = pool.tagged("cache").unwrap();
    let line = line!() + 1;
    let lost = cache.alloc(Bytes(700)).unwrap();
    drop(pool.alloc(Bytes::mib(3)).unwrap());
    let other = pool.alloc(Bytes::mib(3)).unwrap();
    let unfreed = pool.unfreed();
    assert_eq!(unfreed.len(), 2);
    let one = unfreed.iter().find(|one| one.address == lost.address()).unwrap();
    assert_eq!((one.size, &*one.tag, one.allocated_at.line()), (Bytes(700), "cache", line));
    assert!(one.allocated_at.file().ends_with("ends.rs"), "{}", one.allocated_at);
    let others: Vec<_> = (0..20).map(|_| alloc(&pool, Bytes(300))).collect();
    let unfreed = pool.unfreed();
    assert!(unfreed.len() == 22 && unfreed.is_sorted_by_key(|one| one.address), "{unfreed:?}");
    drop((other, others));
    assert_eq!(pool.unfreed().len(), 1);
    drop((pool, cache));
    assert_eq!(recorded.lock().unwrap().len(), 1);
    drop(lost);
    // A pool without such blocks has nothing to report.
    drop(builder(subject).on_unfreed(|all| panic!("called with {all:?}")).build().unwrap());
    assert!(
        super::pool(subject).unfreed().is_empty(),
        "blocks were recorded although no caller requested it"
    );
}

fn forked_behind_a_free<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let block = alloc(&pool, Bytes::mib(3));
    let address = block.address();
    drop(block);
    let ended = forked(|| first_wrong(&[is_forked(pool.alloc(Bytes::mib(3)))]));
    assert_eq!(ended, Ended::Exit(0));
    assert_eq!(alloc(&pool, Bytes::mib(3)).address(), address, "the parent's block was lost");
}

fn forked_while_it_is_used<B: TestKit>(subject: &Subject<B>) {
    // With `debug`, the pool records its blocks under a lock of its own.
    let own = own(subject);
    let base = super::builder(subject).debug().build().unwrap();
    let stream = registered(&base, &*own);
    let store = BackingStore::pinned(&subject.backend, Bytes::mib(4)).unwrap();
    let block = alloc(&base, Bytes::mib(3));
    write(subject, &block, 5);
    let kept = base.keep(alloc(&base, Bytes(500))).unwrap();
    let (mut pool, mut held, mut served) = (Some(base), Some(block), Some(stream));
    let stop = AtomicBool::new(false);
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        for thread in 1..3_u64 {
            let (busy, stop) = (pool.clone().unwrap(), &stop);
            // When the process forks, locks of thread caches and of the pool's records are held.
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let blocks: Vec<_> =
                        (0..40).map(|index| alloc(&busy, Bytes(index * thread * 4000 + 1))).collect();
                    drop(busy.tagged("other").unwrap());
                    for block in blocks {
                        let kept = busy.keep(block).unwrap();
                        busy.free_at(kept).unwrap();
                    }
                    drop(busy.unfreed());
                }
            });
        }
        let ended = (0..8).map(|round| {
            std::thread::sleep(std::time::Duration::from_millis(3));
            forked(|| {
                let (Some(pool), Some(mut block), Some(stream)) = (pool.take(), held.take(), served.take())
                else {
                    return 99;
                };
                let wrong = first_wrong(&[
                    is_forked(pool.alloc(Bytes(100))),
                    is_forked(pool.alloc(Bytes(70_000))),
                    is_forked(pool.alloc(Bytes::mib(3))),
                    is_forked(pool.trim(Bytes::ZERO)),
                    is_forked(pool.suspend("", &store, idle())),
                    is_forked(pool.resume("")),
                    is_forked(pool.forget_stream(DEFAULT)),
                    is_forked(pool.tagged("third")),
                    is_forked(stream.alloc(Bytes(100))),
                    is_forked(stream.record_use(&mut block)),
                    is_forked(block.record_use(DEFAULT)),
                    is_forked(pool.free_at(kept)),
                    is_forked(pool.record_use_at(kept, DEFAULT)),
                    pool.unfreed().is_empty(),
                    pool.find(block.address()).is_none(),
                    pool.stats().held == 0,
                    pool.snapshot().spaces.is_empty(),
                ]);
                drop(stream);
                if round % 4 == 0 {
                    return if is_forked(pool.keep(block)) { wrong } else { 98 };
                }
                if round % 2 == 0 {
                    drop(block);
                    drop(pool);
                } else {
                    drop(pool);
                    drop(block);
                }
                wrong
            })
        });
        let ended = ended.collect();
        stop.store(true, Ordering::Relaxed);
        ended
    });
    assert_eq!(ended, [Ended::Exit(0); 8], "the index of the check that failed, or a signal for a lock");
    let (pool, block) = (pool.unwrap(), held.unwrap());
    drop(served);
    check(subject, &block, 5);
    pool.free_at(kept).unwrap();
    drop(block);
    super::is_empty(&pool);
}
