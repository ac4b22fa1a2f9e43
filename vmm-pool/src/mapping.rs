//! The turn to change mappings, which one thread has at a time.
//!
//! A thread that creates, maps or unmaps memory waits for its turn, decides in the core, makes the driver's calls without the core,
//! and notes in the core what has become of the pages. Other threads serve requests from mapped memory meanwhile.
#![allow(unsafe_code)] // promises that no work uses the memory

use crate::core::Core;
use crate::frames::{FrameIndex, NO_FRAME, PageAddress};
use crate::shared::{CoreGuard, Inner};
use crate::space::Page;
use crate::stats::DriverCalls;
use gpu_vmm_core::extend::{NoWaits, create_now};
use gpu_vmm_core::{Backend, Bytes, Error, Grant, Operation, PhysicalMemory, Region};
use gpu_vmm_core::{Result, WaitFor};
use gpu_vmm_premap::sync::{MutexGuard, lock, try_lock};

/// The turn. The thread that has it begins no wait for work, and locks the core as often as it needs.
#[derive(Debug)]
pub(crate) struct Mapping<'a, B: Backend> {
    pub(crate) inner: &'a Inner<B>,
    operation: Operation,
    turn: Option<(MutexGuard<'a, ()>, NoWaits)>,
}

impl<B: Backend> Inner<B> {
    /// Waits for this thread's turn to map. It must not hold the core.
    pub(crate) fn mapping(&self, operation: Operation) -> Result<Mapping<'_, B>, Error> {
        self.process.check(operation)?;
        Ok(Mapping::new(self, operation, lock(&self.mapping)))
    }

    /// Returns the turn to map if no other thread has it.
    pub(crate) fn try_mapping(&self, operation: Operation) -> Option<Mapping<'_, B>> {
        self.process.check(operation).ok()?;
        try_lock(&self.mapping).map(|turn| Mapping::new(self, operation, turn))
    }
}

impl<'a, B: Backend> Mapping<'a, B> {
    fn new(inner: &'a Inner<B>, operation: Operation, turn: MutexGuard<'a, ()>) -> Self {
        Self { inner, operation, turn: Some((turn, NoWaits::begin())) }
    }

    pub(crate) fn inner(&self) -> &'a Inner<B> {
        self.inner
    }

    /// Locks the core. What leaves it is freed when the turn ends.
    pub(crate) fn core(&self) -> Result<CoreGuard<'a, B>> {
        self.inner.core_in_turn(self.operation)
    }

    /// Creates up to `count` frames, which are used and mapped nowhere, and adds them to `frames`. The core [expects](Core::expect) them
    /// already. Returns the driver's error if it refuses one.
    pub(crate) fn create(
        &self,
        core: CoreGuard<'a, B>,
        (count, tag): (usize, u16),
        frames: &mut Vec<FrameIndex>,
    ) -> Result<(CoreGuard<'a, B>, Option<Error>)> {
        let (backend, page, plain) = (core.backend.clone(), Bytes(core.page), core.settings.memory);
        let mut shareable = core.settings.shareable;
        let mut coming = Coming { mapping: self, count: count as u64 };
        drop(core);
        let create =
            |shareable| create_now(&backend, page, if shareable { plain.shareable() } else { plain });
        let (mut created, mut calls, mut refused) = (Vec::new(), 0, None);
        while created.len() < count && refused.is_none() {
            calls += 1;
            let answer = match create(shareable) {
                Err(error) if shareable && !error.is_out_of_memory() => {
                    calls += 1;
                    create(false).inspect(|_| shareable = false).map_err(|_| error)
                }
                answer => answer,
            };
            match answer {
                Ok(memory) => created.push(memory),
                Err(error) => refused = Some(error),
            }
        }
        let mut core = self.core()?;
        core.coming -= std::mem::take(&mut coming.count);
        core.calls.create += calls;
        core.settings.shareable = shareable;
        frames.extend(created.into_iter().map(|memory| core.frames.insert(Some(memory), tag)));
        Ok((core, refused))
    }

    /// Unmaps pages without blocks that no work uses any more, with one call per run of addresses. No request finds their memory there
    /// meanwhile.
    pub(crate) fn unmap(
        &self,
        mut core: CoreGuard<'a, B>,
        mut pages: Vec<PageAddress>,
    ) -> Result<CoreGuard<'a, B>> {
        pages.sort_unstable_by_key(|at| (at.space, at.page));
        let mut parted = Parted { mapping: self, pages: core.part_from(&pages) };
        for of_space in pages.chunk_by(|one, other| one.space == other.space) {
            let lent = self.lend(&mut core, of_space[0].space.into());
            // Before an error is returned, for the sake of the undoing that follows.
            drop(core);
            let mut lent = lent?;
            let pages: Vec<_> = of_space.iter().map(|at| at.page as usize).collect();
            let unmapped = lent.unmap(&pages);
            let mut locked = self.core()?;
            lent.put_back(&mut locked);
            if let Err(error) = unmapped {
                drop(locked);
                return Err(error);
            }
            core = locked;
        }
        parted.pages.clear();
        Ok(core)
    }

    /// Gives devices access to everything that is mapped in a space. Pages whose access is unknown after an error are not used again.
    pub(crate) fn allow(
        &self,
        mut core: CoreGuard<'a, B>,
        space: usize,
        devices: &[Grant],
    ) -> Result<CoreGuard<'a, B>> {
        let pages = core.spaces[space].pages.iter().enumerate();
        let pages: Vec<_> = pages.filter(|(_, page)| page.is_mapped()).map(|(index, _)| index).collect();
        if pages.is_empty() {
            return Ok(core);
        }
        let mut lent = self.lend(&mut core, space)?;
        drop(core);
        let allowed = lent.grant(&pages, devices);
        if allowed.is_err() {
            lent.lose_unsound(&pages);
        }
        let mut core = self.core()?;
        lent.put_back(&mut core);
        core.withdraw_lost(space);
        allowed.map(|()| core)
    }

    /// Takes the region of a space for calls without the core.
    pub(crate) fn lend<'m>(&'m self, core: &mut Core<B>, space: usize) -> Result<Lent<'m, 'a, B>> {
        let at = &mut core.spaces[space];
        let (page, region) = (at.page, Some(at.lend_region(self.operation)?));
        let (unmapped, lost) = (Vec::new(), Vec::new());
        Ok(Lent { mapping: self, space, page, region, calls: DriverCalls::default(), unmapped, lost })
    }
}

