//! Regions that a process has in common, found by their tags: all weights go to sleep, all caches wake.

use crate::driver::{Backend, WaitFor};
use crate::memory::BackingStore;
use crate::region::{Region, RegionState, Resumed, Suspended};
use crate::types::{AddressRange, Bytes, Detail, Error, Lock, Operation, Result};
use std::sync::{Arc, MutexGuard};

/// A region that several threads have. Clones are the same region; it is dropped with the last of them.
///
/// What is done with it is done by one thread at a time, in the order in which they [lock](SharedRegion::lock) it.
#[derive(Debug)]
pub struct SharedRegion<B: Backend>(Arc<Shared<B>>);

#[derive(Debug)]
struct Shared<B: Backend> {
    /// The region's, to be looked at while somebody works on it.
    tag: Box<str>,
    region: Lock<Region<B>>,
}

impl<B: Backend> Clone for SharedRegion<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> SharedRegion<B> {
    fn new(region: Region<B>) -> Self {
        Self(Arc::new(Shared { tag: region.tag().into(), region: Lock::new(region) }))
    }

    /// The region's [tag](Region::tag).
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.0.tag
    }

    /// Waits until nobody else works on the region. A thread that has it locked and locks it again waits for itself. One that
    /// has it locked has the [`RegionSet`] suspend and resume nothing, whatever the tag, and does not ask for their states:
    /// they wait for it, or for another thread that does. That a thread has panicked with it is no harm: the region's own
    /// books are always whole.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn lock(&self) -> Result<MutexGuard<'_, Region<B>>> {
        self.0.region.lock(Operation::LockRegion)
    }

    /// True where both are the same region.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What was done to all regions with a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagResult {
    /// How many have the tag.
    pub regions: usize,
    /// How many of them were changed; the others were as they should be already.
    pub changed: usize,
    /// How much memory those have given back or got.
    pub memory: Bytes,
}

/// Regions by their tags. Clones are the same set.
///
/// Suspending and resuming are done for one tag after the other, in the order of the calls, whichever thread they come from:
/// of two calls at the same time, all regions are at last as the later one says.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, RegionSet, Result, BackingStore};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let regions = RegionSet::new();
/// let store = BackingStore::pinned(backend, Bytes::gib(32))?;
/// let weights = regions.insert(Region::builder(backend).tag("weights").build()?)?;
/// weights.lock()?.grow_to(Bytes::gib(24))?;
/// regions.suspend("weights", &store, WaitFor::all_devices())?;
/// regions.resume("weights")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RegionSet<B: Backend>(Arc<All<B>>);

#[derive(Debug)]
struct All<B: Backend> {
    members: Lock<Vec<SharedRegion<B>>>,
    /// Whoever suspends or resumes has it.
    turn: Lock<()>,
}

impl<B: Backend> Clone for RegionSet<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Default for RegionSet<B> {
    fn default() -> Self {
        Self(Arc::new(All { members: Lock::default(), turn: Lock::default() }))
    }
}

impl<B: Backend> RegionSet<B> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn members(&self, operation: Operation) -> Result<MutexGuard<'_, Vec<SharedRegion<B>>>> {
        self.0.members.lock(operation)
    }

    /// Adds a region, which stays here until it is [removed](RegionSet::remove).
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`]; the region is dropped then.
    pub fn insert(&self, region: Region<B>) -> Result<SharedRegion<B>> {
        let mut members = self.members(Operation::AddRegion)?;
        let shared = SharedRegion::new(region);
        members.push(shared.clone());
        Ok(shared)
    }

    /// Takes a region out; false if it was not here. It lives on while a clone of it does.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn remove(&self, region: &SharedRegion<B>) -> Result<bool> {
        let mut members = self.members(Operation::RemoveRegion)?;
        let before = members.len();
        // The last clone is dropped after the lock, since dropping a region waits for devices.
        let removed: Vec<_> = members.extract_if(.., |member| member.is_same_as(region)).collect();
        let is_less = members.len() < before;
        drop(members);
        drop(removed);
        Ok(is_less)
    }

    /// Returns the regions with this tag, in the order in which they came.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn tagged(&self, tag: &str) -> Result<Vec<SharedRegion<B>>> {
        let members = self.members(Operation::FindRegions)?;
        Ok(members.iter().filter(|member| member.tag() == tag).cloned().collect())
    }

    /// Returns every region's tag, addresses and state. Each is waited for until no other thread works on it.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn states(&self) -> Result<Vec<(Box<str>, AddressRange, RegionState)>> {
        let members = self.members(Operation::FindRegions)?.clone();
        let look = |member: &SharedRegion<B>| {
            let region = member.lock()?;
            Ok((region.tag().into(), region.range(), region.state()))
        };
        members.iter().map(look).collect()
    }

    /// Suspends all regions with this tag, in the order in which they came: [`Region::suspend`]. Those that are suspended
    /// already are left as they are.
    ///
    /// # Errors
    ///
    /// [`Detail::Partial`] with the first error of a region: those before it are suspended and stay so, those behind it were
    /// not touched. The same call again goes on there; [`RegionSet::resume`] takes it back. The region itself is as it was,
    /// but for [`Detail::AddressesLost`]: then it is suspended too, and among those that are done.
    pub fn suspend(&self, tag: &str, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<TagResult> {
        self.each(Operation::Suspend, tag, |region| {
            let Suspended { memory, already, .. } = region.suspend(store, done)?;
            Ok((!already).then_some(memory))
        })
    }

    /// Resumes all regions with this tag, in the order in which they came: [`Region::resume`]. Those that are not suspended
    /// are left as they are.
    ///
    /// # Errors
    ///
    /// [`Detail::Partial`] with the first error of a region: those before it are resumed, and can be used; it and those behind
    /// it are still suspended, with their contents. The same call again goes on there, when there is more memory for
    /// example.
    pub fn resume(&self, tag: &str) -> Result<TagResult> {
        self.each(Operation::Resume, tag, |region| {
            let Resumed { memory, already, .. } = region.resume()?;
            Ok((!already).then_some(memory))
        })
    }

    /// Does something to one after the other, up to the first error. `act` says how much memory went or came, or nothing
    /// where there was nothing to do.
    fn each(
        &self,
        operation: Operation,
        tag: &str,
        act: impl Fn(&mut Region<B>) -> Result<Option<Bytes>>,
    ) -> Result<TagResult> {
        let _turn = self.0.turn.lock(operation)?;
        let members = self.tagged(tag)?;
        let mut all = TagResult { regions: members.len(), ..TagResult::default() };
        for (done, member) in members.iter().enumerate() {
            let changed = act(&mut *member.lock()?).map_err(|source| {
                // That region is suspended, with its contents.
                let done = done + usize::from(matches!(source.detail(), Detail::AddressesLost { .. }));
                let (tag, regions) = (tag.into(), members.len());
                Error::new(operation, Detail::Partial { tag, done, regions, source })
            })?;
            all.changed += usize::from(changed.is_some());
            all.memory += changed.unwrap_or(Bytes::ZERO);
        }
        Ok(all)
    }
}
