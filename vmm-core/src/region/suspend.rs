//! Suspend and resume: a region without memory that keeps its addresses.
//!
//! Each piece of memory goes and comes once, however often it is mapped. Contents are copied through one of its mappings,
//! whose owner is given the access for that where it has not.

use super::Region;
use super::layout::Layout;
use super::table::{Mapping, Piece};
use crate::driver::{Backend, WaitFor};
use crate::memory::{BackingKind, BackingStore, Batch, MemoryId, PhysicalMemory, SavedContents, Segment};
use crate::types::{Access, AccessMap, Bytes, Detail, Error, OffsetRange, Operation, Properties, Result};
use std::collections::HashMap;

/// As much as is mapped, at least, before the copies of it begin; the next is mapped meanwhile.
const GROUP: Bytes = Bytes::mib(64);

/// What suspending did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspended {
    /// How much memory the region is without: each piece once, though it be mapped several times.
    pub memory: Bytes,
    /// How much of its contents the store keeps: all or nothing.
    pub kept: Bytes,
    /// True where it was suspended already, so that nothing was done.
    pub already: bool,
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

/// What a suspended region needs in order to come back.
#[derive(Debug)]
pub(super) struct Suspension<B: Backend> {
    missing: Vec<Missing>,
    mappings: Vec<Absent>,
    kept: SavedContents<B>,
}

/// A piece of memory that there was.
#[derive(Clone, Copy, Debug)]
struct Missing {
    size: Bytes,
    properties: Properties,
    /// The offset of the mapping through which it is copied.
    home: Bytes,
    /// What could be done there.
    access: AccessMap,
    /// Where its contents begin in the stream of all.
    from: Bytes,
}

impl Missing {
    fn part(&self) -> OffsetRange {
        OffsetRange { offset: self.home, length: self.size }
    }

    /// What the owner may do at home.
    fn own(&self) -> Access {
        self.access.get(self.properties.device)
    }
}

/// A mapping that there was.
#[derive(Clone, Copy, Debug)]
struct Absent {
    offset: Bytes,
    /// Which of the pieces.
    memory: usize,
    access: AccessMap,
}

impl<B: Backend> Suspension<B> {
    fn memory(&self) -> Bytes {
        total(&self.missing)
    }

    fn contents(&self) -> Bytes {
        if self.kept.is_nothing() { Bytes::ZERO } else { self.memory() }
    }

    /// All memory anew, before anything is mapped: there is enough, or nothing has happened.
    fn create(&self, backend: &B) -> Result<Vec<PhysicalMemory<B>>> {
        self.missing.iter().map(|one| PhysicalMemory::create(backend, one.size, one.properties)).collect()
    }

    /// The mappings as they were.
    fn pieces(&self, memory: &[PhysicalMemory<B>]) -> Vec<Piece<B>> {
        let piece = |one: &Absent| Piece {
            offset: one.offset,
            mapping: Mapping::new(memory[one.memory].clone(), one.access),
        };
        self.mappings.iter().map(piece).collect()
    }

    /// Lets every piece's owner write where its contents are copied to, and gives what the mappings changed for that are
    /// to be in the end.
    fn open(&self, pieces: &mut [Piece<B>]) -> Vec<Piece<B>> {
        let closed = self.missing.iter().filter(|one| one.own() != Access::ReadWrite);
        let mut real = Vec::new();
        for one in closed {
            if let Ok(at) = pieces.binary_search_by_key(&one.home, |piece| piece.offset) {
                real.push(pieces[at].clone());
                let mapping = &mut pieces[at].mapping;
                mapping.access = mapping.access.with(one.properties.device, Access::ReadWrite);
            }
        }
        real
    }
}

fn total(missing: &[Missing]) -> Bytes {
    missing.iter().map(|one| one.size).sum()
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
        let operation = Operation::Suspend;
        if let Some(suspended) = &self.suspended {
            let (memory, kept) = (suspended.memory(), suspended.contents());
            return Ok(Suspended { memory, kept, already: true });
        }
        self.check_usable(operation)?;
        let (missing, mappings) = self.survey(operation)?;
        let kept = store.room(operation, &self.backend, total(&missing))?;
        self.wait(&self.layout, Bytes::ZERO, self.reserved(), done)?;
        let (gone, lost) = self.empty_into(&kept, &missing)?;
        // With the last mapping, and the last that holds it, the memory goes back.
        drop(gone);
        let suspension = Suspension { missing, mappings, kept };
        let did = Suspended { memory: suspension.memory(), kept: suspension.contents(), already: false };
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
        let operation = Operation::Resume;
        let Some(suspended) = &self.suspended else {
            return Ok(Resumed { memory: Bytes::ZERO, contents: Bytes::ZERO, already: true });
        };
        // What undoing has left of an earlier one.
        self.layout.check_in_use(operation)?;
        self.layout.regain()?;
        let memory = suspended.create(&self.backend)?;
        let mut pieces = suspended.pieces(&memory);
        let did = Resumed { memory: suspended.memory(), contents: suspended.contents(), already: false };
        let (placed, filled) = fill(&mut self.layout, &self.backend, suspended, &mut pieces);
        if let Err(error) = filled {
            return Err(self.layout.take_away(error, &pieces[..placed]));
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

    /// What there is, in order of the offsets, if nobody else has any of it.
    fn survey(&self, operation: Operation) -> Result<(Vec<Missing>, Vec<Absent>)> {
        self.layout.table.check_not_held(operation, |_| true)?;
        let mut pieces: HashMap<MemoryId<B>, Missing> = HashMap::new();
        for (offset, mapping) in self.layout.table.iter() {
            let memory = &mapping.memory;
            let (size, properties) = (memory.size(), memory.properties());
            let here = Missing { size, properties, home: offset, access: mapping.access, from: Bytes::ZERO };
            let home = pieces.entry(memory.id()).or_insert(here);
            if here.own() > home.own() {
                *home = here;
            }
        }
        let mut missing: Vec<(MemoryId<B>, Missing)> = pieces.into_iter().collect();
        missing.sort_unstable_by_key(|(_, one)| one.home);
        let mut from = Bytes::ZERO;
        for (_, one) in &mut missing {
            one.from = from;
            from += one.size;
        }
        let places: HashMap<&MemoryId<B>, usize> = missing.iter().map(|(id, _)| id).zip(0..).collect();
        let mappings = self.layout.table.iter().filter_map(|(offset, mapping)| {
            let memory = *places.get(&mapping.memory.id())?;
            Some(Absent { offset, memory, access: mapping.access })
        });
        Ok((missing.iter().map(|(_, one)| *one).collect(), mappings.collect()))
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
    let mut missing = suspended.missing.as_slice();
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
