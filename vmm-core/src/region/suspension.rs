//! The data of a suspended region: its released memory, the memory that stayed, and the mappings.

use super::sharing::{holder, still_referenced};
use super::table::{Mapping, PlacedMapping, Table};
use crate::driver::Backend;
use crate::memory::{CommonMemory, MemoryId, PhysicalMemory, SavedContents};
use crate::types::{Access, AccessMap, Bytes, OffsetRange, Operation, Properties, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The data that a suspended region needs to resume.
#[derive(Debug)]
pub(super) struct Suspension<B: Backend> {
    pub(super) before: Survey<B>,
    pub(super) kept: SavedContents<B>,
}

/// The memory and the mappings of a region before it is suspended.
#[derive(Debug)]
pub(super) struct Survey<B: Backend> {
    /// Memory that only the region held, in order of the homes.
    pub(super) missing: Vec<Missing>,
    /// Memory with other holders, which the resume maps again.
    pub(super) shared: Vec<Arc<CommonMemory<B>>>,
    mappings: Vec<SavedMapping>,
}

/// A piece of memory that was released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) size: Bytes,
    pub(super) properties: Properties,
    /// The offset of the mapping through which it is copied.
    pub(super) home: Bytes,
    /// The access of the mapping at the home.
    access: AccessMap,
    /// The offset of its contents in the stream of all contents.
    pub(super) from: Bytes,
}

impl Missing {
    pub(super) fn part(&self) -> OffsetRange {
        OffsetRange { offset: self.home, length: self.size }
    }

    /// The owner's access at the home.
    pub(super) fn own(&self) -> Access {
        self.access.get(self.properties.device)
    }
}

/// A mapping that the resume creates again.
#[derive(Clone, Copy, Debug)]
struct SavedMapping {
    offset: Bytes,
    /// The number of its piece, counting first the missing pieces and then the shared ones.
    memory: usize,
    access: AccessMap,
}

/// The memory that replaces the missing pieces.
pub(super) struct Obtained<B: Backend> {
    /// In the order of the missing pieces.
    own: Vec<Replacement<B>>,
    /// For the shared pieces that were saved.
    pub(super) for_shared: Vec<Replacement<B>>,
}

impl<B: Backend> Obtained<B> {
    /// The pieces of the caller, except those that contain shared memory now.
    pub(super) fn taken(self) -> impl Iterator<Item = PhysicalMemory<B>> {
        self.own.into_iter().chain(self.for_shared).filter_map(Replacement::taken)
    }
}

/// A piece of memory that replaces another one.
pub(super) struct Replacement<B: Backend> {
    pub(super) memory: PhysicalMemory<B>,
    /// True if the memory came from the caller's list.
    is_taken: bool,
}

impl<B: Backend> Replacement<B> {
    /// Takes a piece that nothing else holds out of a list, if one has this size and these properties, or creates one.
    pub(super) fn obtain(
        list: &mut Vec<PhysicalMemory<B>>,
        backend: &B,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let fits = |memory: &PhysicalMemory<B>| {
            memory.size() == size
                && memory.properties() == properties
                && memory.check_belongs_to(Operation::Resume, backend).is_ok()
                && holder(Operation::Resume, memory, 1).is_none()
        };
        match list.iter().rposition(fits) {
            Some(at) => Ok(Self { memory: list.swap_remove(at), is_taken: true }),
            None => PhysicalMemory::create(backend, size, properties).map(Self::created),
        }
    }

    pub(super) const fn created(memory: PhysicalMemory<B>) -> Self {
        Self { memory, is_taken: false }
    }

    /// Returns the memory if it came from the caller's list.
    pub(super) fn taken(self) -> Option<PhysicalMemory<B>> {
        self.is_taken.then_some(self.memory)
    }
}

impl<B: Backend> Suspension<B> {
    /// The size of the memory that the region lacks.
    pub(super) fn memory(&self) -> Bytes {
        total(&self.before.missing) + self.saved()
    }

    /// The size of the region's own contents in the store.
    pub(super) fn own_contents(&self) -> Bytes {
        if self.kept.is_nothing() { Bytes::ZERO } else { total(&self.before.missing) }
    }

    /// The size of the shared memory that was saved. Another thread can change it at any time.
    pub(super) fn saved(&self) -> Bytes {
        self.before.shared.iter().filter(|piece| piece.is_saved()).map(|piece| piece.size()).sum()
    }

    /// The size of the shared memory, saved or not.
    pub(super) fn shared(&self) -> Bytes {
        self.before.shared.iter().map(|piece| piece.size()).sum()
    }

    /// The ranges that the resume maps.
    pub(super) fn parts(&self) -> Vec<OffsetRange> {
        let sizes = self.before.missing.iter().map(|one| one.size);
        let sizes: Vec<Bytes> = sizes.chain(self.before.shared.iter().map(|piece| piece.size())).collect();
        let part = |one: &SavedMapping| OffsetRange { offset: one.offset, length: sizes[one.memory] };
        OffsetRange::joined(self.before.mappings.iter().map(part))
    }

