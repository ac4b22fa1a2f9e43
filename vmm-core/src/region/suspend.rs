//! Suspend and resume: a region releases its memory and keeps its addresses.
//!
//! Each piece of memory is saved and restored once, however often it is mapped. Its contents are copied through one of its
//! mappings. If the owner of the memory lacks the access for that, it receives the access for the copy.

use super::layout::Layout;
use super::suspension::{Missing, Replacement, Suspension, total};
use super::table::PlacedMapping;
use super::{BackingEffect, Region};
use crate::driver::{Backend, WaitFor};
use crate::memory::{BackingKind, BackingStore, Batch, PhysicalMemory, SavedContents, Segment};
use crate::trace::span;
use crate::types::{Access, Bytes, Detail, Error, Operation, Result};

/// The size of memory that a resume maps before the copies into it begin; the next group is mapped meanwhile.
const GROUP: Bytes = Bytes::mib(64);

/// The result of suspending a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspended {
    /// The size of the memory that the region lacks now: each piece once, however often it was mapped.
    pub memory: Bytes,
    /// The size of the contents that stores hold: all of the region's own or none, and those of the shared memory that was saved.
    pub kept: Bytes,
    /// The size of the memory that stayed because others use it: zero except after [`Region::suspend_into`].
    pub shared: Bytes,
    /// True if the region was suspended already. The call then saved shared memory at most.
    pub already: bool,
}

impl Suspended {
    fn of<B: Backend>(suspension: &Suspension<B>, already: bool) -> Self {
        let (missing, own) = (total(&suspension.before.missing), suspension.own_contents());
        let saved = suspension.saved();
        Self { memory: missing + saved, kept: own + saved, shared: suspension.shared() - saved, already }
    }
}

/// The result of resuming a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The size of the memory that the region has received.
    pub memory: Bytes,
    /// The size of the contents that were restored: all of the region's own or none, and those of shared memory that no other region
    /// had restored before.
    pub contents: Bytes,
    /// True if the region was not suspended and the call did nothing.
    pub already: bool,
}

/// The state of a region: active or suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionState {
    /// The region has its memory and can be used.
    Active,
    /// The region has only its addresses until [`Region::resume`].
    Suspended {
        /// The size of the memory that the region lacks: what [`resume_from`](Region::resume_from) takes or creates.
        memory: Bytes,
        /// The kind of the store that holds its contents.
        store: BackingKind,
    },
}

impl<B: Backend> Region<B> {
    /// Releases the region's memory to its devices and keeps the addresses.
    ///
    /// The store receives the contents. [`Region::resume`] restores them: memory with the same properties on the same devices, at
    /// the same addresses, with the same access. Memory that is mapped several times is one piece again. CUDA: `cuMemUnmap`,
    /// `cuMemRelease`; HIP: `hipMemUnmap`, `hipMemRelease`.
    ///
    /// The call first waits as `done` says. Until the resume, [mappings](Region::mappings), [mapped](Region::mapped) and
    /// [end](Region::end) report an empty region, and every operation except resuming, closing and dropping returns
    /// [`Detail::Suspended`]. A suspended region stays as it is, whatever the store.
    ///
    /// # Errors
    ///
    /// [`Detail::StillReferenced`] if some of the memory was exported or imported, or if a clone or another region holds it;
    /// [`Detail::Poisoned`]; [`Detail::BackingStoreFull`], [`Detail::File`] or the system's error if the store has no room for
    /// the contents; [`Detail::ForeignHandle`] for a store of another backend; the error of waiting or of the driver. The region
    /// is then as before, and the room in the store is released.
    ///
    /// [`Detail::AddressesLost`] is the exception. Some drivers release memory only together with the addresses (HIP 7.1 and
    /// 7.2). gpu-vmm reserves the addresses again at once; with this error, another reservation has taken them first. The region
    /// is suspended and its contents are kept. It can be resumed when the addresses are free.
    pub fn suspend(&mut self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.suspend_as(store, done, None)
    }

