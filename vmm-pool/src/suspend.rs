//! Suspension: the blocks of a tag keep their addresses while their memory returns to the driver.
//!
//! A tag is active, being suspended, suspended, or being resumed: [`TagState`]. A [`Transition`] is the only one of its tag at a
//! time. It waits and copies without the core, while the regions are [away](Away) from their spaces.
#![allow(unsafe_code)] // promises that work has been waited for

use crate::away::{Away, Part};
use crate::budget_source::BudgetEffort;
use crate::core::{Core, Shortage};
use crate::error::ExhaustedResource;
use crate::ledger::Raises;
use crate::mapping::Mapping;
use crate::shared::{CoreGuard, Inner};
use crate::tags::{Tag, TagId, TagState};
use crate::{Pool, PoolError};
use gpu_vmm_core::extend::span;
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, Error, Grant, Operation, Region, Result, WaitFor};
use gpu_vmm_premap::sync::PoisonError;
use std::sync::Arc;

/// The number of times that a suspension waits for blocks that other threads free meanwhile.
const ROUNDS: usize = 64;

impl<B: Backend> Pool<B> {
    /// Copies the contents of all blocks with a tag to `store`, returns their memory to the driver, and keeps their
    /// addresses. Returns the size of the memory; zero if the blocks were suspended already.
    ///
    /// Waits for the work on the blocks as `done` says. Until [`Pool::resume`], no block is allocated with the tag; blocks
    /// can be freed. The pool's other blocks stay as they are.
    ///
    /// # Other threads
    ///
    /// The copies take no lock of the pool: meanwhile every call for other tags goes on, and so do statistics, snapshots, trims,
    /// and frees of the tag's blocks. From the beginning of the suspension on, a request with the tag returns
    /// [`PoolError::Suspended`], also one that waits for memory when the suspension begins, and so does a copy of a block's bytes.
    /// Copies that have begun are waited for, and requests that overwrite memory ([`scrub`](crate::PoolBuilder::scrub)). The memory
    /// counts as held until all of it was released.
    ///
    /// Calls that suspend or resume one tag take turns: each waits until the one before has ended, and then does the
    /// rest. So an [observer](gpu_vmm_core::Region::on_backing_change) of memory that the call frees must not suspend or resume the same
    /// tag. The pool ends after the call, which has a reference to it.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`Unsupported`](gpu_vmm_core::Detail::Unsupported) on a device without virtual memory management;
    /// and the errors of [`Region::suspend`](gpu_vmm_core::Region::suspend). A tag has several ranges of
    /// addresses; if one fails, those before it are resumed.
    ///
    /// [`PoolError::SuspendedInPart`] if one of these cannot be resumed either, for instance because its memory is in use elsewhere
    /// now. The tag is then suspended in part, as [`Pool::is_suspended`] and snapshots report, and [`Pool::resume`] restores
    /// everything. The same holds after [`AddressesLost`](gpu_vmm_core::Detail::AddressesLost).
    pub fn suspend(&self, tag: &str, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Bytes> {
        let (operation, inner) = (Operation::Suspend, &*self.owner.inner);
        let tag = self.tag_named(operation, tag)?;
        inner.core(operation)?.check_virtual(operation)?;
        span!(Suspend, tag = &*tag.name);
        let Some(mut transition) = Transition::begin(inner, operation, &tag, TagState::Suspending)? else {
            return Ok(Bytes::ZERO);
        };
        let memory = self.suspend_now(operation, &tag, store, done)?;
        transition.ends = Some(TagState::Suspended);
        Ok(memory)
    }

    /// Suspends a tag as [`suspend`](Self::suspend) does, unless the tag has ended or was forgotten, or another call suspends, resumes or
    /// moves it now, on this thread or another: then returns zero at once. A thread that other calls wait for needs this, such as the
    /// thread that gives memory back to a [source](crate::BudgetSource) of the budget: a resume may wait for the source.
    ///
    /// # Errors
    ///
    /// Those of [`suspend`](Self::suspend), except [`PoolError::NoSuchTag`].
    pub fn try_suspend(&self, tag: TagId, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Bytes> {
        let (operation, inner) = (Operation::Suspend, &*self.owner.inner);
        let core = inner.core(operation)?;
        core.check_virtual(operation)?;
        let tag = core.tags.with_id(tag).filter(|tag| tag.state() == TagState::Active);
        let Some(tag) = tag else { return Ok(Bytes::ZERO) };
        span!(Suspend, tag = &*tag.name);
        let mut transition = Transition::of_settled(core, operation, (tag, inner), TagState::Suspending);
        let memory = self.suspend_now(operation, &Arc::clone(&transition.tag), store, done)?;
        transition.ends = Some(TagState::Suspended);
        Ok(memory)
    }

    /// Returns the identity of a tag.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn tag_id(&self, tag: &str) -> Result<TagId> {
        Ok(self.tag_named(Operation::QueryTag, tag)?.id)
    }

    /// Suspends a tag from which nothing is allocated any more.
    fn suspend_now(
        &self,
        operation: Operation,
        tag: &Tag,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
    ) -> Result<Bytes> {
        let inner = &*self.owner.inner;
        self.owner.settle(operation, |index, _| index == tag.index)?;
        done.wait(&self.owner.backend, || std::iter::once(self.owner.memory().device))?;
        // Waits for copies that have begun. No other one begins: it looks at the tag's state first.
        drop(tag.copies.write().unwrap_or_else(PoisonError::into_inner));
        let mut away = Away::new(inner, operation);
        // Blocks that other threads free meanwhile are waited for as well.
        for _ in 0..ROUNDS {
            let waited = inner.wait_for_streams(operation);
            // Requests that overwrite memory end first; no other one begins.
            drop(inner.core_when(operation, |core| !core.is_changing(tag.index))?);
            let mapping = inner.mapping(operation)?;
            let mut core = mapping.core()?;
            core.collect_pending();
            while core.is_idle_all(tag.index) {
                let pages = core.to_unmap(&[tag.index]);
                if pages.is_empty() {
                    away.take_to_suspend(&mut core, tag.index);
                    let allowed = core.settings.access.clone();
                    drop(core);
                    drop(mapping);
                    return self.suspend_away(operation, tag, away, store, &allowed);
                }
                // Other threads may free blocks meanwhile.
                core = mapping.unmap(core, pages)?;
            }
            waited?;
        }
        let reason =
            format!("other threads free blocks tagged {:?} all the time; stop them and try again", tag.name);
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }

    /// Suspends regions that are away: all of them, or none if the memory of the first ones can be had again. The pool had allowed
    /// `allowed` devices when they left.
    fn suspend_away(
        &self,
        operation: Operation,
        tag: &Tag,
        mut away: Away<'_, B>,
        store: &BackingStore<B>,
        allowed: &[Grant],
    ) -> Result<Bytes> {
        let mut total = Bytes::ZERO;
        let mut failed = None;
        for (before, part) in away.parts.iter_mut().enumerate() {
            // SAFETY: all work was waited for before. No work that is queued since uses a block of a tag that is being suspended:
            // the caller of `Pool::suspend` ensures that.
            match part.region.suspend(store, unsafe { WaitFor::nothing() }) {
                Ok(suspended) => total += suspended.memory,
                Err(error) => {
                    failed = Some((error, before));
                    break;
                }
            }
        }
        let result = match failed {
            None => Ok(total),
            Some((error, before)) => Err(self.undo(operation, tag, error, &mut away, before)),
        };
        let mapping = self.owner.inner.mapping(operation)?;
        let mut core = mapping.core()?;
        away.put_back(&mut core);
        match (result, mapping.allow_tag(core, tag.index, allowed)) {
            (Err(error), Err(undo)) => Err(error.rollback_failed(undo)),
            (result, _) => result,
        }
    }

    /// Resumes the first `before` regions, which were suspended before `error` occurred.
    fn undo(
        &self,
        operation: Operation,
        tag: &Tag,
        error: Error,
        away: &mut Away<'_, B>,
        before: usize,
    ) -> Error {
        away.give_up();
        let mut gone = away.parts.iter_mut().take(before);
        let undone = gone.try_for_each(|part| self.resume_region(operation, &mut part.region).map(drop));
        let Err(undo) = undone else { return error };
        let mut gone = away.parts.iter().filter(|part| part.is_suspended());
        if gone.any(|part| !part.region.mapped().is_zero()) {
            // A mapping that could not be removed again is poisoned.
            return error.rollback_failed(undo);
        }
        let (tag, memory) = (tag.name.clone(), away.parts.iter().map(Part::missing).sum());
        let (source, undo) = (Box::new(error), Box::new(undo));
        Error::of_extension(operation, PoolError::SuspendedInPart { tag, memory, source, undo })
    }

    /// Restores the memory of all blocks with a tag, with their contents. Returns the size of the memory; zero if the blocks
    /// were not suspended.
    ///
    /// As during a [suspension](Pool::suspend), other threads go on, and requests with the tag return [`PoolError::Suspended`]
    /// until all memory is restored. The memory counts as held from the beginning on. If there is too little, the call waits for
    /// suspensions of other tags that have begun.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`]; [`PoolError::OutOfMemory`] if the pool would exceed its budget; and the errors of
    /// [`Region::resume`](gpu_vmm_core::Region::resume). If there is too little memory, the blocks that are not restored yet
    /// stay suspended and their contents are safe.
    pub fn resume(&self, tag: &str) -> Result<Bytes> {
        let (operation, inner) = (Operation::Resume, &*self.owner.inner);
        let tag = self.tag_named(operation, tag)?;
        span!(Resume, tag = &*tag.name);
        let mut raises = Raises::new(&self.kinds.ledger);
        let Some(mut transition) = Transition::begin(inner, operation, &tag, TagState::Resuming)? else {
            return Ok(Bytes::ZERO);
        };
        let mut total = Bytes::ZERO;
        let mut result = self.resume_now(operation, &tag, &mut total);
        if matches!(&result, Err(shortage) if shortage.is_memory()) {
            // Free memory that the pool keeps may suffice.
            self.owner.settle(operation, |_, _| true)?;
            drop(inner.core_after_work(operation)?);
            result = self.resume_now(operation, &tag, &mut total);
        }
        let mut rounds = 0;
        while let Err(shortage) = &result
            && shortage.is_memory()
        {
            let missing = inner.core(operation)?.missing(tag.index);
            let short = (shortage, missing);
            if !self.raise_budget(operation, short, BudgetEffort::TakeFree, &mut raises)?
                && !self.kinds.give_way(&self.owner, operation, short, &mut rounds)?
                && !inner.wait_for_others(operation)?
                && !self.raise_budget(operation, short, BudgetEffort::AskOthers, &mut raises)?
            {
                break;
            }
            result = self.resume_now(operation, &tag, &mut total);
        }
        if let Err(shortage) = result {
            let missing = inner.core(operation)?.missing(tag.index);
            return Err(self.tell(operation, shortage, missing, &tag));
        }
        transition.ends = Some(TagState::Active);
        Ok(total)
    }

    /// Resumes the suspended memory of a tag, and adds the size of its memory to `total`.
    fn resume_now(&self, operation: Operation, tag: &Tag, total: &mut Bytes) -> Result<(), Shortage> {
        let inner = &*self.owner.inner;
        let mut away = Away::new(inner, operation);
        let mapping = inner.mapping(operation)?;
        let core = mapping.core()?;
        let missing = core.missing(tag.index);
        let mut core = mapping.make_room(core, missing)?;
        away.take_suspended(&mut core, tag.index, missing);
        drop(core);
        drop(mapping);
        let resumed = away.parts.iter_mut().try_for_each(|part| {
            *total += self.resume_region(operation, &mut part.region)?;
            Ok::<(), Error>(())
        });
        let mapping = inner.mapping(operation)?;
        let mut core = mapping.core()?;
        away.put_back(&mut core);
        resumed?;
        // Devices that were allowed meanwhile have no access yet.
        let own = core.settings.access[..1].to_vec();
        mapping.allow_tag(core, tag.index, &own)?;
        Ok(())
    }

    /// Resumes a region that is away. Returns the size of its memory.
    fn resume_region(&self, operation: Operation, region: &mut Region<B>) -> Result<Bytes> {
        let resumed = match region.resume() {
            Err(error) if error.is_out_of_memory() => {
                // Free memory that the pool keeps may suffice.
                let mapping = self.owner.inner.mapping(operation)?;
                let core = mapping.core()?;
                if core.frames.free() == 0 {
                    return Err(error);
                }
                drop(mapping.trim(core, 0)?);
                drop(mapping);
                region.resume()?
            }
            resumed => resumed?,
        };
        Ok(resumed.memory)
    }

    /// Returns true if a tag is suspended, or is being suspended or resumed.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn is_suspended(&self, tag: &str) -> Result<bool> {
        Ok(self.tag_named(Operation::QueryTag, tag)?.is_suspended())
    }

