//! The records of a region: its mappings and their access. No decision depends on a driver's own record.

use super::index::{GranuleMapping, Index};
use crate::driver::Backend;
use crate::memory::{PhysicalMemory, Record, Recorded};
use crate::types::{AccessMap, Bytes, Detail, DeviceId, Error, Granularity, OffsetRange, Operation, Result};
use std::ops::Range;
use std::sync::Arc;

/// One mapping of a whole handle.
#[derive(Debug)]
pub(super) struct Mapping<B: Backend> {
    pub(super) memory: PhysicalMemory<B>,
    pub(super) access: AccessMap,
    /// The reason why the state of this mapping is unknown: the error of an operation on it, and the error of the rollback.
    pub(super) poisoned: Option<Box<str>>,
}

impl<B: Backend> Clone for Mapping<B> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), access: self.access, poisoned: self.poisoned.clone() }
    }
}

impl<B: Backend> Mapping<B> {
    pub(super) fn new(memory: PhysicalMemory<B>, access: AccessMap) -> Self {
        Self { memory, access, poisoned: None }
    }

    pub(super) fn length(&self) -> Bytes {
        self.memory.size()
    }

    /// The data of the mapping that other threads can read.
    fn recorded(&self) -> Recorded {
        Recorded {
            size: self.length(),
            memory: self.memory.id(),
            properties: self.memory.properties(),
            access: self.access,
            poisoned: self.poisoned.is_some(),
        }
    }
}

/// A mapping with the offset at which it begins.
#[derive(Debug)]
pub(super) struct PlacedMapping<B: Backend> {
    pub(super) offset: Bytes,
    pub(super) mapping: Mapping<B>,
}

impl<B: Backend> PlacedMapping<B> {
    pub(super) fn part(&self) -> OffsetRange {
        OffsetRange { offset: self.offset, length: self.mapping.length() }
    }
}

impl<B: Backend> Clone for PlacedMapping<B> {
    fn clone(&self) -> Self {
        Self { offset: self.offset, mapping: self.mapping.clone() }
    }
}

/// All mappings of a region. No two overlap, and each consists of whole granules of the region.
///
/// A lookup finds a mapping by its granule without reading the mapping's record: with many mappings, no cache holds all records.
#[derive(Debug)]
pub(super) struct Table<B: Backend> {
    /// The number of bits of an offset inside a granule.
    shift: u32,
    index: Index,
    /// The place of each mapping, by its slot.
    places: Vec<OffsetRange>,
    /// The mappings, also by their slots.
    mappings: Vec<Mapping<B>>,
    mapped: Bytes,
    end: Bytes,
    /// False if no mapping is poisoned, so that lookups skip the check.
    is_in_doubt: bool,
    /// The copy of the mappings for [`at`](crate::at), which changes with the table.
    record: Arc<Record>,
}

impl<B: Backend> Table<B> {
    pub(super) fn new(granularity: Granularity, record: Arc<Record>) -> Self {
        Self::of_granules(granularity.bytes().0.trailing_zeros(), record)
    }

    fn of_granules(shift: u32, record: Arc<Record>) -> Self {
        Self {
            shift,
            index: Index::new(),
            places: Vec::new(),
            mappings: Vec::new(),
            mapped: Bytes::ZERO,
            end: Bytes::ZERO,
            is_in_doubt: false,
            record,
        }
    }

    /// The region's entry in the registry of addresses.
    pub(super) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Takes all mappings out, with their record.
    pub(super) fn take_all(&mut self) -> Self {
        let empty = Self::of_granules(self.shift, self.record.empty());
        std::mem::replace(self, empty)
    }

    pub(super) fn insert(&mut self, offset: Bytes, mapping: Mapping<B>) {
        let place = OffsetRange { offset, length: mapping.length() };
        debug_assert_eq!((offset.0 | place.length.0) & (self.granule().0 - 1), 0, "{place:?}");
        self.index.set(self.granules(place), self.places.len());
        self.mapped += place.length;
        self.end = self.end.max(place.end());
        self.is_in_doubt |= mapping.poisoned.is_some();
        self.record.set_mapping(offset, mapping.recorded());
        self.places.push(place);
        self.mappings.push(mapping);
    }

