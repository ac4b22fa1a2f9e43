//! Pools whose budget a [source](BudgetSource) grants.

use crate::budget_source::{BudgetEffort, BudgetSource};
use crate::core::{Core, Shortage};
use crate::error::ExhaustedResource;
use crate::kinds::Kinds;
use crate::ledger::Raises;
use crate::owner::Owner;
use crate::pool::Pool;
use crate::tags::Tag;
use gpu_vmm_core::{Backend, Bytes, Detail, Error, Operation, Result};
use std::sync::{Arc, Weak};

/// How often one request asks for more budget, while other threads take what it gets.
const ROUNDS: u32 = 64;

/// A pool that its holder does not keep alive.
#[derive(Debug)]
pub struct WeakPool<B: Backend> {
    owner: Weak<Owner<B>>,
    kinds: Weak<Kinds<B>>,
    tag: Arc<Tag>,
}

impl<B: Backend> Clone for WeakPool<B> {
    fn clone(&self) -> Self {
        Self { owner: Weak::clone(&self.owner), kinds: Weak::clone(&self.kinds), tag: Arc::clone(&self.tag) }
    }
}

impl<B: Backend> WeakPool<B> {
    /// Returns the pool, if a handle of it is left.
    #[must_use]
    pub fn upgrade(&self) -> Option<Pool<B>> {
        let (owner, kinds) = (self.owner.upgrade()?, self.kinds.upgrade()?);
        Some(Pool { owner, tag: Arc::clone(&self.tag), kinds })
    }
}

impl<B: Backend> Pool<B> {
    /// Returns a reference to the pool that does not keep it alive. It has this handle's [kind](Self::with_memory) and tag.
    #[must_use]
    pub fn downgrade(&self) -> WeakPool<B> {
        let (owner, kinds) = (Arc::downgrade(&self.owner), Arc::downgrade(&self.kinds));
        WeakPool { owner, kinds, tag: Arc::clone(&self.tag) }
    }

