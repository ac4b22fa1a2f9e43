//! The books: what is mapped where, with which access. No decision rests on a driver's own record.

use super::layout::Part;
use crate::{AccessMap, Backend, Bytes, DeviceId, Error, Physical, Result};
use std::collections::BTreeMap;

/// One mapping of a whole handle.
#[derive(Debug)]
pub(super) struct Mapping<B: Backend> {
    pub(super) memory: Physical<B>,
    pub(super) access: AccessMap,
    /// Why nobody can vouch for this mapping any more: an operation failed on it, and so did undoing that.
    pub(super) out_of_use: Option<Box<str>>,
}

impl<B: Backend> Clone for Mapping<B> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), access: self.access, out_of_use: self.out_of_use.clone() }
    }
}

impl<B: Backend> Mapping<B> {
    pub(super) fn new(memory: Physical<B>, access: AccessMap) -> Self {
        Self { memory, access, out_of_use: None }
    }

    pub(super) fn length(&self) -> Bytes {
        self.memory.size()
    }
}

/// A mapping with the offset at which it begins.
#[derive(Debug)]
pub(super) struct Piece<B: Backend> {
    pub(super) offset: Bytes,
    pub(super) mapping: Mapping<B>,
}

impl<B: Backend> Piece<B> {
    pub(super) fn part(&self) -> Part {
        Part { offset: self.offset, length: self.mapping.length() }
    }
}

impl<B: Backend> Clone for Piece<B> {
    fn clone(&self) -> Self {
        Self { offset: self.offset, mapping: self.mapping.clone() }
    }
}

/// All mappings of a region by their offset. No two overlap.
#[derive(Debug)]
pub(super) struct Table<B: Backend> {
    mappings: BTreeMap<Bytes, Mapping<B>>,
    mapped: Bytes,
}

impl<B: Backend> Table<B> {
    pub(super) const fn new() -> Self {
        Self { mappings: BTreeMap::new(), mapped: Bytes::ZERO }
    }

    pub(super) fn insert(&mut self, offset: Bytes, mapping: Mapping<B>) {
        self.mapped += mapping.length();
        self.mappings.insert(offset, mapping);
    }

    /// Takes mappings that follow each other without a hole out.
    pub(super) fn take(&mut self, part: Part, taken: &mut Vec<Piece<B>>) {
        let mut next = part.offset;
        while next < part.end()
            && let Some(mapping) = self.mappings.remove(&next)
        {
            let offset = next;
            next += mapping.length();
            self.mapped = self.mapped - mapping.length();
            taken.push(Piece { offset, mapping });
        }
    }

    /// The first mapping that begins in a part.
    pub(super) fn first_in(&self, part: Part) -> Option<Part> {
        if part.length.is_zero() {
            return None;
        }
        let here = self.mappings.get(&part.offset).map(|mapping| (part.offset, mapping));
        let (offset, mapping) = here.or_else(|| {
            let (offset, mapping) = self.mappings.range(part.offset..part.end()).next()?;
            Some((*offset, mapping))
        })?;
        Some(Part { offset, length: mapping.length() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The bytes of all mappings together.
    pub(super) fn mapped(&self) -> Bytes {
        self.mapped
    }

    /// Where the last mapping ends; zero where there is none.
    pub(super) fn end(&self) -> Bytes {
        self.mappings.last_key_value().map_or(Bytes::ZERO, |(offset, mapping)| *offset + mapping.length())
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Bytes, &Mapping<B>)> {
        self.mappings.iter().map(|(offset, mapping)| (*offset, mapping))
    }

    /// The mapping that holds `offset`.
    pub(super) fn at(&self, offset: Bytes) -> Option<(Bytes, &Mapping<B>)> {
        let (start, mapping) = self.mappings.range(..=offset).next_back()?;
        (offset < *start + mapping.length()).then_some((*start, mapping))
    }

    /// The mappings that have a byte in the part, in order. Most parts are one mapping, which is found at once.
    pub(super) fn touching(
        &self,
        offset: Bytes,
        length: Bytes,
    ) -> impl Iterator<Item = (Bytes, &Mapping<B>)> {
        let alone = self.mappings.get(&offset).filter(|mapping| length <= mapping.length());
        let several = alone.is_none().then(|| {
            let first = self.at(offset).map_or(offset, |(start, _)| start);
            self.mappings.range(first..offset + length)
        });
        let several = several.into_iter().flatten().map(|(offset, mapping)| (*offset, mapping));
        alone.map(|mapping| (offset, mapping)).into_iter().chain(several)
    }

    /// Changes the mappings that have a byte in the part.
    pub(super) fn change(&mut self, part: Part, change: impl Fn(&mut Mapping<B>)) {
        match self.mappings.get_mut(&part.offset) {
            Some(alone) if part.length <= alone.length() => change(alone),
            _ => {
                let first = self.at(part.offset).map_or(part.offset, |(start, _)| start);
                self.mappings.range_mut(first..part.end()).for_each(|(_, mapping)| change(mapping));
            }
        }
    }

    /// Refuses a part in which something is mapped.
    pub(super) fn check_free(&self, operation: &'static str, offset: Bytes, length: Bytes) -> Result<()> {
        if self.end() <= offset {
            return Ok(());
        }
        match self.touching(offset, length).next() {
            None => Ok(()),
            Some((mapped_offset, mapping)) => {
                check_in_use(operation, mapped_offset, mapping)?;
                let mapped_length = mapping.length();
                Err(Error::AlreadyMapped { operation, offset, length, mapped_offset, mapped_length })
            }
        }
    }

    /// Refuses a part that is not mapped throughout; the part may begin and end inside a mapping.
    pub(super) fn check_mapped(&self, operation: &'static str, offset: Bytes, length: Bytes) -> Result<()> {
        let mut next = offset;
        for (start, mapping) in self.touching(offset, length) {
            check_in_use(operation, start, mapping)?;
            if start > next {
                break;
            }
            next = start + mapping.length();
        }
        if next >= offset + length {
            return Ok(());
        }
        Err(Error::NotMapped { operation, offset, length, hole: next, mapped: self.mapped, end: self.end() })
    }

    /// Refuses a part that is not made of whole mappings without a hole.
    pub(super) fn check_whole(&self, operation: &'static str, offset: Bytes, length: Bytes) -> Result<()> {
        if let Some(alone) = self.mappings.get(&offset)
            && alone.length() == length
        {
            return check_in_use(operation, offset, alone);
        }
        self.check_mapped(operation, offset, length)?;
        let cut = |at: Bytes| self.at(at).filter(|(start, _)| *start != at);
        match cut(offset).or_else(|| cut(offset + length)) {
            None => Ok(()),
            Some((mapped_offset, mapping)) => {
                let mapped_length = mapping.length();
                Err(Error::PartialMapping { operation, offset, length, mapped_offset, mapped_length })
            }
        }
    }

    /// The devices that have some access to a part.
    pub(super) fn devices(&self, offset: Bytes, length: Bytes) -> impl Iterator<Item = DeviceId> {
        let all = self.touching(offset, length).flat_map(|(_, mapping)| mapping.access.grants());
        let all = all.collect::<AccessMap>().grants().map(|grant| grant.device);
        all.filter(|device| !device.is_host())
    }
}

/// Refuses a mapping that nobody can vouch for.
fn check_in_use<B: Backend>(operation: &'static str, offset: Bytes, mapping: &Mapping<B>) -> Result<()> {
    match &mapping.out_of_use {
        None => Ok(()),
        Some(cause) => {
            Err(Error::OutOfUse { operation, offset, length: mapping.length(), cause: cause.clone().into() })
        }
    }
}