    /// Suspends the region as [`Region::suspend`] does, and appends its memory to `list`.
    ///
    /// The list receives the pieces that only the region held, which [`grow_with`](Region::grow_with) and
    /// [`resume_from`](Region::resume_from) of any region can use next. The pieces keep their bytes, also the pieces of a
    /// [guarded](crate::RegionBuilder::guarded) region.
    ///
    /// Memory that others use (another region, a clone, another process) stays as it is: its contents are not saved, the suspended
    /// region keeps it alive, and the resume maps the same memory again. [`Suspended::shared`] is its size. Once suspended regions
    /// alone hold such a piece, it is saved as well and goes to the list: when the last of the regions that use it is suspended by
    /// this call, or when this call is made again for a suspended region after the others have let go of it. The first region that
    /// resumes restores it for all. [`BackingStore::nothing`] saves no shared memory.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`] except [`Detail::StillReferenced`]. If shared memory cannot be saved, for instance because the
    /// store is full, the region [is suspended](Region::state), its own memory is in the list, and the shared memory stays: call this
    /// again, with another store, to save that too. After [`Detail::AddressesLost`] the memory is in the list as well; after any other
    /// error the region is as before and the list unchanged.
    pub fn suspend_into(
        &mut self,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
        list: &mut Vec<PhysicalMemory<B>>,
    ) -> Result<Suspended> {
        self.suspend_as(store, done, Some(list))
    }

