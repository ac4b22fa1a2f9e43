//! The budget of a pool, which a program may change at any time.

use crate::Pool;
use crate::core::Core;
use crate::owner::Owner;
use gpu_vmm_core::{Backend, Bytes, Detail, Error, Operation, Result};

impl<B: Backend> Pool<B> {
    /// Sets the largest amount of physical memory that the pool may hold, of all kinds together, in bytes; `u64::MAX` for no limit. Any
    /// thread may call it at any time.
    ///
    /// If the pool holds more, it returns free memory to the driver at once, of the [kind](Pool::with_memory) that was added last
    /// first. Nothing waits: memory that work still uses stays, and memory of live blocks too. As blocks are freed, the pool returns
    /// their memory until it holds no more than the budget, as far as the work on it is done; [`trim`](Pool::trim) waits for that work.
    /// Until then no freed block stays in a thread cache, no new memory is created, and a request that would need some fails with
    /// [`PoolError::OutOfMemory`](crate::PoolError::OutOfMemory), which names the budget.
    ///
    /// # Errors
    ///
    /// [`Forked`](Detail::Forked) in a forked child, and [`Unsupported`](Detail::Unsupported) for a pool whose budget a
    /// [source](Self::set_budget_source) grants, where nothing changes. The driver's error if memory cannot be returned; the new budget holds
    /// nevertheless.
    pub fn set_budget(&self, budget: Bytes) -> Result<()> {
        let operation = Operation::SetBudget;
        self.owner.inner.process.check(operation)?;
        if self.kinds.ledger.source().is_some() {
            let reason = "a source grants the pool its budget, such as a server".to_owned();
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        self.apply_budget(operation, budget)
    }

    /// Sets the budget, and returns free memory above it.
    pub(crate) fn apply_budget(&self, operation: Operation, budget: Bytes) -> Result<()> {
        let kinds = self.kinds.all();
        self.kinds.ledger.set_budget(budget);
        let mut result = Ok(());
        // The kind that was added last gives way first.
        for owner in kinds.iter().rev() {
            if owner.refuse_freed(operation)? {
                // Memory in thread caches is free, too.
                owner.settle(operation, |_, _| true)?;
                result = result.and(owner.inner.trim_to_limit());
            }
        }
        for owner in &kinds {
            owner.refuse_freed(operation)?;
        }
        result
    }
}

impl<B: Backend> Owner<B> {
    /// Lets freed blocks return to the core at once while the pool exceeds its budget. Returns true if it does.
    fn refuse_freed(&self, operation: Operation) -> Result<bool> {
        let core = self.inner.core(operation)?;
        let exceeds = core.exceeds_budget();
        self.inner.last.refuse(exceeds);
        self.thread_caches().for_each(|cache| cache.lock().refuse(exceeds));
        Ok(exceeds)
    }
}

impl<B: Backend> Core<B> {
    /// Returns the memory that all kinds hold. Memory of this kind that leaves when the core is unlocked does not count.
    #[inline]
    pub(crate) fn held_by_all(&self) -> u64 {
        self.ledger.held().saturating_sub(self.in_ledger * self.page) + self.held()
    }

    /// Returns how much more memory a budget allows.
    pub(crate) fn room(&self, budget: Bytes) -> u64 {
        budget.0.saturating_sub(self.held_by_all())
    }

    /// Returns true if the pool holds more than its budget, which was set later.
    #[inline]
    pub(crate) fn exceeds_budget(&self) -> bool {
        self.held_by_all() > self.ledger.budget().0
    }

    /// Returns the size of the free memory that the pool may keep within its budget.
    pub(crate) fn free_within_budget(&self) -> u64 {
        let excess = self.held_by_all().saturating_sub(self.ledger.budget().0);
        (self.frames.free() as u64 * self.page).saturating_sub(excess)
    }

    /// Counts pages as held that a thread is about to create without the core. Returns false if the budget has no room for them any
    /// more, because threads of other kinds have created memory or the budget is smaller now.
    pub(crate) fn expect(&mut self, pages: u64) -> bool {
        // What leaves when the core is unlocked is gone before the memory is created.
        let leaving = self.in_ledger.saturating_sub(self.held_pages()) * self.page;
        let is_room = self.ledger.claim(pages * self.page, leaving);
        if is_room {
            self.in_ledger += pages;
            self.coming += pages;
        }
        is_room
    }

    /// Returns true if the core holds other amounts than the ledger counts.
    #[inline]
    pub(crate) fn is_off_ledger(&self) -> bool {
        self.in_ledger != self.held_pages()
    }

