//! The move of a pool to another device: all blocks keep their addresses and their bytes, and have memory of the new device.
//!
//! A [`Mover`] moves one kind of memory. It holds all tags with memory, so that requests and copies wait, takes their regions out of the
//! core as a suspension does, and moves region by region. Tags that come meanwhile are held in the next round. The core passes to the new
//! device when nothing is left on the old one.
#![allow(unsafe_code)] // promises that work has been waited for

use crate::Pool;
use crate::away::Away;
use crate::core::Core;
use crate::kinds::limit;
use crate::owner::Owner;
use crate::shared::Inner;
use crate::suspend::Transition;
use crate::tags::{Tag, TagState};
use gpu_vmm_core::extend::{check_reach, check_same, check_virtual_memory, span};
use gpu_vmm_core::{
    Access, Backend, Bytes, Detail, DeviceId, Error, Grant, MovePath, Moved, Operation, Properties, Result,
    WaitFor,
};
use gpu_vmm_premap::sync::{PoisonError, lock};
use std::sync::Arc;

const OPERATION: Operation = Operation::MoveToDevice;

/// The number of times that a move takes what other threads allocate and free meanwhile.
const ROUNDS: usize = 64;

impl<B: Backend> Pool<B> {
    /// Moves the pool to another device: all blocks of all [kinds](Pool::with_memory) and tags keep their addresses and their bytes, and
    /// have memory of `device`. From then on the pool allocates there.
    ///
    /// The contents are copied as [`Region::move_to_device`](gpu_vmm_core::Region::move_to_device) does, directly where `device` can
    /// reach the memory. Host memory is replaced as well, since its device makes the copies to and from it. `device` receives read and
    /// write access, and the old device loses its access: [`Pool::allow_access`] gives it access as a peer, for instance for graphs that
    /// were captured there. All other devices keep theirs. Free memory returns to the old device. The budget stays, and
    /// counts the memory once, although both devices hold it until the call ends.
    ///
    /// [`Stream::DEFAULT`](gpu_vmm_core::Stream::DEFAULT) means the default stream of `device` from then on, for blocks that exist as
    /// well. Streams of the old device that the pool knows can still be used for blocks.
    ///
    /// The call first waits as `done` says, and for the streams of freed blocks; not for [fences](crate::Fence), whose work `done` must
    /// cover. No work may use a block until it returns.
    ///
    /// # Other threads
    ///
    /// Requests, and copies of blocks' bytes, wait until the call ends. Blocks can be freed. Suspensions and other moves wait too, and so
    /// does a request for a new kind of memory. A save that begins meanwhile returns [`PoolError::Suspended`](crate::PoolError::Suspended).
    /// An [observer](gpu_vmm_core::Region::on_backing_change) must not allocate from the pool.
    ///
    /// # Errors
    ///
    /// [`NoSuchDevice`](Detail::NoSuchDevice); [`ForeignHandle`](Detail::ForeignHandle) for a ring of another backend;
    /// [`PoolError::Suspended`](crate::PoolError::Suspended) if a tag is suspended; [`Unsupported`](Detail::Unsupported) if either
    /// device has no virtual memory management, if a [source](Self::set_budget_source) grants the pool its budget, or if the pool's pages are smaller than the granularity of `device`; [`PeerUnreachable`](Detail::PeerUnreachable) if a device that has access cannot reach
    /// the new memory; [`StillReferenced`](Detail::StillReferenced) if memory of a block was exported, or is held by another region or
    /// by [`Pool::memory_at`]; and the other errors of `Region::move_to_device`. What has moved is moved back, and the pool is as before.
    /// If that fails too ([`RollbackFailed`](Detail::RollbackFailed)), a kind that could not return is on `device`, where a second call
    /// moves the others. Of a kind that returned in part, the blocks that stay on `device` keep their addresses, but the pool does not
    /// use their memory again.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, DeviceId, MovePath, Result, WaitFor};
    /// # use gpu_vmm_pool::Pool;
    /// # fn example<B: Backend>(pool: &Pool<B>) -> Result<()> {
    /// let block = pool.alloc(Bytes::mib(3))?;
    /// let address = block.address();
    /// pool.move_to_device(DeviceId(1), MovePath::Fastest(None), WaitFor::all_devices())?;
    /// assert_eq!((block.address(), pool.memory().device), (address, DeviceId(1)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn move_to_device(&self, device: DeviceId, via: MovePath<'_, B>, done: WaitFor<'_>) -> Result<Moved> {
        let backend = &self.owner.backend;
        self.owner.inner.process.check(OPERATION)?;
        let of_device = backend.device(OPERATION, device)?.total_memory;
        if let MovePath::Fastest(Some(ring)) | MovePath::Ring(ring) = via {
            check_same(OPERATION, ring.backend(), backend)?;
        }
        self.owner.inner.core(OPERATION)?.check_virtual(OPERATION)?;
        let own = self.kinds.first.memory().device;
        if device != own && self.kinds.ledger.source().is_some() {
            let reason = format!(
                "a source, such as a server, grants the pool memory of {own}, not of {device}; move the pool before it has a source"
            );
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        check_virtual_memory(OPERATION, backend, device)?;
        let mut total = lock(&self.kinds.total);
        let (kinds, goal) = (self.kinds.all(), Place { device, total: of_device, left: None });
        let mut before = Vec::new();
        for owner in &kinds {
            let core = owner.inner.core(OPERATION)?;
            let (settings, page) = (core.settings.clone(), Bytes(core.page));
            drop(core);
            let memory = Properties { device, ..settings.memory };
            let granularity = backend.granularity_of(OPERATION, &memory)?;
            if !granularity.divides(page) {
                let reason = format!(
                    "the pool has pages of {page}, and {device} has a granularity of {}; build a pool with larger pages",
                    granularity.bytes()
                );
                return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
            }
            let peers = &settings.access[1..];
            peers.iter().try_for_each(|grant| check_reach(backend, OPERATION, grant.device, &memory))?;
            let left = peers.iter().copied().find(|grant| grant.device == device);
            before.push(Place { device: settings.memory.device, total: settings.total, left });
        }
        let mut moved = Moved::default();
        for (number, owner) in kinds.iter().enumerate() {
            match Mover::new(owner).run(goal, via, done) {
                Ok(more) => add(&mut moved, more),
                Err(error) => {
                    let back = |(owner, place): (&Arc<Owner<B>>, &Place)| {
                        // SAFETY: no work uses a block during the call, which the caller ensures.
                        let done = unsafe { WaitFor::nothing() };
                        Mover::new(owner).run(*place, via, done).map(drop)
                    };
                    // A kind that stays does not keep the others from returning.
                    let undone = kinds[..number]
                        .iter()
                        .zip(&before)
                        .rev()
                        .map(back)
                        .reduce(Result::and)
                        .unwrap_or(Ok(()));
                    if self.kinds.first.memory().device == device {
                        *total = of_device;
                    }
                    return Err(match undone {
                        Ok(()) => error,
                        Err(undo) => error.rollback_failed(undo),
                    });
                }
            }
        }
        *total = of_device;
        Ok(moved)
    }
}

