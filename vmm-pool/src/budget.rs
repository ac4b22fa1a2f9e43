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
    /// as the work on it is done; [`trim`](Pool::trim) waits for that work. Until then no new memory is created, and a request that
    /// would need some fails with [`PoolError::OutOfMemory`](crate::PoolError::OutOfMemory), which names the budget.
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
            core.held() > budget.0
        };
        if !is_exceeded {
            return Ok(());
        }
        // Memory in thread caches is free, too.
        self.owner.settle(operation, |_, _| true)?;
        let mut core = inner.core(operation)?;
        core.poll();
        core.trim_to_budget().map(drop)
    }
}

impl<B: Backend> Core<B> {
    /// Returns the size of the free memory that the pool may keep within its budget.
    pub(crate) fn free_within_budget(&self) -> u64 {
        let excess = self.held().saturating_sub(self.settings.budget.0);
        (self.frames.free() as u64 * self.page).saturating_sub(excess)
    }

    /// Releases free memory that exceeds the budget, as far as the work on it is known to be done.
    fn trim_to_budget(&mut self) -> Result<Bytes> {
        match self.held() > self.settings.budget.0 {
            true => self.trim(self.free_within_budget()),
            false => Ok(Bytes::ZERO),
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{Bytes, ErrorKind};
    use gpu_vmm_host::HostConfig;

    const PAGE: Bytes = Bytes::mib(2);

    #[test]
    fn a_smaller_budget_returns_free_memory_at_once() {
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
        // Less than the live blocks: what is free goes, and the memory of blocks as they are freed.
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
}
