//! The budget of a pool, which a program may change at any time.

use crate::Pool;
use crate::core::Core;
use gpu_vmm_core::{Backend, Bytes, Operation, Result};

impl<B: Backend> Pool<B> {
    /// Sets the largest amount of physical memory that the pool may hold, in bytes; `u64::MAX` for no limit. Any thread may call it
    /// at any time.
    ///
    /// If the pool holds more, it returns free memory to the driver at once. Nothing waits: memory that work still uses stays, and
    /// memory of live blocks too. As blocks are freed, the pool returns their memory until it holds no more than the budget, as far
    /// as the work on it is done; [`trim`](Pool::trim) waits for that work. Until then no freed block stays in a thread cache, no new
    /// memory is created, and a request that would need some fails with [`PoolError::OutOfMemory`](crate::PoolError::OutOfMemory),
    /// which names the budget.
    ///
    /// # Errors
    ///
    /// [`Forked`](gpu_vmm_core::Detail::Forked) in a forked child, where nothing changes. The driver's error if memory cannot be
    /// returned; the new budget holds nevertheless.
    pub fn set_budget(&self, budget: Bytes) -> Result<()> {
        let operation = Operation::SetBudget;
        let inner = &self.owner.inner;
        let is_exceeded = {
            let mut core = inner.core(operation)?;
            core.settings.budget = budget;
            core.settings.budget_of_environment = false;
            self.refuse_freed(&core);
            core.exceeds_budget()
        };
        if !is_exceeded {
            return Ok(());
        }
        // Memory in thread caches is free, too.
        self.owner.settle(operation, |_, _| true)?;
        let trimmed = inner.trim_to_limit();
        self.refuse_freed(&*inner.core(operation)?);
        trimmed
    }

    /// Lets freed blocks return to the core at once while the pool exceeds its budget.
    fn refuse_freed(&self, core: &Core<B>) {
        let exceeds = core.exceeds_budget();
        self.owner.inner.last.refuse(exceeds);
        self.owner.thread_caches().for_each(|cache| cache.lock().refuse(exceeds));
    }
}

impl<B: Backend> Core<B> {
    /// Returns true if the pool holds more than its budget, which was set later.
    pub(crate) fn exceeds_budget(&self) -> bool {
        self.held() > self.settings.budget.0
    }

    /// Returns the size of the free memory that the pool may keep within its budget.
    pub(crate) fn free_within_budget(&self) -> u64 {
        let excess = self.held().saturating_sub(self.settings.budget.0);
        (self.frames.free() as u64 * self.page).saturating_sub(excess)
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