    /// Suspends the region. With `list`, the memory moves there, and memory with other holders stays. Without `list`, the memory
    /// is released, and memory with other holders is refused.
    fn suspend_as(
        &mut self,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
        list: Option<&mut Vec<PhysicalMemory<B>>>,
    ) -> Result<Suspended> {
        let operation = Operation::Suspend;
        if let Some(suspended) = &self.suspended {
            if let Some(list) = list {
                suspended.save_unused(&self.backend, store, list)?;
            }
            return Ok(Suspended::of(suspended, true));
        }
        self.check_usable(operation)?;
        let before = self.layout.table.survey(operation, list.is_some())?;
        span!(Suspend, address = %self.address(), bytes = self.mapped().0, tag = &*self.tag);
        let missing = &before.missing;
        let kept = store.room(operation, &self.backend, total(missing))?;
        let announced = self.announce(operation, BackingEffect::Removed, || self.layout.parts())?;
        let waited = self.wait(&self.layout, Bytes::ZERO, self.reserved(), done);
        let (gone, lost) = match waited.and_then(|()| self.empty_into(&kept, missing)) {
            Ok(emptied) => emptied,
            Err(error) => return announced.end(&self.layout, Err(error)),
        };
        let suspension = Suspension { before, kept };
        let mut saved = Ok(());
        if let Some(list) = list {
            let is_own = |piece: &PlacedMapping<B>| {
                let homes = &suspension.before.missing;
                homes.binary_search_by_key(&piece.offset, |one| one.home).is_ok()
            };
            let (own, shared): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_own);
            list.extend(own.into_iter().map(|piece| piece.mapping.memory));
            drop(shared);
            saved = suspension.save_unused(&self.backend, store, list);
        } else {
            // The memory returns to its device when its last mapping and its last clone are dropped.
            drop(gone);
        }
        let did = Suspended::of(&suspension, false);
        self.suspended = Some(Box::new(suspension));
        self.layout.record().set_suspended(true);
        // Also if addresses were lost: the memory is gone.
        announced.end(&self.layout, Ok(()))?;
        match lost {
            None => saved.map(|()| did),
            Some(source) => Err(Error::new(
                operation,
                Detail::AddressesLost { address: self.address(), reserved: self.reserved(), source },
            )),
        }
    }

    /// Gives a suspended region memory again, maps it as before, and restores the contents.
    ///
    /// The contents are copied while further memory is being mapped. CUDA: `cuMemCreate`, `cuMemMap`, `cuMemSetAccess`; HIP:
    /// `hipMemCreate`, `hipMemMap`, `hipMemSetAccess`.
    ///
    /// A region that is not suspended stays as it is.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if the region's addresses [were lost](Detail::AddressesLost) and are not free;
    /// [`Detail::OutOfMemory`]; [`Detail::File`]; the driver's error. The region is then still suspended, nothing is mapped, and
    /// the contents are still in the store, so the call can be repeated. If the rollback failed too ([`Detail::RollbackFailed`])
    /// and something could not be unmapped, that part is poisoned, and the region can never be resumed ([`Detail::Poisoned`]).
    pub fn resume(&mut self) -> Result<Resumed> {
        self.resume_from(&mut Vec::new())
    }

    /// Resumes the region as [`Region::resume`] does, with memory from `list`.
    ///
    /// It takes pieces that have the size and the properties of a missing piece and no other holder out of the list, and creates
    /// the rest. Without saved contents ([`BackingStore::nothing`]), the region has the bytes of those pieces.
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]. The pieces are then in the list again, except those that could not be unmapped, and shared memory
    /// whose contents were restored: [`suspend_into`](Region::suspend_into) saves that again.
    pub fn resume_from(&mut self, list: &mut Vec<PhysicalMemory<B>>) -> Result<Resumed> {
        let operation = Operation::Resume;
        let Some(suspended) = &self.suspended else {
            return Ok(Resumed { memory: Bytes::ZERO, contents: Bytes::ZERO, already: true });
        };
        // The failed rollback of an earlier resume can have left mappings.
        self.layout.check_in_use(operation)?;
        span!(Resume, address = %self.address(), bytes = suspended.memory().0, tag = &*self.tag);
        let announced = self.announce(operation, BackingEffect::Restored, || suspended.parts())?;
        let restored = self.restore(list);
        announced.end(&self.layout, restored)
    }

    /// Resumes a suspended region, or changes nothing.
    fn restore(&mut self, list: &mut Vec<PhysicalMemory<B>>) -> Result<Resumed> {
        let Some(suspended) = &self.suspended else {
            return Ok(Resumed { memory: Bytes::ZERO, contents: Bytes::ZERO, already: true });
        };
        self.layout.regain()?;
        let mut obtained = suspended.obtain(&self.backend, list)?;
        let (shared, restored) = match suspended.shared_memory(&self.backend, &mut obtained) {
            Ok(shared) => shared,
            Err(error) => {
                list.extend(obtained.taken());
                return Err(error);
            }
        };
        let mut pieces = suspended.pieces(&obtained, &shared);
        drop(shared);
        let (placed, filled) = fill(&mut self.layout, &self.backend, suspended, &mut pieces);
        if let Err(error) = filled {
            let error = self.layout.take_away(error, &pieces[..placed]);
            drop(pieces);
            // A piece that could not be unmapped is not free.
            let is_free = |memory: &PhysicalMemory<B>| {
                self.layout.table.iter().all(|(_, mapping)| !mapping.memory.is_same_as(memory))
            };
            list.extend(obtained.taken().filter(is_free));
            return Err(error);
        }
        let (memory, contents) = (total(&suspended.before.missing), suspended.own_contents());
        self.suspended = None;
        self.layout.record().set_suspended(false);
        // Another region can have restored a shared piece meanwhile.
        list.extend(obtained.for_shared.into_iter().filter_map(Replacement::taken));
        Ok(Resumed { memory: memory + restored, contents: contents + restored, already: false })
    }

    /// Returns the state of the region, and of a suspended region the size of its memory and the kind of its store.
    #[must_use]
    pub fn state(&self) -> RegionState {
        match &self.suspended {
            None => RegionState::Active,
            Some(suspended) => {
                RegionState::Suspended { memory: suspended.memory(), store: suspended.kept.kind() }
            }
        }
    }

    /// Refuses a region that is suspended.
    pub(crate) fn check_active(&self, operation: Operation) -> Result<()> {
        match self.suspended {
            None => Ok(()),
            Some(_) => {
                let (address, reserved) = (self.address(), self.reserved());
                Err(Error::new(operation, Detail::Suspended { address, reserved }))
            }
        }
    }

    /// Saves the contents and removes all mappings, or changes nothing.
    fn empty_into(
        &mut self,
        kept: &SavedContents<B>,
        missing: &[Missing],
    ) -> Result<(Vec<PlacedMapping<B>>, Option<Error>)> {
        if kept.is_nothing() {
            return self.layout.evict();
        }
        let mut opened = Vec::new();
        let result = missing
            .iter()
            .filter(|one| one.own() == Access::None)
            .try_for_each(|one| {
                self.layout.set_access(one.part(), one.properties.device, Access::Read)?;
                opened.push(*one);
                Ok(())
            })
            .and_then(|()| kept.fetch(&self.backend, &segments(&self.layout, missing)))
            .and_then(|()| self.layout.evict());
        result.map_err(|error| self.close_again(error, &opened))
    }

    /// Removes the access again that owners received for the copy, if the mapping still exists.
    fn close_again(&mut self, error: Error, opened: &[Missing]) -> Error {
        opened.iter().fold(error, |error, one| {
            if self.layout.table.check_whole(Operation::Suspend, one.home, one.size).is_err() {
                return error;
            }
            match self.layout.set_access(one.part(), one.properties.device, Access::None) {
                Ok(()) => error,
                Err(undo) => self.layout.put_out_of_use(error, undo, [one.part()]),
            }
        })
    }
}