impl<B: Backend> Drop for Mapping<'_, B> {
    fn drop(&mut self) {
        self.turn = None;
        // What has left the core meanwhile leaves with this guard. It fails in a forked child alone.
        drop(self.inner.core(self.operation));
    }
}

/// Memory that is being created, until the core has it.
#[derive(Debug)]
struct Coming<'m, 'a, B: Backend> {
    mapping: &'m Mapping<'a, B>,
    count: u64,
}

impl<B: Backend> Drop for Coming<'_, '_, B> {
    fn drop(&mut self) {
        // A driver call has panicked. It fails in a forked child alone, where nothing uses the pool.
        if self.count > 0
            && let Ok(mut core) = self.mapping.core()
        {
            core.coming -= self.count;
        }
    }
}

/// Pages that are being unmapped, with the frames that they had. Pages that are still mapped when this is dropped are as before.
#[derive(Debug)]
struct Parted<'m, 'a, B: Backend> {
    mapping: &'m Mapping<'a, B>,
    pages: Vec<(PageAddress, FrameIndex)>,
}

impl<B: Backend> Drop for Parted<'_, '_, B> {
    fn drop(&mut self) {
        // A driver call has failed. It fails in a forked child alone, where nothing uses the pool.
        if !self.pages.is_empty()
            && let Ok(mut core) = self.mapping.core()
        {
            core.restore(&self.pages);
        }
    }
}

/// Frames that requests cannot have while they change. They are free, or gone if they are mapped nowhere and new, when this is dropped.
#[derive(Debug)]
pub(crate) struct Claimed<'m, 'a, B: Backend> {
    pub(crate) mapping: &'m Mapping<'a, B>,
    pub(crate) frames: Vec<FrameIndex>,
    pub(crate) are_new: bool,
}

impl<B: Backend> Drop for Claimed<'_, '_, B> {
    fn drop(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        // It fails in a forked child alone, where nothing uses the pool.
        let Ok(mut core) = self.mapping.core() else { return };
        for frame in self.frames.drain(..) {
            if self.are_new && core.frames.get(frame).mapped.is_empty() {
                core.remove(frame);
            } else {
                core.frames.release(frame);
            }
        }
        core.note();
    }
}

impl<B: Backend> Core<B> {
    /// Notes that pages have no frame, before they are unmapped: no request takes them meanwhile. Returns their frames. Lost pages, which
    /// no request takes either, stay lost.
    pub(crate) fn part_from(&mut self, pages: &[PageAddress]) -> Vec<(PageAddress, FrameIndex)> {
        let Self { spaces, frames, .. } = self;
        let part = |at: &PageAddress| {
            let (space, page) = (&mut spaces[usize::from(at.space)], at.page as usize);
            let Page { frame, .. } = Some(space.page_at(page)).filter(Page::is_mapped)?;
            space.part_from(frames, page, NO_FRAME);
            Some((*at, frame))
        };
        pages.iter().filter_map(part).collect()
    }

    /// Gives pages back the frames that [`part_from`](Self::part_from) has returned, as far as the memory is still mapped there.
    pub(crate) fn restore(&mut self, parted: &[(PageAddress, FrameIndex)]) {
        let Self { spaces, frames, .. } = self;
        for (at, frame) in parted {
            let (space, page) = (&mut spaces[usize::from(at.space)], at.page as usize);
            let mapping = space.region().and_then(|region| region.mapping_at(space.offset_of(page)));
            // A page that is lost meanwhile stays lost.
            if space.page_at(page).frame == NO_FRAME && mapping.is_some_and(|mapping| !mapping.poisoned) {
                space.note_mapped(frames, page, *frame);
            }
        }
    }
}

