//! The state of an exporter's region as an importer has received it, and the checks of its changes.
//!
//! All of it is untrusted data. A claim must be consistent with itself and with the claims before it. Then the importer
//! records it and builds a region from it.

use crate::PeerError;
use crate::manifest::{SharedMapping, SharedPiece};
use gpu_vmm_core::extend::ADDRESS_SPACE;
use gpu_vmm_core::{Address, Bytes, Error, Operation, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The most pieces of a region: 256 GiB in units of 2 MiB. Each piece needs a descriptor while it is in transit.
pub(crate) const MAX_PIECES: usize = 1 << 17;

/// The most mappings of a region: two for each piece, which is four times the mappings that Linux lets a process have.
pub(crate) const MAX_MAPPINGS: usize = 1 << 18;

/// An unchecked description of a region, or of a change of one.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) removed: Vec<u64>,
    pub(crate) pieces: Vec<SharedPiece>,
    pub(crate) mappings: Vec<SharedMapping>,
}

/// The size of a piece and its granularity, in bytes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    size: u64,
    unit: u64,
}

#[derive(Debug)]
struct ImportedPiece<P> {
    shape: Shape,
    what: P,
}

/// The region as all claims so far describe it. `P` is the form in which the importer holds a piece.
#[derive(Debug)]
pub(crate) struct ImporterState<P> {
    base: u64,
    end: u64,
    pieces: BTreeMap<u32, ImportedPiece<P>>,
    mappings: BTreeMap<u64, u32>,
    /// The lowest number that the next new piece may have.
    next: u64,
}

impl<P> Default for ImporterState<P> {
    fn default() -> Self {
        Self { base: 0, end: 0, pieces: BTreeMap::new(), mappings: BTreeMap::new(), next: 0 }
    }
}

/// A piece that a claim adds.
struct NewPiece {
    id: u32,
    shape: Shape,
    is_used: bool,
}

impl<P> ImporterState<P> {
    /// Returns the region's address in the exporter.
    pub(crate) fn base(&self) -> Address {
        Address(self.base)
    }

    /// Returns the end of the last mapping.
    pub(crate) fn end(&self) -> Bytes {
        Bytes(self.end)
    }