    /// Returns the size of the pages that contain blocks of a tag: a [store](BackingStore) needs this much room.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`].
    pub fn occupied(&self, tag: &str) -> Result<Bytes> {
        let operation = Operation::QueryTag;
        let tag = self.tag_named(operation, tag)?;
        self.owner.settle(operation, |index, _| index == tag.index)?;
        let core = self.owner.inner.core(operation)?;
        let own = core.spaces.iter().filter(|space| space.tag == tag.index);
        let pages = own.flat_map(|space| space.pages.iter());
        Ok(Bytes(pages.filter(|page| page.is_used()).count() as u64 * core.page))
    }

    pub(crate) fn tag_named(&self, operation: Operation, name: &str) -> Result<Arc<Tag>> {
        let core = self.owner.inner.core(operation)?;
        core.tags.find(name).ok_or_else(|| no_such_tag(&core, operation, name))
    }
}

fn no_such_tag<B: Backend>(core: &Core<B>, operation: Operation, name: &str) -> Error {
    let existing: Vec<_> = core.tags.iter().map(|tag| format!("{:?}", tag.name)).collect();
    Error::of_extension(operation, PoolError::NoSuchTag { tag: name.into(), existing: existing.join(", ") })
}

/// A suspension, a resume or a move of a tag: the only one until it is dropped.
#[derive(Debug)]
pub(crate) struct Transition<'a, B: Backend> {
    inner: &'a Inner<B>,
    operation: Operation,
    pub(crate) tag: Arc<Tag>,
    /// The state afterwards; none for the state that the memory has then.
    ends: Option<TagState>,
}