    /// Lets a source grant the pool its budget from now on, for as long as the pool has memory. The budget becomes what the pool holds, after
    /// its free memory has returned to the driver as far as no work uses it, but no more than it was before. Returns the budget.
    ///
    /// From then on [`grant_budget`](Self::grant_budget) and [`take_budget`](Self::take_budget) change the budget, and no longer
    /// [`set_budget`](Self::set_budget).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Detail::Unsupported) for a pool that has a source; [`Forked`](Detail::Forked).
    pub fn set_budget_source(&self, source: Box<dyn BudgetSource>) -> Result<Bytes> {
        let operation = Operation::SetBudget;
        self.owner.inner.process.check(operation)?;
        if !self.kinds.ledger.set_source(source) {
            let reason = "the pool has a source of its budget already".to_owned();
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        Ok(self.lower_budget(operation, Bytes::ZERO))
    }

    /// Raises the budget by what the pool's [source](Self::set_budget_source) grants. One thread at a time may change the budget.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child, where nothing changes.
    pub fn grant_budget(&self, more: Bytes) -> Result<()> {
        let operation = Operation::SetBudget;
        self.owner.inner.process.check(operation)?;
        self.apply_budget(operation, Bytes(self.budget().0.saturating_add(more.0)))
    }

    /// Lowers the budget by up to `most` bytes, as far as free memory can return to the driver now. Returns by how much: the pool holds no
    /// more than the rest, and will not. Nothing waits. One thread at a time may change the budget.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child, where nothing changes.
    pub fn take_budget(&self, most: Bytes) -> Result<Bytes> {
        let operation = Operation::SetBudget;
        self.owner.inner.process.check(operation)?;
        let before = self.kinds.ledger.budget();
        let after = self.lower_budget(operation, Bytes(before.0.saturating_sub(most.0)));
        Ok(Bytes(before.0.saturating_sub(after.0)))
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.kinds.ledger.budget()
    }

    /// Asks the source of the budget for what a request lacks. Returns true if the request should be tried again.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`](crate::PoolError::OutOfMemory) with the reason of the source for its last effort.
    pub(crate) fn raise_budget(
        &self,
        operation: Operation,
        (shortage, size): (&Shortage, Bytes),
        effort: BudgetEffort,
        raises: &mut Raises<'_>,
    ) -> Result<bool> {
        let ledger = &self.kinds.ledger;
        let &Shortage::Memory(ExhaustedResource::Budget(seen)) = shortage else { return Ok(false) };
        let Some(source) = ledger.source().filter(|_| raises.rounds < ROUNDS) else { return Ok(false) };
        // Free memory serves the request too, unless that was tried often enough: work may still use it.
        let counts_free = raises.rounds < ROUNDS / 8;
        raises.rounds += 1;
        let missing = self.owner.inner.core(operation)?.missing_budget(size, counts_free);
        match (source.raise(seen, missing, effort), effort) {
            (Ok(()), _) => Ok(true),
            (Err(_), BudgetEffort::TakeFree) => Ok(false),
            (Err(why), BudgetEffort::AskOthers) => {
                let shortage = Shortage::Memory(ExhaustedResource::Source { budget: ledger.budget(), why });
                Err(self.tell(operation, shortage, size, &self.tag))
            }
        }
    }

    /// Lowers the budget to `least`, or to what the pool still holds then. Returns the budget.
    ///
    /// No request sees a lower one meanwhile: it would find too little memory for a moment.
    fn lower_budget(&self, operation: Operation, least: Bytes) -> Bytes {
        let ledger = &self.kinds.ledger;
        // The kind that was added last gives way first.
        for owner in self.kinds.all().iter().rev() {
            let beyond = ledger.held().saturating_sub(least.0);
            // What could not return counts as held. An error must not hide how much was taken.
            if beyond > 0
                && let Err(error) = owner.return_free(operation, beyond)
            {
                self.owner.backend.drop_log().record(error);
            }
        }
        ledger.lower(least)
    }
}

impl<B: Backend> Core<B> {
    /// Returns the budget that a request for `size` lacks.
    fn missing_budget(&self, size: Bytes, counts_free: bool) -> Bytes {
        // A block that needs another page is requested again.
        let span = size.0.div_ceil(self.page).saturating_mul(self.page);
        let free = if counts_free { self.frames.free() as u64 * self.page } else { 0 };
        let room = self.room(self.ledger.budget());
        match span.saturating_sub(free).saturating_sub(room) {
            // The free memory did not serve.
            0 => Bytes(self.page),
            // No more than that, if the budget is no multiple of a page: there may be no whole page more.
            lacks => Bytes(lacks),
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

    use super::*;
    use gpu_vmm_core::{BackingStore, WaitFor};
    use gpu_vmm_host::{HostBackend, HostConfig};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock};

    const PAGE: u64 = 2 << 20;

    /// What two pools may hold together.
    struct Shared {
        free: Mutex<u64>,
        granted: AtomicU64,
        ended: AtomicBool,
        pool: OnceLock<WeakPool<HostBackend>>,
        other: OnceLock<WeakPool<HostBackend>>,
    }

    struct Source(Arc<Shared>);

    impl BudgetSource for Source {
        fn raise(&self, budget: Bytes, missing: Bytes, effort: BudgetEffort) -> Result<()> {
            let shared = &self.0;
            let mut free = shared.free.lock().unwrap();
            let pool = shared.pool.get().and_then(WeakPool::upgrade).unwrap();
            if pool.budget() != budget {
                return Ok(());
            }
            if effort == BudgetEffort::AskOthers
                && let Some(other) = shared.other.get().and_then(WeakPool::upgrade)
            {
                *free += other.take_budget(missing)?.0;
            }
            if *free < missing.0 {
                let reason = format!("{} are free", Bytes(*free));
                return Err(Error::new(Operation::SetBudget, Detail::Unsupported { reason }));
            }
            *free -= missing.0;
            shared.granted.fetch_add(missing.0, Ordering::Relaxed);
            pool.grant_budget(missing)
        }
    }

    impl Drop for Source {
        fn drop(&mut self) {
            self.0.ended.store(true, Ordering::Relaxed);
        }
    }

    fn pool(free: u64) -> (HostBackend, Pool<HostBackend>, Arc<Shared>) {
        let backend = HostConfig::new().memory(Bytes::gib(4)).open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        let shared = Arc::new(Shared {
            free: Mutex::new(free),
            granted: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            pool: OnceLock::new(),
            other: OnceLock::new(),
        });
        shared.pool.set(pool.downgrade()).unwrap();
        (backend, pool, shared)
    }

    #[test]
    fn a_source_grants_what_requests_need_and_names_its_reason() {
        let (_, pool, shared) = pool(20 * PAGE);
        let kept = pool.alloc(Bytes(2 * PAGE)).unwrap();
        drop(pool.alloc(Bytes(3 * PAGE)).unwrap());
        // The budget begins as what is live.
        assert_eq!(pool.set_budget_source(Box::new(Source(Arc::clone(&shared)))).unwrap().0, 2 * PAGE);
        assert!(pool.set_budget_source(Box::new(Source(Arc::clone(&shared)))).is_err());
        assert!(shared.ended.swap(false, Ordering::Relaxed), "the refused source");
        assert!(pool.set_budget(Bytes(u64::MAX)).unwrap_err().to_string().contains("a source grants"));
        let more = pool.alloc(Bytes(10 * PAGE)).unwrap();
        let budget = pool.budget().0;
        assert!(budget >= pool.usage().held && budget <= 2 * PAGE + 20 * PAGE, "{budget:#x}");
        let error = pool.alloc(Bytes(30 * PAGE)).unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("are free"), "{error}");
        // What is live stays, and no more than it can be held.
        assert_eq!(pool.take_budget(Bytes(u64::MAX)).unwrap().0, budget - 12 * PAGE);
        drop((kept, more));
        assert_eq!(pool.take_budget(Bytes(5 * PAGE)).unwrap().0, 5 * PAGE);
        assert!(pool.usage().held <= 7 * PAGE);
        assert!(!shared.ended.load(Ordering::Relaxed));
        let last = pool.alloc(Bytes(PAGE)).unwrap();
        drop(pool);
        assert!(!shared.ended.load(Ordering::Relaxed), "memory is left");
        drop(last);
        assert!(shared.ended.load(Ordering::Relaxed));
        assert!(shared.pool.get().unwrap().upgrade().is_none());
    }