    /// Makes the ledger count what the core holds. Returns the bytes that the caller must give back once the memory is gone.
    pub(crate) fn note_in_ledger(&mut self) -> u64 {
        let now = self.held_pages();
        let before = std::mem::replace(&mut self.in_ledger, now);
        self.ledger.add(now.saturating_sub(before) * self.page);
        before.saturating_sub(now) * self.page
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{Backend, Bytes, DeviceId, ErrorKind};
    use gpu_vmm_host::HostConfig;

    const PAGE: Bytes = Bytes::mib(2);

    #[test]
    fn smaller_budgets_return_free_memory_at_once() {
        let backend = HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        let [kept, freed] = [4, 12].map(|pages| pool.alloc(Bytes(PAGE.0 * pages)).unwrap());
        // Small blocks stay in a thread cache, and hold a page.
        drop((freed, pool.alloc(Bytes(100)).unwrap()));
        assert_eq!(pool.usage().held, 17 * PAGE.0);
        pool.set_budget(Bytes(PAGE.0 * 6)).unwrap();
        assert_eq!(pool.usage().held, 6 * PAGE.0);
        let error = pool.alloc(Bytes(PAGE.0 * 3)).unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("budget is 12 MiB"), "{error}");
        // Less than the live blocks: free memory goes, and the memory of blocks as they are freed.
        pool.set_budget(PAGE).unwrap();
        assert_eq!(pool.usage().held, 4 * PAGE.0);
        assert_eq!(pool.alloc(PAGE).unwrap_err().kind(), ErrorKind::OutOfMemory);
        drop(kept);
        assert_eq!(pool.usage().held, PAGE.0);
        pool.set_budget(Bytes(u64::MAX)).unwrap();
        drop(pool.alloc(Bytes(PAGE.0 * 30)).unwrap());
        assert_eq!(pool.usage().held, 30 * PAGE.0);
    }

    #[test]
    fn a_budget_also_limits_plain_allocations() {
        let config = HostConfig::new().memory(Bytes::gib(1)).without_virtual_memory();
        let pool = Pool::builder(&config.open().unwrap()).build().unwrap();
        let [kept, freed] = [4, 12].map(|pages| pool.alloc(Bytes(PAGE.0 * pages)).unwrap());
        drop(freed);
        pool.set_budget(Bytes(PAGE.0 * 6)).unwrap();
        assert_eq!(pool.usage().held, 4 * PAGE.0);
        assert_eq!(pool.alloc(Bytes(PAGE.0 * 3)).unwrap_err().kind(), ErrorKind::OutOfMemory);
        drop(kept);
    }

    /// Blocks of up to 1 MiB return at once too, and stay in thread caches again within the budget.
    #[test]
    fn small_blocks_return_above_the_budget() {
        let backend = HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
        for size in [Bytes(300), Bytes::kib(20), Bytes::kib(200), Bytes::mib(1)] {
            let pool = Pool::builder(&backend).build().unwrap();
            let blocks: Vec<_> = (0..Bytes::mib(8).0 / size.0).map(|_| pool.alloc(size).unwrap()).collect();
            assert!(pool.usage().held >= 4 * PAGE.0);
            pool.set_budget(Bytes::ZERO).unwrap();
            // It leaves nothing in the thread cache, if there is memory for it.
            drop(pool.alloc(Bytes(3000)));
            drop(blocks);
            let stats = pool.stats();
            assert_eq!((stats.held, stats.cached), (0, 0), "blocks of {size}");
            pool.set_budget(Bytes(u64::MAX)).unwrap();
            drop(pool.alloc(size).unwrap());
            assert!(pool.stats().cached >= size.0, "blocks of {size}");
        }
    }

    /// What the device has free, without a call of the pool after the last free.
    #[test]
    fn blocks_above_budget_return_at_once() {
        for is_plain in [false, true] {
            let config = HostConfig::new().memory(Bytes::gib(1));
            let config = if is_plain { config.without_virtual_memory() } else { config };
            let backend = config.open().unwrap();
            let pool = Pool::builder(&backend).build().unwrap();
            let free = || backend.memory_info(DeviceId(0)).unwrap().free.0;
            let before = free();
            let blocks: Vec<_> = (0..4).map(|_| pool.alloc(Bytes(PAGE.0 * 4)).unwrap()).collect();
            pool.set_budget(PAGE).unwrap();
            drop(blocks);
            let held = before - free();
            assert!(held <= PAGE.0, "plain: {is_plain}, {held} bytes");
            // Within the budget, the block that was freed last serves the next request again.
            pool.set_budget(Bytes(u64::MAX)).unwrap();
            let served = || pool.owner.inner.last.served().requests;
            let few = served();
            (0..2).for_each(|_| drop(pool.alloc(Bytes(PAGE.0 * 4)).unwrap()));
            assert_eq!(served(), few + 1, "plain: {is_plain}");
        }
    }
}
