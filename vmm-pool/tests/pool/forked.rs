//! What a forked child does with a pool of its parent: nothing, neither on the way nor at the end.

use gpu_vmm_core::{Backend, Bytes, Result};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::{Fence, Pool, PoolLayout, PoolSnapshot, PoolUsage};
use gpu_vmm_testkit::forked::alone;
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