/// Where a kind of memory moves.
#[derive(Clone, Copy, Debug)]
struct Place {
    device: DeviceId,
    /// The size of the device's memory.
    total: Bytes,
    /// The access that the device keeps which has the memory now.
    left: Option<Grant>,
}

impl Place {
    /// Returns the devices that have access to the memory afterwards, the new device first.
    fn access(self, before: &[Grant]) -> Vec<Grant> {
        let own = Grant { device: self.device, access: Access::ReadWrite };
        let peers = before.iter().skip(1).filter(|grant| grant.device != self.device);
        let mut access: Vec<_> = std::iter::once(&own).chain(peers).copied().collect();
        access.extend(self.left.filter(|left| access.iter().all(|grant| grant.device != left.device)));
        access
    }
}

/// The move of one kind of memory.
#[derive(Debug)]
struct Mover<'a, B: Backend> {
    owner: &'a Owner<B>,
    /// The regions. They return before the tags are active again.
    away: Away<'a, B>,
    held: Vec<Transition<'a, B>>,
}

impl<'a, B: Backend> Mover<'a, B> {
    fn new(owner: &'a Owner<B>) -> Self {
        Self { owner, away: Away::new(&owner.inner, OPERATION), held: Vec::new() }
    }

    /// Moves the memory to a device: all of it, or nothing.
    fn run(mut self, place: Place, via: MovePath<'_, B>, done: WaitFor<'_>) -> Result<Moved> {
        let from = self.owner.memory().device;
        span!(MoveToDevice, device = place.device.0);
        let mut moved = Moved::default();
        for _ in 0..ROUNDS {
            let answer = self.take(done).and_then(|()| self.move_regions(place.device, via, &mut moved));
            let ended = match answer.and_then(|()| self.end(place)) {
                Ok(false) => continue,
                Ok(true) => return Ok(moved),
                Err(error) => Err(error),
            };
            return ended.map_err(|error| self.back(from, via, error));
        }
        Err(self.back(from, via, busy()))
    }