/// The region of a space, outside the core. It returns to the space when this is dropped.
#[derive(Debug)]
pub(crate) struct Lent<'m, 'a, B: Backend> {
    mapping: &'m Mapping<'a, B>,
    space: usize,
    page: u64,
    region: Option<Region<B>>,
    calls: DriverCalls,
    /// The pages at which nothing is mapped any more.
    unmapped: Vec<usize>,
    /// The pages at which the mapping or the access is unknown, also if a call panics.
    lost: Vec<usize>,
}

impl<B: Backend> Lent<'_, '_, B> {
    /// Unmaps pages, which must be in order, at addresses that no work uses any more.
    pub(crate) fn unmap(&mut self, pages: &[usize]) -> Result<()> {
        for run in pages.chunk_by(follow_each_other) {
            let (offset, length) = self.part(run);
            let Some(region) = &mut self.region else { return Ok(()) };
            self.calls.unmap += 1;
            let known = self.lost.len();
            // Unless the call returns.
            self.lost.extend(run);
            // SAFETY: the caller ensures that all work on these addresses is done.
            let result = region.unmap(offset, length, unsafe { WaitFor::nothing() });
            self.lost.truncate(known);
            if result.is_ok() {
                self.unmapped.extend(run);
            } else {
                self.lose_unsound(run);
            }
            result?;
        }
        Ok(())
    }

    /// Maps memory at pages, which must be in order and have none: at all of them, or at none.
    pub(crate) fn map(
        &mut self,
        pages: &[usize],
        memory: &[PhysicalMemory<B>],
        devices: &[Grant],
    ) -> Result<()> {
        let (mut done, known) = (0, self.lost.len());
        // Unless the calls return.
        self.lost.extend(pages);
        let mapped = self.map_and_grant(pages, memory, devices, &mut done);
        self.lost.truncate(known);
        let Err(mut error) = mapped else { return Ok(()) };
        for run in pages[..done].chunk_by(follow_each_other) {
            // A mapping that cannot be removed again may lack access.
            if let Err(undo) = self.unmap(run) {
                self.lost.extend(run);
                error = error.rollback_failed(undo);
            }
        }
        Err(error)
    }

    fn map_and_grant(
        &mut self,
        pages: &[usize],
        memory: &[PhysicalMemory<B>],
        devices: &[Grant],
        done: &mut usize,
    ) -> Result<()> {
        for (page, memory) in pages.iter().zip(memory) {
            let Some(region) = &mut self.region else { return Ok(()) };
            self.calls.map += 1;
            region.map(Bytes(*page as u64 * self.page), memory)?;
            *done += 1;
        }
        self.grant(pages, devices)
    }

    /// Gives devices access to mapped pages, which must be in order.
    fn grant(&mut self, pages: &[usize], devices: &[Grant]) -> Result<()> {
        for run in pages.chunk_by(follow_each_other) {
            let (offset, length) = self.part(run);
            for Grant { device, access } in devices {
                let Some(region) = &mut self.region else { return Ok(()) };
                self.calls.set_access += 1;
                region.set_access(offset, length, *device, *access)?;
            }
        }
        Ok(())
    }

    /// Returns the offset and the size of pages that follow each other.
    fn part(&self, run: &[usize]) -> (Bytes, Bytes) {
        (Bytes(run[0] as u64 * self.page), Bytes(run.len() as u64 * self.page))
    }

    /// Notes the pages at which the mapping is unknown.
    fn lose_unsound(&mut self, pages: &[usize]) {
        let Self { region: Some(region), lost, page: size, .. } = self else { return };
        let mapping_at = |page: usize| region.mapping_at(Bytes(page as u64 * *size));
        let is_sound = |page: &usize| mapping_at(*page).is_some_and(|mapping| !mapping.poisoned);
        lost.extend(pages.iter().filter(|page| !is_sound(page)));
    }

    /// Puts the region back, and notes which pages have lost their memory.
    pub(crate) fn put_back(mut self, core: &mut Core<B>) {
        self.end(core);
    }

    fn end(&mut self, core: &mut Core<B>) {
        let Some(region) = self.region.take() else { return };
        core.calls.add(self.calls);
        let Core { spaces, frames, .. } = core;
        spaces[self.space].put_region(region);
        for page in &self.unmapped {
            spaces[self.space].part_from(frames, *page, NO_FRAME);
        }
        for page in &self.lost {
            core.lose(self.space, *page);
        }
    }
}

impl<B: Backend> Drop for Lent<'_, '_, B> {
    fn drop(&mut self) {
        // A driver call has panicked. It fails in a forked child alone, where nothing uses the pool.
        if self.region.is_some()
            && let Ok(mut core) = self.mapping.core()
        {
            self.end(&mut core);
        }
    }
}

fn follow_each_other(one: &usize, next: &usize) -> bool {
    one + 1 == *next
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_are_pages_that_follow_each_other() {
        let found: Vec<_> = [1, 2, 3, 7, 9, 10].chunk_by(super::follow_each_other).collect();
        assert_eq!(found, [&[1, 2, 3][..], &[7], &[9, 10]]);
    }
}