    /// Takes out mappings that follow each other without a hole.
    pub(super) fn take(&mut self, part: OffsetRange, taken: &mut Vec<PlacedMapping<B>>) {
        let mut next = part.offset;
        while next < part.end()
            && let Some(GranuleMapping { slot, .. }) = self.index.at(next.0 >> self.shift)
            && let Some(place) = self.places.get(slot).copied()
            && place.offset == next
        {
            next = place.end();
            taken.push(PlacedMapping { offset: place.offset, mapping: self.remove(slot, place) });
        }
    }

    /// Takes one mapping out. The last mapping moves to its slot.
    fn remove(&mut self, slot: usize, place: OffsetRange) -> Mapping<B> {
        self.index.clear(self.granules(place));
        self.record.remove_mapping(place.offset);
        self.places.swap_remove(slot);
        let mapping = self.mappings.swap_remove(slot);
        if let Some(moved) = self.places.get(slot) {
            self.index.set(self.granules(*moved), slot);
        }
        self.mapped -= place.length;
        if place.end() == self.end {
            let last = self.index.last_to(place.offset.0 >> self.shift);
            self.end = last.and_then(|slot| self.places.get(slot)).map_or(Bytes::ZERO, |last| last.end());
        }
        if self.is_empty() {
            self.index.reset();
            self.is_in_doubt = false;
        }
        shrink(&mut self.places);
        shrink(&mut self.mappings);
        mapping
    }

    fn granule(&self) -> Bytes {
        Bytes(1 << self.shift)
    }

    /// The numbers of the granules that a part touches. For an empty part, the number of the granule at its offset.
    fn granules(&self, part: OffsetRange) -> Range<u64> {
        let first = part.offset.0 >> self.shift;
        let last = part.end().0.saturating_sub(1) >> self.shift;
        first..first.max(last).saturating_add(1)
    }

    /// The first mapping in a range of granules, which is reduced to the granules behind that mapping.
    fn next_of(&self, granules: &mut Range<u64>) -> Option<(usize, OffsetRange)> {
        if granules.is_empty() {
            return None;
        }
        let slot = self.index.first_from(granules.start)?;
        let place = *self.places.get(slot)?;
        let own = self.granules(place);
        granules.start = own.end;
        (own.start < granules.end).then_some((slot, place))
    }