    /// Moves the regions back that have moved, and puts all of them back.
    fn back(&mut self, from: DeviceId, via: MovePath<'_, B>, error: Error) -> Error {
        // A region that stays does not keep the others from returning.
        let undone = self.moves(from, via).map(|more| more.map(drop)).reduce(Result::and).unwrap_or(Ok(()));
        match undone.and(self.put_back()) {
            Ok(()) => error,
            Err(undo) => error.rollback_failed(undo),
        }
    }

    /// Puts the regions back on the device that they have left, with access for all devices that the pool allows: the device that they were
    /// on meanwhile has lost its access, and others were allowed meanwhile.
    fn put_back(&mut self) -> Result<()> {
        let mut allowed = Ok(());
        loop {
            let mapping = self.owner.inner.mapping(OPERATION)?;
            let mut core = mapping.core()?;
            let (device, access) = (core.settings.memory.device, core.settings.access.clone());
            if allowed.is_err() || !self.lack(device, &access) {
                self.away.put_back(&mut core);
                return allowed;
            }
            drop(core);
            drop(mapping);
            allowed = self.allow(device, &access);
        }
    }

    /// Returns true if memory of a device that is away lacks access for some devices.
    fn lack(&self, device: DeviceId, access: &[Grant]) -> bool {
        self.away.parts.iter().any(|part| part.lacks(device, access).next().is_some())
    }

    /// Gives devices access to the memory of a device that is away, where they lack it.
    fn allow(&mut self, device: DeviceId, access: &[Grant]) -> Result<()> {
        for part in &mut self.away.parts {
            let lacking: Vec<_> = part.lacks(device, access).collect();
            for (range, grant) in lacking {
                part.region.set_access(range.offset, range.length, grant.device, grant.access)?;
            }
        }
        Ok(())
    }

    fn holds(&self, tag: u16) -> bool {
        self.held.iter().any(|held| held.tag.index == tag)
    }

    /// Holds all tags with addresses.
    fn hold_tags(&mut self) -> Result<()> {
        let inner = &*self.owner.inner;
        loop {
            let core = inner.core(OPERATION)?;
            let mut others =
                core.tags.list.iter().filter(|own| !own.spaces.is_empty() && !self.holds(own.tag.index));
            let Some(tag) = others.next().map(|own| Arc::clone(&own.tag)) else { return Ok(()) };
            drop(core);
            self.held.push(Transition::hold_to_move(inner, OPERATION, &tag)?);
        }
    }

