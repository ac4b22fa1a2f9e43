//! Memory that is mapped in advance: behind the highest large block, where the pool grows.

use crate::core::Core;
use crate::shared::Inner;
use crate::stream_order::CLEAN;
use crate::supply::Chosen;
use gpu_vmm_core::{Backend, Error};
use gpu_vmm_premap::extend::{PremapWork, Step};

/// The number of pages that one step maps. Requests for memory wait for the step.
const STEP: usize = 8;

impl<B: Backend> PremapWork for Inner<B> {
    fn step(&self) -> Step {
        // Not `Done`: most holders of the lock do not ask for more work when they release it.
        let Some(mut core) = self.try_core() else { return Step::Busy };
        match core.premap() {
            Ok(true) => Step::More,
            Ok(false) => Step::Done,
            // A request that needs the memory meets the same error, and reports it.
            Err(_) => Step::Failed,
        }
    }
}

impl<B: Backend> Core<B> {
    /// Maps some pages behind the highest block of a tag. Returns false if there is nothing left to do.
    fn premap(&mut self) -> Result<bool, Error> {
        for space in 0..self.spaces.len() {
            let tag = self.spaces[space].tag;
            if self.spaces[space].is_small() || self.check_active(tag).is_err() {
                continue;
            }
            let pages = self.spaces[space].pages_to_premap(self.settings.premap.0);
            let room = self.settings.budget.0.saturating_sub(self.held()) / self.page;
            let count = pages.len().min(STEP).min(usize::try_from(room).unwrap_or(STEP));
            if count > 0 {
                self.map_fresh(space, pages.start, count, tag)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Maps new memory at pages that have none, and leaves it free.
    fn map_fresh(&mut self, space: usize, first: usize, count: usize, tag: u16) -> Result<(), Error> {
        let part = (first as u64 * self.page, count as u64 * self.page);
        let gap = self.spaces[space].open_gap(&mut self.frames, part, CLEAN);
        let mut chosen = Chosen::default();
        let created = gap.missing.iter().try_for_each(|_| self.create(tag, &mut chosen));
        let Self { spaces, frames, settings, calls, .. } = self;
        let result = created
            .and_then(|()| spaces[space].fill_gap(frames, &gap, &chosen.frames, &settings.access, calls));
        match result {
            Ok(()) => chosen.frames.iter().for_each(|frame| self.frames.release(*frame)),
            Err(_) => self.give_up(&chosen),
        }
        self.spaces[space].close_gap(&mut self.frames, &gap);
        self.note();
        result
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{BackingStore, Bytes, Operation, WaitFor};
    use gpu_vmm_host::{HostBackend, HostConfig};
    use gpu_vmm_premap::PremapThread;

    const PAGE: u64 = 2 << 20;

    /// Maps in advance until nothing is left, beside the thread that does the same. Returns the number of steps that mapped memory.
    fn work(pool: &Pool<HostBackend>) -> usize {
        let mut core = pool.owner.inner.core(Operation::Allocate).unwrap();
        let steps = (0..100).take_while(|_| core.premap().unwrap()).count();
        assert!(steps < 100, "there is always more to do");
        steps
    }

    #[test]
    fn as_much_is_mapped_as_was_asked_for() {
        let backend = HostConfig::new().memory(Bytes::gib(4)).open().unwrap();
        let thread = PremapThread::start(Bytes(64 * PAGE)).unwrap();
        let pool = Pool::builder(&backend).premap(&thread, Bytes(20 * PAGE)).build().unwrap();
        assert_eq!(work(&pool), 0, "nothing was allocated");
        drop(thread);
        let block = pool.alloc(Bytes(3 * PAGE)).unwrap();
        work(&pool);
        let stats = pool.stats();
        assert_eq!((stats.held, stats.kept, stats.mapped), (23 * PAGE, 20 * PAGE, 23 * PAGE));
        assert_eq!(stats.peak_held, 23 * PAGE);
        // The next block needs no driver call.
        let next = pool.alloc(Bytes(20 * PAGE)).unwrap();
        assert_eq!(next.address(), block.address() + Bytes(3 * PAGE));
    }

    #[test]
    fn the_budget_and_suspended_tags_are_left_alone() {
        let backend = HostConfig::new().memory(Bytes::gib(4)).open().unwrap();
        let thread = PremapThread::start(Bytes(64 * PAGE)).unwrap();
        let builder = Pool::builder(&backend).premap(&thread, Bytes(20 * PAGE)).budget(Bytes(10 * PAGE));
        let pool = builder.build().unwrap().tagged("kv").unwrap();
        let block = pool.alloc(Bytes(3 * PAGE)).unwrap();
        work(&pool);
        assert_eq!(pool.stats().held, 10 * PAGE);
        drop(block);
        let block = pool.alloc(Bytes(3 * PAGE)).unwrap();
        let store = BackingStore::pinned(&backend, Bytes(16 * PAGE)).unwrap();
        pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(work(&pool), 0, "memory was mapped for a suspended tag");
        assert_eq!(pool.stats().held, 0);
        pool.resume("kv").unwrap();
        drop(block);
    }
}