impl<'a, B: Backend> Transition<'a, B> {
    /// Begins a transition, once no other thread suspends or resumes the tag. Returns none for a resume of an active tag.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`] if the tag was forgotten meanwhile: nothing could resume it.
    fn begin(
        inner: &'a Inner<B>,
        operation: Operation,
        tag: &Arc<Tag>,
        state: TagState,
    ) -> Result<Option<Self>> {
        let core = inner.core_when(operation, |_| tag.state().is_settled())?;
        if !core.tags.is_named(tag) {
            return Err(no_such_tag(&core, operation, &tag.name));
        }
        let before = tag.state();
        if before == TagState::Active && state == TagState::Resuming {
            return Ok(None);
        }
        Ok(Some(Self::of_settled(core, operation, (Arc::clone(tag), inner), state)))
    }

    /// Begins a transition of a tag that no thread suspends, resumes or moves.
    fn of_settled(
        core: CoreGuard<'a, B>,
        operation: Operation,
        (tag, inner): (Arc<Tag>, &'a Inner<B>),
        state: TagState,
    ) -> Self {
        // A call that fails leaves a suspended tag suspended.
        let ends = Some(tag.state()).filter(|before| *before == TagState::Suspended);
        tag.set_state(state);
        drop(core);
        Self { inner, operation, tag, ends }
    }
}

impl<'a, B: Backend> Transition<'a, B> {
    /// Begins a move, once no other thread suspends, resumes or moves the tag. A tag that has no name any more moves too.
    ///
    /// # Errors
    ///
    /// [`PoolError::Suspended`] for a suspended tag.
    pub(crate) fn hold_to_move(inner: &'a Inner<B>, operation: Operation, tag: &Arc<Tag>) -> Result<Self> {
        let core = inner.core_when(operation, |_| tag.state().is_settled())?;
        if tag.state() != TagState::Active {
            return Err(Error::of_extension(operation, PoolError::Suspended { tag: tag.name.clone() }));
        }
        tag.set_state(TagState::Moving);
        drop(core);
        Ok(Self { inner, operation, tag: Arc::clone(tag), ends: None })
    }
}

impl<B: Backend> Drop for Transition<'_, B> {
    fn drop(&mut self) {
        // It fails in a forked child alone, where nothing uses the pool.
        let Ok(core) = self.inner.core(self.operation) else { return };
        let of_memory = match core.is_suspended(self.tag.index) {
            true => TagState::Suspended,
            false => TagState::Active,
        };
        self.tag.set_state(self.ends.unwrap_or(of_memory));
        drop(core);
        self.inner.wake();
    }
}