    /// The mappings that overlap a part.
    fn walk(&self, part: OffsetRange) -> Walk<'_, B> {
        Walk { table: self, granules: self.granules(part) }
    }

    /// The first mapping that begins in a part.
    pub(super) fn first_in(&self, part: OffsetRange) -> Option<OffsetRange> {
        if part.length.is_zero() {
            return None;
        }
        self.walk(part).map(|(place, _)| place).find(|place| place.offset >= part.offset)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The total length of all mappings.
    pub(super) fn mapped(&self) -> Bytes {
        self.mapped
    }

    /// The end of the last mapping; zero if there is none.
    pub(super) fn end(&self) -> Bytes {
        self.end
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Bytes, &Mapping<B>)> {
        let all = Walk { table: self, granules: 0..self.end.0 >> self.shift };
        all.map(|(place, mapping)| (place.offset, mapping))
    }

    /// The mapping that contains `offset`.
    pub(super) fn at(&self, offset: Bytes) -> Option<(Bytes, &Mapping<B>)> {
        self.find(offset).map(|(place, mapping)| (place.offset, mapping))
    }

    /// The mapping that contains `offset`, and its place. Does not read the mapping's record.
    pub(super) fn find(&self, offset: Bytes) -> Option<(OffsetRange, &Mapping<B>)> {
        let granule = offset.0 >> self.shift;
        let GranuleMapping { slot, is_alone } = self.index.at(granule)?;
        let place = match is_alone {
            true => OffsetRange { offset: Bytes(granule << self.shift), length: self.granule() },
            false => *self.places.get(slot)?,
        };
        Some((place, self.mappings.get(slot)?))
    }

    /// Reports whether any mapping may be poisoned.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// Reports whether a mapping of this table is poisoned.
    pub(super) fn is_out_of_use(&self, mapping: &Mapping<B>) -> bool {
        self.is_in_doubt && mapping.poisoned.is_some()
    }

    /// The mappings that overlap a part, in order.
    pub(super) fn touching(
        &self,
        offset: Bytes,
        length: Bytes,
    ) -> impl Iterator<Item = (Bytes, &Mapping<B>)> {
        self.walk(OffsetRange { offset, length }).map(|(place, mapping)| (place.offset, mapping))
    }

    /// Changes the mappings that overlap a part.
    pub(super) fn change(&mut self, part: OffsetRange, change: impl Fn(&mut Mapping<B>)) {
        let mut granules = self.granules(part);
        while let Some((slot, place)) = self.next_of(&mut granules)
            && let Some(mapping) = self.mappings.get_mut(slot)
        {
            change(mapping);
            self.record.set_mapping(place.offset, mapping.recorded());
            self.is_in_doubt |= mapping.poisoned.is_some();
        }
    }

    /// Refuses a part that contains a mapping.
    pub(super) fn check_free(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<()> {
        if self.end() <= offset {
            return Ok(());
        }
        match self.walk(OffsetRange { offset, length }).next() {
            None => Ok(()),
            Some((OffsetRange { offset: mapped_offset, length: mapped_length }, mapping)) => {
                check_in_use(operation, mapped_offset, mapping)?;
                Err(Error::new(
                    operation,
                    Detail::AlreadyMapped {
                        range: OffsetRange { offset, length },
                        mapping: OffsetRange { offset: mapped_offset, length: mapped_length },
                    },
                ))
            }
        }
    }

    /// Refuses a part with a hole. The part may begin and end inside a mapping.
    pub(super) fn check_mapped(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<()> {
        let mut next = offset;
        for (place, mapping) in self.walk(OffsetRange { offset, length }) {
            check_in_use(operation, place.offset, mapping)?;
            if place.offset > next {
                break;
            }
            next = place.end();
        }
        if next >= offset + length {
            return Ok(());
        }
        Err(Error::new(
            operation,
            Detail::NotMapped {
                range: OffsetRange { offset, length },
                hole: next,
                mapped: self.mapped,
                end: self.end(),
            },
        ))
    }

    /// Refuses a part that does not consist of whole mappings without a hole.
    pub(super) fn check_whole(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<()> {
        if let Some((place, alone)) = self.find(offset)
            && place == (OffsetRange { offset, length })
        {
            return check_in_use(operation, offset, alone);
        }
        self.check_mapped(operation, offset, length)?;
        let cut = |at: Bytes| self.find(at).map(|(place, _)| place).filter(|place| place.offset != at);
        match cut(offset).or_else(|| cut(offset + length)) {
            None => Ok(()),
            Some(OffsetRange { offset: mapped_offset, length: mapped_length }) => Err(Error::new(
                operation,
                Detail::PartialMapping {
                    range: OffsetRange { offset, length },
                    mapping: OffsetRange { offset: mapped_offset, length: mapped_length },
                },
            )),
        }
    }

    /// The devices that have access to some of a part.
    pub(super) fn devices(&self, offset: Bytes, length: Bytes) -> impl Iterator<Item = DeviceId> {
        let all = self.touching(offset, length).flat_map(|(_, mapping)| mapping.access.grants());
        let all = all.collect::<AccessMap>().grants().map(|grant| grant.device);
        all.filter(|device| !device.is_host())
    }
}

/// The mappings that contain any of some granules, in order from either side.
#[derive(Debug)]
struct Walk<'a, B: Backend> {
    table: &'a Table<B>,
    granules: Range<u64>,
}

impl<'a, B: Backend> Iterator for Walk<'a, B> {
    type Item = (OffsetRange, &'a Mapping<B>);

    fn next(&mut self) -> Option<Self::Item> {
        let (slot, place) = self.table.next_of(&mut self.granules)?;
        Some((place, self.table.mappings.get(slot)?))
    }
}

impl<B: Backend> DoubleEndedIterator for Walk<'_, B> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.granules.is_empty() {
            return None;
        }
        let slot = self.table.index.last_to(self.granules.end - 1)?;
        let place = *self.table.places.get(slot)?;
        let own = self.table.granules(place);
        self.granules.end = own.start;
        (own.end > self.granules.start).then_some((place, self.table.mappings.get(slot)?))
    }
}

/// Releases capacity that is much larger than the list.
fn shrink<T>(list: &mut Vec<T>) {
    if list.capacity() > 32 && list.len() < list.capacity() / 4 {
        list.shrink_to(list.len() * 2);
    }
}

/// Refuses a poisoned mapping.
fn check_in_use<B: Backend>(operation: Operation, offset: Bytes, mapping: &Mapping<B>) -> Result<()> {
    match &mapping.poisoned {
        None => Ok(()),
        Some(cause) => Err(Error::new(
            operation,
            Detail::Poisoned {
                range: OffsetRange { offset, length: mapping.length() },
                cause: cause.clone().into(),
            },
        )),
    }
}
