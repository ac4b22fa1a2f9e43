//! Suspend and resume: a region without memory that keeps its addresses.
//!
//! Each piece of memory goes and comes once, however often it is mapped. Contents are copied through one of its mappings,
//! whose owner is given the access for that where it has not.

use super::Region;
use super::layout::Layout;
use super::suspension::{Missing, Suspension, total};
use super::table::Piece;
use crate::driver::{Backend, WaitFor};
use crate::memory::{BackingKind, BackingStore, Batch, PhysicalMemory, SavedContents, Segment};
use crate::types::{Access, Bytes, Detail, Error, Operation, Result};

/// As much as is mapped, at least, before the copies of it begin; the next is mapped meanwhile.
const GROUP: Bytes = Bytes::mib(64);

/// What suspending did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspended {
    /// How much memory the region is without: each piece once, though it be mapped several times.
    pub memory: Bytes,
    /// How much of its contents the store keeps: all or nothing.
    pub kept: Bytes,
    /// How much memory stayed, since it is also held elsewhere: zero but after [`Region::suspend_into`].
    pub shared: Bytes,
    /// True where it was suspended already, so that nothing was done.
    pub already: bool,
}

impl Suspended {
    fn of<B: Backend>(suspension: &Suspension<B>, already: bool) -> Self {
        let shared = suspension.before.shared.iter().map(PhysicalMemory::size).sum();
        Self { memory: suspension.memory(), kept: suspension.contents(), shared, already }
    }
}

/// What resuming did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// How much memory the region has got.
    pub memory: Bytes,
    /// How much of it has its contents back: all or nothing.
    pub contents: Bytes,
    /// True where it was not suspended, so that nothing was done.
    pub already: bool,
}

/// Whether a region has its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionState {
    /// It can be used.
    Active,
    /// It has its addresses and nothing else until [`Region::resume`].
    Suspended {
        /// How much memory it is without.
        memory: Bytes,
        /// Where its contents are.
        store: BackingKind,
    },
}

impl<B: Backend> Region<B> {
    /// Gives the region's memory back to its devices and keeps the addresses. What is in it goes to the store, and
    /// [`Region::resume`] brings all of it back: memory of the same kinds on the same devices, at the same addresses, with
    /// the same access, and what is mapped several times is again one piece. CUDA: `cuMemUnmap`, `cuMemRelease`; HIP:
    /// `hipMemUnmap`, `hipMemRelease`.
    ///
    /// It waits as `done` says first. Until the resume, [mappings](Region::mappings), [mapped](Region::mapped) and
    /// [end](Region::end) are those of a region in which nothing is mapped, and every operation but resuming, closing and
    /// dropping is refused ([`Detail::Suspended`]). A region that is suspended already is left as it is, whatever the
    /// store.
    ///
    /// # Errors
    ///
    /// [`Detail::StillReferenced`] where some of the memory is exported, imported, or held by somebody else in this process;
    /// [`Detail::Poisoned`]; [`Detail::BackingStoreFull`], [`Detail::File`] or what the system answers where there is no room for
    /// the contents; [`Detail::ForeignHandle`] for a store of another backend; what waiting or the driver answers. The
    /// region is as before then, and the room is given back.
    ///
    /// But for [`Detail::AddressesLost`]: some drivers give memory back with the addresses alone (HIP 7.1 and 7.2), which are
    /// reserved again at once, and somebody else was faster. The region is suspended then, and its contents are kept; it
    /// can be resumed when the addresses are free.
    pub fn suspend(&mut self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.suspend_as(store, done, None)
    }

    /// Suspends the region as [`Region::suspend`] does, and appends its memory to `list`: the pieces that the region alone
    /// held, which [`grow_with`](Region::grow_with) and [`resume_from`](Region::resume_from) of any region can use next. They
    /// keep the bytes that they had, also those of a [guarded](crate::RegionBuilder::guarded) region.
    ///
    /// Memory that is held elsewhere too (by another region, by a clone, by another process) stays as it is: its contents
    /// are not saved, the suspended region keeps it alive, and the resume maps the same memory again.
    /// [`Suspended::shared`] is its size.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`] but [`Detail::StillReferenced`]. After [`Detail::AddressesLost`] the memory is in the
    /// list; after any other error the list is unchanged.
    pub fn suspend_into(
        &mut self,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
        list: &mut Vec<PhysicalMemory<B>>,
    ) -> Result<Suspended> {
        self.suspend_as(store, done, Some(list))
    }