    /// Returns the pieces, ordered by their numbers.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u32, &P)> {
        self.pieces.iter().map(|(id, piece)| (*id, &piece.what))
    }

    /// Returns the mappings, ordered by offset, each with its piece.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = (Bytes, u32, &P)> {
        self.mappings.iter().filter_map(|(offset, id)| {
            let piece = self.pieces.get(id)?;
            Some((Bytes(*offset), *id, &piece.what))
        })
    }

    /// Replaces the form in which the importer holds a piece.
    pub(crate) fn replace(&mut self, id: u32, what: P) {
        if let Some(piece) = self.pieces.get_mut(&id) {
            piece.what = what;
        }
    }

    /// Fails if a claim is inconsistent with itself or with the earlier claims.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] with the numbers.
    pub(crate) fn check(&self, operation: Operation, claim: &Claim) -> Result<()> {
        let removed = self.removed(operation, claim)?;
        let mut new = self.new_pieces(operation, claim)?;
        let mut places: Vec<Range<u64>> = Vec::new();
        for (offset, id) in self.mappings.iter().filter(|(offset, _)| !removed.contains(offset)) {
            let size = self.pieces.get(id).map_or(0, |piece| piece.shape.size);
            places.push(*offset..offset.saturating_add(size));
        }
        for mapping in &claim.mappings {
            places.push(self.place(operation, &mut new, mapping)?);
        }
        if let Some(idle) = new.iter().find(|piece| !piece.is_used) {
            return bad(operation, format!("piece {} is mapped nowhere", idle.id));
        }
        check_count(operation, "mappings", places.len(), MAX_MAPPINGS)?;
        check_places(operation, places, claim.base, claim.end)
    }

    /// Returns the offsets of the mappings that the claim removes.
    fn removed(&self, operation: Operation, claim: &Claim) -> Result<BTreeSet<u64>> {
        let mut removed = BTreeSet::new();
        for offset in &claim.removed {
            if !self.mappings.contains_key(offset) {
                return bad(
                    operation,
                    format!("a mapping is removed at offset {offset:#x}, where none begins"),
                );
            }
            if !removed.insert(*offset) {
                return bad(operation, format!("the mapping at offset {offset:#x} is removed twice"));
            }
        }
        Ok(removed)
    }

    /// Returns the pieces that the claim adds, ordered by their numbers.
    fn new_pieces(&self, operation: Operation, claim: &Claim) -> Result<Vec<NewPiece>> {
        check_count(operation, "pieces", self.pieces.len() + claim.pieces.len(), MAX_PIECES)?;
        let mut next = self.next;
        let mut new = Vec::with_capacity(claim.pieces.len());
        for piece in &claim.pieces {
            if u64::from(piece.id) < next {
                return bad(
                    operation,
                    format!("piece {} arrived, and {next} or more was expected", piece.id),
                );
            }
            next = u64::from(piece.id) + 1;
            let unit = piece.unit(operation)?;
            let shape = Shape { size: piece.size, unit: unit.bytes().0 };
            new.push(NewPiece { id: piece.id, shape, is_used: false });
        }
        Ok(new)
    }

    /// Returns the range of a new mapping, if its piece is known and fits there.
    fn place(
        &self,
        operation: Operation,
        new: &mut [NewPiece],
        mapping: &SharedMapping,
    ) -> Result<Range<u64>> {
        let SharedMapping { offset, piece: id } = *mapping;
        let shape = match new.binary_search_by_key(&id, |piece| piece.id) {
            Ok(at) => {
                new[at].is_used = true;
                Some(new[at].shape)
            }
            Err(_) => self.pieces.get(&id).map(|piece| piece.shape),
        };
        let Some(Shape { size, unit }) = shape else {
            return bad(
                operation,
                format!("a mapping at offset {offset:#x} is of piece {id}, which was not sent"),
            );
        };
        if !offset.is_multiple_of(unit) {
            return bad(
                operation,
                format!(
                    "piece {id} is mapped at offset {offset:#x}, which is not a multiple of its granularity {unit:#x}"
                ),
            );
        }
        match offset.checked_add(size) {
            Some(end) => Ok(offset..end),
            None => bad(operation, format!("{size:#x} bytes at offset {offset:#x} end beyond 2^64")),
        }
    }

    /// Records a claim that has been checked, with its pieces in their order. Removes pieces that have no mapping left.
    pub(crate) fn record(&mut self, claim: &Claim, pieces: impl IntoIterator<Item = P>) {
        (self.base, self.end) = (claim.base, claim.end);
        for offset in &claim.removed {
            self.mappings.remove(offset);
        }
        for (piece, what) in claim.pieces.iter().zip(pieces) {
            let shape = Shape { size: piece.size, unit: piece.granularity };
            self.next = u64::from(piece.id) + 1;
            self.pieces.insert(piece.id, ImportedPiece { shape, what });
        }
        self.mappings.extend(claim.mappings.iter().map(|mapping| (mapping.offset, mapping.piece)));
        if !claim.removed.is_empty() {
            let used: BTreeSet<u32> = self.mappings.values().copied().collect();
            self.pieces.retain(|id, _| used.contains(id));
        }
    }
}

fn bad<T>(operation: Operation, why: String) -> Result<T> {
    Err(Error::of_extension(operation, PeerError::BadMessage { why }))
}

fn check_count(operation: Operation, what: &str, count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    bad(operation, format!("the region has {count} {what}, and the limit is {most}"))
}

/// Fails if mappings overlap, or if the end or the base is impossible.
fn check_places(operation: Operation, mut places: Vec<Range<u64>>, base: u64, end: u64) -> Result<()> {
    places.sort_unstable_by_key(|place| place.start);
    for (one, next) in places.iter().zip(places.iter().skip(1)) {
        if next.start < one.end {
            let (from, to, at) = (one.start, one.end, next.start);
            return bad(
                operation,
                format!("the mapping at offset {at:#x} overlaps that from {from:#x} to {to:#x}"),
            );
        }
    }
    let last = places.last().map_or(0, |place| place.end);
    if last != end {
        return bad(operation, format!("the region ends at {end:#x}, and its last mapping at {last:#x}"));
    }
    if end > ADDRESS_SPACE.0 {
        return bad(
            operation,
            format!("the region ends at {end:#x}, beyond an address space of {ADDRESS_SPACE}"),
        );
    }
    if base.checked_add(end).is_none() {
        return bad(
            operation,
            format!("the region begins at {base:#x}, and its {end:#x} bytes end beyond 2^64"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
