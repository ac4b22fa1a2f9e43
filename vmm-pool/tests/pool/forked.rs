//! What a forked child does with a pool of its parent: nothing, neither on the way nor at the end.
#![allow(unsafe_code)] // registers streams

use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, DeviceId, Location, MovePath, OffsetRange, Operation, Properties,
    Result, StagingRing, Stream, WaitFor,
};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::{Fence, Pool, PoolLayout, PoolSnapshot, PoolUsage};
use gpu_vmm_premap::sync::without_locks;
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::forked::{alone, is_forked};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fence that is done once it was waited for, and counts the waits.
#[derive(Debug, Default)]
struct Waited(AtomicUsize);

impl Fence for Waited {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::Relaxed) > 0)
    }

    fn wait(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The live blocks, the report about them and the wait for a fence are the parent's.
#[test]
fn forked_child_drops_pool_silently() {
    for has_blocks in [true, false] {
        let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
        let reports = Arc::new(AtomicUsize::new(0));
        let reported = Arc::clone(&reports);
        let count = move |unfreed: &[_]| _ = reported.fetch_add(unfreed.len(), Ordering::Relaxed);
        let pool = Pool::builder(&backend).debug().on_unfreed(count).build().unwrap();
        let fence = Arc::new(Waited::default());
        pool.alloc(Bytes::mib(4)).unwrap().free_after(Arc::<Waited>::clone(&fence));
        let mut blocks = Vec::new();
        if has_blocks {
            blocks = vec![pool.alloc(Bytes::kib(3)).unwrap(), pool.alloc(Bytes::mib(6)).unwrap()];
            pool.keep(pool.alloc(Bytes::mib(2)).unwrap()).unwrap();
            assert_eq!(pool.unfreed().len(), 3);
        }
        let counts = || (reports.load(Ordering::Relaxed), fence.0.load(Ordering::Relaxed));
        let mut held = Some((pool, blocks));
        alone(|| {
            let (pool, mut blocks) = held.take().unwrap();
            if let Some(block) = blocks.pop() {
                block.free_after(Arc::<Waited>::clone(&fence));
            }
            drop(blocks);
            assert!(pool.unfreed().is_empty());
            drop(pool);
            assert_eq!((counts(), backend.drop_log().count()), ((0, 0), 0));
        });
        drop(held.take().map(|(pool, blocks)| {
            drop(blocks);
            pool
        }));
        // The kept block is left, and the wait for the fence is the parent's.
        assert_eq!((counts(), backend.drop_log().count()), ((usize::from(has_blocks), 1), 0));
    }
}

#[test]
fn forked_child_sees_no_pool_memory() {
    let pool = Pool::builder(&HostConfig::new().open().unwrap()).debug().build().unwrap();
    let (small, large) = (Bytes(5000), Bytes(6 << 20));
    let block = pool.alloc(small).unwrap();
    drop([pool.alloc(small).unwrap(), pool.alloc(large).unwrap()]);
    alone(|| {
        assert!(pool.find(block.address()).is_none() && pool.unfreed().is_empty());
        for size in [small, large] {
            assert!(pool.request(size).alloc_mapped().is_none(), "{size}");
            assert!(pool.request(size).alloc_cached().is_none(), "{size}");
        }
        let nothing = PoolSnapshot { version: PoolSnapshot::VERSION, ..PoolSnapshot::default() };
        assert_eq!(pool.snapshot(), nothing);
        assert_eq!((pool.usage(), pool.layout()), (PoolUsage::default(), PoolLayout::default()));
    });
}

/// Any lock of the pool may be locked for ever in a child.
#[test]
fn forked_child_locks_nothing() {
    let backend = HostConfig::new().devices(2).open().unwrap();
    let pool = Pool::builder(&backend).debug().build().unwrap();
    let host_memory = Properties::on(DeviceId(0)).located(Location::Host);
    let host = pool.with_memory(host_memory).unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream outlives its use.
    let stream = unsafe { Stream::from_raw(own.stream().as_raw()) };
    // SAFETY: the stream outlives its registration.
    let served = unsafe { pool.register_stream(stream) }.unwrap();
    let other = Stream::DEFAULT;
    let small = Bytes(700);
    let kept = pool.keep(pool.alloc(small).unwrap()).unwrap();
    let mut blocks: Vec<_> = [400, 70_000, 3 << 20].map(|size| pool.alloc(Bytes(size)).unwrap()).into();
    blocks.push(host.alloc(Bytes::mib(3)).unwrap());
    blocks.push(served.alloc(Bytes::mib(5)).unwrap());
    drop([pool.alloc(Bytes(400)).unwrap(), pool.alloc(Bytes::mib(3)).unwrap()]);
    let store = BackingStore::pinned(&backend, Bytes::mib(4)).unwrap();
    let ring = StagingRing::new(&backend, 1, Bytes::mib(1)).unwrap();
    let tag = pool.tag_id("").unwrap();
    let weak = pool.downgrade();
    let mut held = Some((pool, host, served, blocks));
    alone(|| {
        let (pool, host, served, mut blocks) = held.take().unwrap();
        without_locks(|| {
            let address = blocks[0].address();
            let idle = || WaitFor::all_devices();
            let range = OffsetRange { offset: Bytes(0), length: Bytes(8) };
            for pool in [&pool, &host] {
                assert!(is_forked(pool.tagged("new")) && is_forked(pool.forget_tag("")));
                for size in [400, 70_000, 3 << 20].map(Bytes) {
                    assert!(is_forked(pool.alloc(size)));
                    assert!(is_forked(pool.request(size).alignment(Bytes(4096)).alloc()));
                    assert!(is_forked(pool.request(size).stream(stream).tag("other").alloc()));
                    assert!(is_forked(pool.request(size).memory(host_memory).alloc()));
                    assert!(is_forked(pool.request(size).at(address).alloc()));
                    assert!(pool.request(size).alloc_cached().is_none());
                    assert!(pool.request(size).alloc_mapped().is_none());
                }
                assert!(is_forked(pool.set_budget(Bytes::mib(1))) && is_forked(pool.grant_budget(Bytes(1))));
                assert!(is_forked(pool.take_budget(Bytes(1))));
                assert!(is_forked(pool.trim(Bytes::ZERO)));
                assert!(is_forked(pool.suspend("", &store, idle())));
                assert!(is_forked(pool.try_suspend(tag, &store, idle())));
                assert!(is_forked(pool.tag_id("")) && is_forked(pool.resume("")));
                assert!(is_forked(pool.is_suspended("")) && is_forked(pool.occupied("")));
                assert!(is_forked(pool.move_to_device(DeviceId(1), MovePath::Fastest(Some(&ring)), idle())));
                assert!(is_forked(pool.forget_stream(other)) && is_forked(pool.forget_stream(stream)));
                // SAFETY: the stream outlives the registration, which fails.
                assert!(is_forked(unsafe { pool.register_stream(other) }));
                assert!(is_forked(pool.reset_peak()));
                assert!(is_forked(pool.allow_access(DeviceId(1))));
                assert!(is_forked(pool.allow_access_as(DeviceId(1), Access::Read)));
                assert!(is_forked(pool.memory_at(address, Bytes(8))));
                assert!(is_forked(pool.take_idle(&mut blocks)) && is_forked(pool.wait_for_uses()));
                assert!(
                    is_forked(pool.with_memory(host_memory))
                        && is_forked(pool.with_memory(Properties::on(DeviceId(0))))
                );
                assert!(is_forked(pool.free_at(kept)) && is_forked(pool.record_use_at(kept, other)));
                assert!(is_forked(pool.free_at_after(kept, Arc::new(Waited::default()))));
                assert!(pool.find(address).is_none() && pool.unfreed().is_empty() && pool.kinds().is_empty());
                assert_eq!((pool.stats().held, pool.usage()), (0, PoolUsage::default()));
                assert_eq!((pool.snapshot().spaces.len(), pool.layout()), (0, PoolLayout::default()));
                let _ = (pool.memory(), pool.budget(), pool.downgrade().upgrade(), format!("{pool:?}"));
            }
            assert!(is_forked(served.alloc(small)) && is_forked(served.request(small).alloc()));
            assert!(is_forked(served.record_use(&mut blocks[0])));
            let mut other_block = blocks.pop().unwrap();
            for block in &mut blocks {
                assert!(is_forked(block.record_use(other)) && is_forked(block.end_uses()));
                assert!(
                    is_forked(block.read(Bytes(0), &mut [0; 8])) && is_forked(block.write(Bytes(0), &[0; 8]))
                );
                assert!(block.copy_from(Bytes(0), &other_block, range).is_err());
                assert!(other_block.copy_from(Bytes(0), block, range).is_err());
                assert!(is_forked(block.check_usable(Operation::Fill)));
                let _ = (block.stream(), block.is_used_elsewhere(), format!("{block:?}"));
            }
            assert!(is_forked(pool.keep(other_block)));
            blocks.pop().unwrap().free_after(Arc::new(Waited::default()));
            drop((served, host, blocks, pool));
            assert!(weak.upgrade().is_none());
        });
    });
    drop(held);
}