    #[test]
    fn the_rest_of_a_page_suffices() {
        let (_, pool, shared) = pool(PAGE / 4);
        pool.set_budget_source(Box::new(Source(Arc::clone(&shared)))).unwrap();
        pool.grant_budget(Bytes(PAGE * 7 / 4)).unwrap();
        drop(pool.alloc(Bytes(2 * PAGE)).unwrap());
        assert_eq!(pool.budget().0, 2 * PAGE);
    }

    #[test]
    fn suspended_memory_comes_back_with_what_others_give() {
        let (backend, one, shared) = pool(4 * PAGE);
        one.set_budget_source(Box::new(Source(Arc::clone(&shared)))).unwrap();
        let other = Pool::builder(&backend).budget(Bytes(8 * PAGE)).build().unwrap();
        let tagged = one.tagged("kv").unwrap();
        let block = tagged.alloc(Bytes(3 * PAGE)).unwrap();
        one.suspend("kv", &BackingStore::host(&backend).unwrap(), WaitFor::all_devices()).unwrap();
        let given = one.take_budget(Bytes(u64::MAX)).unwrap();
        assert!(given.0 >= 3 * PAGE && one.budget().0 == one.usage().held);
        // Another pool has all that is free, and gives what it does not use.
        *shared.free.lock().unwrap() = 0;
        drop(other.alloc(Bytes(8 * PAGE)).unwrap());
        assert!(one.resume("kv").unwrap_err().is_out_of_memory());
        shared.other.set(other.downgrade()).unwrap();
        assert_eq!(one.resume("kv").unwrap().0, 3 * PAGE);
        assert!(other.budget().0 <= 5 * PAGE, "{}", other.budget());
        drop(block);
    }

    /// While a thread takes budget away, others never hold more than is left.
    #[test]
    fn threads_never_hold_more_than_was_granted() {
        let (_, pool, shared) = pool(64 * PAGE);
        pool.set_budget_source(Box::new(Source(Arc::clone(&shared)))).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pool, ends) = (&pool, &ends);
                scope.spawn(move || {
                    let mut random = gpu_vmm_testkit::Random(thread);
                    let mut blocks = Vec::new();
                    while !ends.load(Ordering::Relaxed) {
                        let size = 1 + random.below(6 * PAGE as usize) as u64;
                        blocks.extend(pool.alloc(Bytes(size)));
                        if blocks.len() > 6 || random.below(3) == 0 {
                            blocks.clear();
                        }
                    }
                });
            }
            let mut taken = 0;
            let since = std::time::Instant::now();
            while taken <= 200 * PAGE {
                assert!(since.elapsed().as_secs() < 60, "{taken:#x} in a minute");
                let mut free = shared.free.lock().unwrap();
                let given = pool.take_budget(Bytes(8 * PAGE)).unwrap().0;
                taken += given;
                // The budget cannot change now.
                assert!(pool.usage().held <= pool.budget().0, "{:?}", pool.usage());
                *free += given;
                drop(free);
                std::thread::yield_now();
            }
            ends.store(true, Ordering::Relaxed);
        });
        let granted = shared.granted.load(Ordering::Relaxed);
        assert!(granted > 100 * PAGE, "{granted:#x}");
    }
}