    /// Takes all regions out of the core that are in it.
    fn take(&mut self, done: WaitFor<'_>) -> Result<()> {
        let (owner, inner) = (self.owner, &*self.owner.inner);
        for _ in 0..ROUNDS {
            self.hold_tags()?;
            owner.settle(OPERATION, |_, _| true)?;
            done.wait(&owner.backend, || std::iter::once(owner.memory().device))?;
            // Waits for copies that have begun. No other one begins: it looks at the tag's state first.
            let of_copies = self.held.iter().map(|held| held.tag.copies.write());
            of_copies.for_each(|copies| drop(copies.unwrap_or_else(PoisonError::into_inner)));
            let waited = inner.wait_for_streams(OPERATION);
            // Requests that overwrite memory end first; no other one begins.
            let is_quiet = |core: &Core<B>| self.held.iter().all(|held| !core.is_changing(held.tag.index));
            drop(inner.core_when(OPERATION, is_quiet)?);
            let mapping = inner.mapping(OPERATION)?;
            let mut core = mapping.core()?;
            core.collect_pending();
            let tags: Vec<u16> = self.held.iter().map(|held| held.tag.index).collect();
            while tags.iter().all(|tag| core.is_idle_all(*tag)) {
                let pages = core.to_unmap(&tags);
                if pages.is_empty() {
                    tags.iter().for_each(|tag| self.away.take_active(&mut core, *tag));
                    return Ok(());
                }
                // Other threads may free blocks meanwhile.
                core = mapping.unmap(core, pages)?;
            }
            waited?;
        }
        Err(busy())
    }

    /// Moves the regions that were taken out, up to the first that fails. Regions without memory elsewhere stay as they are.
    fn move_regions(&mut self, device: DeviceId, via: MovePath<'_, B>, moved: &mut Moved) -> Result<()> {
        self.moves(device, via).try_for_each(|more| more.map(|more| add(moved, more)))
    }

    /// Moves the regions one by one, and returns the size of what was copied of each.
    fn moves<'m>(
        &'m mut self,
        device: DeviceId,
        via: MovePath<'m, B>,
    ) -> impl Iterator<Item = Result<Moved>> + use<'m, 'a, B> {
        let parts = self.away.parts.iter_mut();
        // SAFETY: all work was waited for before, and the caller of `Pool::move_to_device` lets no other work use a block.
        parts.map(move |part| part.region.move_to_device(device, via, unsafe { WaitFor::nothing() }))
    }

    /// Lets the core pass to the device, with the regions. Returns false if it has memory or addresses that are not moved yet, or if devices
    /// were allowed meanwhile. Once it has passed, nothing can fail.
    fn end(&mut self, place: Place) -> Result<bool> {
        let mapping = self.owner.inner.mapping(OPERATION)?;
        let (mut core, _) = mapping.trim(mapping.core()?, 0)?;
        let mut spaces = core.spaces.iter().filter(|space| space.reserved > 0);
        let all_moved = spaces.all(|space| self.holds(space.tag) && space.region().is_none());
        if core.frames.free() > 0 || !all_moved {
            return Ok(false);
        }
        let access = place.access(&core.settings.access);
        if self.lack(place.device, &access) {
            drop(core);
            drop(mapping);
            return self.allow(place.device, &access).map(|()| false);
        }
        if !core.streams.move_to(place.device) {
            return Ok(false);
        }
        let settings = &mut core.settings;
        settings.memory.device = place.device;
        settings.total = place.total;
        settings.access = access;
        let total = limit(settings.memory, place.total);
        self.owner.note_moved(place.device, total);
        self.away.put_back(&mut core);
        Ok(true)
    }
}

fn add(moved: &mut Moved, more: Moved) {
    moved.by_peer += more.by_peer;
    moved.through_host += more.through_host;
}

/// The error of a move that never finds the pool as it needs it.
fn busy() -> Error {
    let reason = "other threads allocate and free blocks all the time; stop them and try again";
    Error::new(OPERATION, Detail::Unsupported { reason: reason.to_owned() })
}

impl<B: Backend> Inner<B> {
    /// Waits until no thread moves a tag.
    pub(crate) fn wait_for_move(&self, operation: Operation, tag: &Tag) -> Result<()> {
        self.core_when(operation, |_| tag.state() != TagState::Moving).map(drop)
    }
}