impl<B: Backend> Core<B> {
    /// Returns true if memory of a tag is suspended, or if a thread suspends or resumes it.
    pub(crate) fn is_suspended(&self, tag: u16) -> bool {
        self.tags.spaces(tag).any(|space| self.spaces[space].is_suspended())
    }

    /// Returns true if no work uses a tag's memory or addresses, apart from the work of its live blocks.
    pub(crate) fn is_idle_all(&self, tag: u16) -> bool {
        let pages = self.tags.spaces(tag).flat_map(|space| self.spaces[space].pages.iter());
        pages.filter(|page| page.is_mapped()).all(|page| self.frames.waiting(page.frame).count == 0)
    }
}

impl<'a, B: Backend> Mapping<'a, B> {
    /// Ensures that the pool can hold `memory` more within its budget, and counts it as held.
    fn make_room(
        &self,
        mut core: CoreGuard<'a, B>,
        memory: Bytes,
    ) -> std::result::Result<CoreGuard<'a, B>, Shortage> {
        // A pool may hold more than a budget that was set later.
        if memory.is_zero() {
            return Ok(core);
        }
        let budget = core.ledger.budget();
        let shortage = Shortage::Memory(ExhaustedResource::Budget(budget));
        let Some(most) = budget.0.checked_sub(memory.0) else { return Err(shortage) };
        if core.held_by_all() > most {
            let used = core.held_by_all() - core.frames.free() as u64 * core.page;
            core = self.trim(core, most.saturating_sub(used))?.0;
        }
        let pages = memory.0 / core.page;
        if core.expect(pages) { Ok(core) } else { Err(shortage) }
    }

    /// Gives devices access to a tag's memory that do not have the access among the `allowed` ones.
    pub(crate) fn allow_tag(&self, mut core: CoreGuard<'a, B>, tag: u16, allowed: &[Grant]) -> Result<()> {
        let devices = core.settings.access.iter().filter(|grant| !allowed.contains(grant));
        let devices: Vec<_> = devices.copied().collect();
        for space in core.tags.spaces(tag) {
            core = self.allow(core, space, &devices)?;
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::Operation;
    use gpu_vmm_host::HostConfig;
    use gpu_vmm_testkit::check_may_wait;
    use std::panic::catch_unwind;

    #[test]
    fn a_wait_under_the_core_is_seen() {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let (inner, operation) = (&pool.owner.inner, Operation::QueryPool);
        let is_seen = || catch_unwind(|| check_may_wait("a wait")).is_err();
        let core = inner.core(operation).unwrap();
        assert!(is_seen());
        drop(core);
        let core = inner.core_when(operation, |_| true).unwrap();
        assert!(is_seen());
        drop(core);
        let mapping = inner.mapping(operation).unwrap();
        assert!(is_seen());
        drop(mapping);
        let mapping = inner.try_mapping(operation).unwrap();
        assert!(is_seen());
        drop(mapping);
        assert!(!is_seen());
    }
}