    /// Takes fitting pieces without other holders out of `list` and creates the rest. Maps nothing. After an error the list has
    /// all its pieces again.
    pub(super) fn obtain(&self, backend: &B, list: &mut Vec<PhysicalMemory<B>>) -> Result<Obtained<B>> {
        let mut obtained = Obtained { own: Vec::new(), for_shared: Vec::new() };
        let got = self.obtain_into(backend, list, &mut obtained);
        if let Err(error) = got {
            list.extend(obtained.taken());
            return Err(error);
        }
        Ok(obtained)
    }

    fn obtain_into(
        &self,
        backend: &B,
        list: &mut Vec<PhysicalMemory<B>>,
        obtained: &mut Obtained<B>,
    ) -> Result<()> {
        for one in &self.before.missing {
            obtained.own.push(Replacement::obtain(list, backend, one.size, one.properties)?);
        }
        for piece in self.before.shared.iter().filter(|piece| piece.is_saved()) {
            obtained.for_shared.push(Replacement::obtain(list, backend, piece.size(), piece.properties())?);
        }
        Ok(())
    }

    /// The mappings before the suspend.
    pub(super) fn pieces(
        &self,
        obtained: &Obtained<B>,
        shared: &[PhysicalMemory<B>],
    ) -> Vec<PlacedMapping<B>> {
        let own = obtained.own.iter().map(|one| &one.memory);
        let memory: Vec<&PhysicalMemory<B>> = own.chain(shared).collect();
        let piece = |one: &SavedMapping| PlacedMapping {
            offset: one.offset,
            mapping: Mapping::new(memory[one.memory].clone(), one.access),
        };
        self.before.mappings.iter().map(piece).collect()
    }

    /// Gives every piece the access at its home that the copy of the contents needs. Returns the changed pieces with the access that
    /// they must have in the end.
    pub(super) fn open(&self, pieces: &mut [PlacedMapping<B>]) -> Vec<PlacedMapping<B>> {
        let needs_more = |one: &&Missing| one.access != one.properties.access_for_copies(one.access);
        let mut real = Vec::new();
        for one in self.before.missing.iter().filter(needs_more) {
            if let Ok(at) = pieces.binary_search_by_key(&one.home, |piece| piece.offset) {
                real.push(pieces[at].clone());
                let mapping = &mut pieces[at].mapping;
                mapping.access = one.properties.access_for_copies(mapping.access);
            }
        }
        real
    }
}

pub(super) fn total(missing: &[Missing]) -> Bytes {
    missing.iter().map(|one| one.size).sum()
}

impl<B: Backend> Table<B> {
    /// Records the mappings, in order of their offsets, and the memory behind them. Refuses memory with other holders, unless
    /// that may stay.
    pub(super) fn survey(&self, operation: Operation, shared_may_stay: bool) -> Result<Survey<B>> {
        let mut shared: Vec<Arc<CommonMemory<B>>> = Vec::new();
        let mut places: HashMap<MemoryId, usize> = HashMap::new();
        for (offset, mapping, holder) in self.shared(operation, |_| true) {
            if !shared_may_stay {
                return Err(still_referenced(operation, offset, mapping, holder));
            }
            if let Entry::Vacant(place) = places.entry(mapping.memory.id()) {
                place.insert(shared.len());
                shared.push(CommonMemory::of(operation, &mapping.memory)?);
            }
        }
        let mut pieces: HashMap<MemoryId, Missing> = HashMap::new();
        let own = |(_, mapping): &(Bytes, &Mapping<B>)| !places.contains_key(&mapping.memory.id());
        for (offset, mapping) in self.iter().filter(own) {
            let memory = &mapping.memory;
            let (size, properties) = (memory.size(), memory.properties());
            let here = Missing { size, properties, home: offset, access: mapping.access, from: Bytes::ZERO };
            let home = pieces.entry(memory.id()).or_insert(here);
            if here.own() > home.own() {
                *home = here;
            }
        }
        let mut missing: Vec<(MemoryId, Missing)> = pieces.into_iter().collect();
        missing.sort_unstable_by_key(|(_, one)| one.home);
        let mut from = Bytes::ZERO;
        for (_, one) in &mut missing {
            one.from = from;
            from += one.size;
        }
        places.values_mut().for_each(|place| *place += missing.len());
        let (ids, missing): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
        places.extend(ids.into_iter().zip(0..));
        let mappings = self.iter().filter_map(|(offset, mapping)| {
            let memory = *places.get(&mapping.memory.id())?;
            Some(SavedMapping { offset, memory, access: mapping.access })
        });
        let mappings = mappings.collect();
        Ok(Survey { missing, shared, mappings })
    }
}