    /// Suspends the region. The memory goes to `list`, and memory that is shared stays; or, without `list`, the memory is
    /// released, and memory that is shared is refused.
    fn suspend_as(
        &mut self,
        store: &BackingStore<B>,
        done: WaitFor<'_>,
        list: Option<&mut Vec<PhysicalMemory<B>>>,
    ) -> Result<Suspended> {
        let operation = Operation::Suspend;
        if let Some(suspended) = &self.suspended {
            return Ok(Suspended::of(suspended, true));
        }
        self.check_usable(operation)?;
        let before = self.layout.table.survey(operation, list.is_some())?;
        let missing = &before.missing;
        let kept = store.room(operation, &self.backend, total(missing))?;
        self.wait(&self.layout, Bytes::ZERO, self.reserved(), done)?;
        let (gone, lost) = self.empty_into(&kept, missing)?;
        if let Some(list) = list {
            let is_own =
                |piece: &Piece<B>| missing.binary_search_by_key(&piece.offset, |one| one.home).is_ok();
            list.extend(gone.into_iter().filter(is_own).map(|piece| piece.mapping.memory));
        } else {
            // With the last mapping, and the last that holds it, the memory goes back.
            drop(gone);
        }
        let suspension = Suspension { before, kept };
        let did = Suspended::of(&suspension, false);
        self.suspended = Some(Box::new(suspension));
        match lost {
            None => Ok(did),
            Some(source) => Err(Error::new(
                operation,
                Detail::AddressesLost { address: self.address(), reserved: self.reserved(), source },
            )),
        }
    }

    /// Gives a suspended region memory again, maps it as it was, and brings the contents back. The contents are copied
    /// while further memory is being mapped. CUDA: `cuMemCreate`, `cuMemMap`, `cuMemSetAccess`; HIP: `hipMemCreate`,
    /// `hipMemMap`, `hipMemSetAccess`.
    ///
    /// A region that is not suspended is left as it is.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] where its addresses [were lost](Detail::AddressesLost) and are not free;
    /// [`Detail::OutOfMemory`]; [`Detail::File`]; what the driver answers. The region is still suspended then, nothing is
    /// mapped, and the contents are still in the store: it can be tried again. Where undoing failed too
    /// ([`Detail::RollbackFailed`]) and something could not be unmapped, that part is out of use, and the region cannot be
    /// resumed any more ([`Detail::Poisoned`]).
    pub fn resume(&mut self) -> Result<Resumed> {
        self.resume_from(&mut Vec::new())
    }

    /// Resumes the region as [`Region::resume`] does, with pieces of `list` that have the size and the properties of a
    /// missing piece and that nothing else holds. They are taken out of the list; the rest is created. Without saved
    /// contents ([`BackingStore::nothing`]), the region has the bytes that those pieces had.
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]. The pieces are in the list again then, except those that could not be unmapped.
    pub fn resume_from(&mut self, list: &mut Vec<PhysicalMemory<B>>) -> Result<Resumed> {
        let operation = Operation::Resume;
        let Some(suspended) = &self.suspended else {
            return Ok(Resumed { memory: Bytes::ZERO, contents: Bytes::ZERO, already: true });
        };
        // What undoing has left of an earlier one.
        self.layout.check_in_use(operation)?;
        self.layout.regain()?;
        let obtained = suspended.obtain(&self.backend, list)?;
        let mut pieces = suspended.pieces(&obtained);
        let did = Resumed { memory: suspended.memory(), contents: suspended.contents(), already: false };
        let (placed, filled) = fill(&mut self.layout, &self.backend, suspended, &mut pieces);
        if let Err(error) = filled {
            let error = self.layout.take_away(error, &pieces[..placed]);
            drop(pieces);
            // What could not be unmapped is not free.
            let is_free = |memory: &PhysicalMemory<B>| {
                self.layout.table.iter().all(|(_, mapping)| !mapping.memory.is_same_as(memory))
            };
            list.extend(obtained.taken().filter(is_free));
            return Err(error);
        }
        self.suspended = None;
        Ok(did)
    }

    /// Whether the region has its memory, or is suspended, and where its contents are then.
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

    /// Copies the contents and takes everything away, or nothing.
    fn empty_into(
        &mut self,
        kept: &SavedContents<B>,
        missing: &[Missing],
    ) -> Result<(Vec<Piece<B>>, Option<Error>)> {
        if kept.is_nothing() {
            return self.layout.vacate();
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
            .and_then(|()| self.layout.vacate());
        result.map_err(|error| self.close_again(error, &opened))
    }

    /// Takes the access away again that owners were given for the copy, where it can be.
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

/// Pieces of memory as segments of their one stream, at their homes.
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

/// Maps everything and brings the contents back. Tells how many pieces are mapped, in which no copy is going on any more,
/// and whether it was done.
fn fill<B: Backend>(
    layout: &mut Layout<B>,
    backend: &B,
    suspended: &Suspension<B>,
    pieces: &mut [Piece<B>],
) -> (usize, Result<()>) {
    let (real, most) = match suspended.kept.is_nothing() {
        // One call for all access, where it is all the same.
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

/// So many of the first pieces that they are this much together, or all.
fn first_group<B: Backend>(pieces: &[Piece<B>], most: Bytes) -> &[Piece<B>] {
    let mut together = Bytes::ZERO;
    let count = pieces.iter().position(|piece| {
        together += piece.mapping.length();
        together >= most
    });
    &pieces[..count.map_or(pieces.len(), |last| last + 1)]
}