/// The missing pieces as segments of the stream of contents, each at its home.
fn segments<B: Backend>(layout: &Layout<B>, missing: &[Missing]) -> Vec<Segment> {
    let base = layout.spans.base();
    let mut segments: Vec<Segment> = Vec::new();
    let mut last_span = None;
    for one in missing {
        let span = layout.spans.first_cut(one.home, one.size).map(|cut| cut.span);
        let (address, device) = (base + one.home, one.properties.device);
        match segments.last_mut() {
            Some(last)
                if last_span == span && last.device == device && last.address + last.length == address =>
            {
                last.length += one.size;
            }
            _ => segments.push(Segment { address, length: one.size, device }),
        }
        last_span = span;
    }
    segments
}

/// Maps everything and restores the contents. Returns the number of pieces that are mapped, with no copy running in them, and the
/// result.
fn fill<B: Backend>(
    layout: &mut Layout<B>,
    backend: &B,
    suspended: &Suspension<B>,
    pieces: &mut [PlacedMapping<B>],
) -> (usize, Result<()>) {
    let (real, most) = match suspended.kept.is_nothing() {
        // One call sets the access of all mappings if it is the same for all.
        true => (Vec::new(), Bytes(u64::MAX)),
        false => (suspended.open(pieces), GROUP),
    };
    let mut placed = 0;
    let mut missing = suspended.before.missing.as_slice();
    let batches = std::iter::from_fn(|| {
        let group = first_group(&pieces[placed..], most);
        if group.is_empty() {
            return None;
        }
        Some(layout.place(group).map(|()| {
            placed += group.len();
            let next = pieces.get(placed).map_or(Bytes(u64::MAX), |piece| piece.offset);
            let (now, later) = missing.split_at(missing.partition_point(|one| one.home < next));
            missing = later;
            let from = now.first().map_or(Bytes::ZERO, |one| one.from);
            Batch { from, segments: segments(layout, now) }
        }))
    });
    let sent = suspended.kept.send(backend, batches);
    (placed, sent.and_then(|()| layout.lower(&real)))
}

/// The first pieces with a total size of at least `most`, or all pieces.
fn first_group<B: Backend>(pieces: &[PlacedMapping<B>], most: Bytes) -> &[PlacedMapping<B>] {
    let mut together = Bytes::ZERO;
    let count = pieces.iter().position(|piece| {
        together += piece.mapping.length();
        together >= most
    });
    &pieces[..count.map_or(pieces.len(), |last| last + 1)]
}
