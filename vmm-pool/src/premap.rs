//! Memory that is mapped in advance: behind the highest large block, where the pool grows.

use crate::core::Core;
use crate::mapping::{Claimed, Mapping};
use crate::shared::Inner;
use crate::space::Group;
use gpu_vmm_core::{Backend, Operation, Result};
use gpu_vmm_premap::extend::{PremapWork, Step};
use std::ops::Range;

/// The number of pages that one step maps. Requests for which memory must be mapped wait for the step.
const STEP: usize = 8;

impl<B: Backend> PremapWork for Inner<B> {
    fn step(&self) -> Step {
        // Not `Done`: most threads that map memory do not ask for more work afterwards.
        let Some(mapping) = self.try_mapping(Operation::Allocate) else { return Step::Busy };
        match mapping.premap() {
            Ok(true) => Step::More,
            Ok(false) => Step::Done,
            // A request that needs the memory meets the same error, and reports it.
            Err(_) => Step::Failed,
        }
    }
}

impl<B: Backend> Core<B> {
    /// Returns some pages behind the highest block of a tag, and their space; none if nothing is left to map.
    fn to_premap(&self) -> Option<(usize, Range<usize>)> {
        let room = self.room(self.ledger.budget()) / self.page;
        let most = STEP.min(usize::try_from(room).unwrap_or(STEP));
        let mut pages = self.spaces.iter().enumerate().map(|(index, space)| {
            let grows = !space.is_small() && space.group != Group::CHOSEN;
            let serves = grows && self.check_active(space.tag).is_ok();
            let pages = if serves { space.pages_to_premap(self.settings.premap.0) } else { 0..0 };
            (index, pages.start..pages.end.min(pages.start + most))
        });
        pages.find(|(_, pages)| !pages.is_empty())
    }
}

impl<B: Backend> Mapping<'_, B> {
    /// Maps new memory at some pages behind the highest block of a tag, and leaves it free. Returns false if nothing is left to do.
    fn premap(&self) -> Result<bool> {
        let mut core = self.core()?;
        let Some((space, pages)) = core.to_premap() else { return Ok(false) };
        core.spaces[space].add_pages(pages.end);
        let (pages, tag): (Vec<_>, _) = (pages.collect(), core.spaces[space].tag);
        if !core.expect(pages.len() as u64) {
            // Another kind of memory has taken the budget since.
            return Ok(false);
        }
        let mut new = Claimed { mapping: self, frames: Vec::new(), are_new: true };
        let (mut core, refused) = self.create(core, (pages.len(), tag), &mut new.frames)?;
        let mapped = match refused {
            Some(error) => Err(error),
            None => {
                let memory = new.frames.iter().filter_map(|frame| core.frames.get(*frame).memory.clone());
                let (memory, devices): (Vec<_>, _) = (memory.collect(), core.settings.access.clone());
                let mut lent = self.lend(&mut core, space)?;
                drop(core);
                let mapped = lent.map(&pages, &memory, &devices);
                core = self.core()?;
                lent.put_back(&mut core);
                mapped
            }
        };
        for (page, frame) in pages.iter().zip(std::mem::take(&mut new.frames)) {
            let Core { spaces, frames, .. } = &mut *core;
            if mapped.is_ok() {
                spaces[space].note_mapped(frames, *page, frame);
                frames.release(frame);
            } else {
                core.remove(frame);
            }
        }
        core.note();
        mapped.map(|()| true)
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
        let mapping = pool.owner.inner.mapping(Operation::Allocate).unwrap();
        let steps = (0..100).take_while(|_| mapping.premap().unwrap()).count();
        assert!(steps < 100, "there is always more to do");
        steps
    }

    #[test]
    fn requested_amount_is_mapped() {
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
    fn budget_and_suspended_tags_are_kept() {
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
