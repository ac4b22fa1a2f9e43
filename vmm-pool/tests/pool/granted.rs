//! Pools whose budget a source grants, and calls of the source itself.

use gpu_vmm_core::{
    Backend, BackingStore, Bytes, Detail, DeviceId, Error, MovePath, Operation, Result, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{BudgetEffort, BudgetSource, Fence, Pool, TagId, WeakPool};
use gpu_vmm_testkit::{FaultInject, LateWork};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

type Faulty = FaultInject<HostBackend>;

const PAGE: u64 = 2 << 20;

/// Grants nothing, and suspends a tag for callers that ask.
struct Suspends {
    pool: WeakPool<Faulty>,
    tag: Arc<OnceLock<TagId>>,
    calls: Arc<AtomicU64>,
}

impl BudgetSource for Suspends {
    fn raise(&self, _: Bytes, _: Bytes, _: BudgetEffort) -> Result<()> {
        let reason = "nothing is left".to_owned();
        if let (Some(pool), Some(tag)) = (self.pool.upgrade(), self.tag.get()) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let store = BackingStore::host(pool.backend())?;
            if !pool.try_suspend(*tag, &store, WaitFor::all_devices())?.is_zero() {
                return Ok(());
            }
        }
        Err(Error::new(Operation::SetBudget, Detail::Unsupported { reason }))
    }
}

struct Context {
    backend: Faulty,
    pool: Pool<Faulty>,
    tag: Arc<OnceLock<TagId>>,
    calls: Arc<AtomicU64>,
}

impl Context {
    /// A pool with a budget of some pages, all of which it holds.
    fn new(pages: u64) -> Self {
        let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::gib(1)).open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        let (tag, calls) = (Arc::default(), Arc::default());
        let kept = pool.alloc(Bytes(pages * PAGE)).unwrap();
        let source = Suspends { pool: pool.downgrade(), tag: Arc::clone(&tag), calls: Arc::clone(&calls) };
        assert_eq!(pool.set_budget_source(Box::new(source)).unwrap().0, pages * PAGE);
        drop(kept);
        Self { backend, pool, tag, calls }
    }
}

#[test]
fn a_source_never_waits_for_the_resume_that_asks_it() {
    let Context { backend, pool, tag, calls } = Context::new(8);
    let block = pool.tagged("kv").unwrap().alloc(Bytes(6 * PAGE)).unwrap();
    let id = pool.tag_id("kv").unwrap();
    let store = BackingStore::host(&backend).unwrap();
    assert_eq!(pool.try_suspend(id, &store, WaitFor::all_devices()).unwrap().0, 6 * PAGE);
    assert!(pool.try_suspend(id, &store, WaitFor::all_devices()).unwrap().is_zero());
    let other = pool.alloc(Bytes(6 * PAGE)).unwrap();
    tag.set(id).unwrap();
    assert!(pool.resume("kv").unwrap_err().is_out_of_memory());
    assert!(calls.load(Ordering::Relaxed) > 0);
    drop(other);
    assert_eq!(pool.resume("kv").unwrap().0, 6 * PAGE);
    // Once it is active, the source suspends it for a request.
    let other = pool.alloc(Bytes(6 * PAGE)).unwrap();
    assert!(pool.is_suspended("kv").unwrap());
    drop((other, block));
    // A tag that has its name later is another one.
    pool.resume("kv").unwrap();
    pool.forget_tag("kv").unwrap();
    let block = pool.tagged("kv").unwrap().alloc(Bytes(6 * PAGE)).unwrap();
    assert_ne!(pool.tag_id("kv").unwrap(), id);
    assert!(pool.alloc(Bytes(6 * PAGE)).is_err() && !pool.is_suspended("kv").unwrap());
    drop(block);
}

/// What could not return to the driver is held, and the rest of the budget is gone: the caller must know how much.
#[test]
fn budget_is_taken_although_unmapping_fails() {
    let Context { backend, pool, .. } = Context::new(8);
    let kept = pool.alloc(Bytes(2 * PAGE)).unwrap();
    let before = pool.budget();
    for _ in 0..3 {
        backend.fail_calls(&[Operation::Unmap]);
        let taken = pool.take_budget(Bytes(5 * PAGE));
        backend.stop();
        let taken = taken.unwrap();
        assert_eq!(pool.budget(), before - taken);
        assert!(pool.stats().held <= pool.budget().0);
        pool.grant_budget(taken).unwrap();
    }
    drop(kept);
}

/// A fence that compares the budget of its pool with what the pool holds whenever it is asked.
#[derive(Debug)]
struct Compares(WeakPool<Faulty>, Arc<AtomicUsize>);

impl Fence for Compares {
    fn is_done(&self) -> Result<bool> {
        // At the end of the pool there is none.
        let budget = self.0.upgrade().map_or(Bytes(LEAST * PAGE), |pool| pool.budget());
        assert!(budget >= Bytes(LEAST * PAGE), "{budget} for a moment");
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

const LEAST: u64 = 5;

/// A request that comes while budget is taken away must not find less than it would before and after.
#[test]
fn budget_stays_above_what_is_held() {
    let Context { pool, .. } = Context::new(8);
    let kept = pool.alloc(Bytes(3 * PAGE)).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let fence = Arc::new(Compares(pool.downgrade(), Arc::clone(&asked)));
    pool.alloc(Bytes(2 * PAGE)).unwrap().free_after(fence);
    let before = pool.budget();
    pool.take_budget(Bytes(8 * PAGE)).unwrap();
    assert!(pool.budget() <= before && asked.load(Ordering::Relaxed) > 0);
    assert_eq!(pool.budget(), Bytes(LEAST * PAGE));
    drop(kept);
}

/// The source has memory of one device.
#[test]
fn pools_with_a_source_stay_on_their_device() {
    let Context { pool, .. } = Context::new(2);
    let to = |device| pool.move_to_device(DeviceId(device), MovePath::Fastest(None), WaitFor::all_devices());
    let error = to(1).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    to(0).unwrap();
}

/// Notes its end.
struct Ends(Arc<AtomicBool>);

impl BudgetSource for Ends {
    fn raise(&self, _: Bytes, _: Bytes, _: BudgetEffort) -> Result<()> {
        Err(Error::new(Operation::SetBudget, Detail::Unsupported { reason: "nothing is left".to_owned() }))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The memory of a pool that ends during a capture is there until the capture has ended.
#[test]
fn memory_counts_until_it_was_released() {
    for captures in [false, true] {
        let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), 2);
        let pool = Pool::builder(&backend).build().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let kept = pool.request(Bytes(4 * PAGE)).stream(backend.stream(1)).alloc().unwrap();
        pool.set_budget_source(Box::new(Ends(Arc::clone(&ended)))).unwrap();
        backend.set_capturing(1, captures);
        drop((pool, kept));
        let free = || backend.memory_info(DeviceId(0)).unwrap().free;
        assert_eq!(ended.load(Ordering::Relaxed), free() == Bytes::gib(1), "captures: {captures}");
        backend.set_capturing(1, false);
        // Any later call releases it.
        drop(Pool::builder(&backend).build().unwrap().alloc(Bytes(PAGE)).unwrap());
        assert!(ended.load(Ordering::Relaxed) && free() == Bytes::gib(1), "captures: {captures}");
    }
}
