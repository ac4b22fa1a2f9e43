//! Merging memory that is smaller than the target's granularity.
//!
//! One device creates memory in units of 4 KiB and another of 2 MiB. Memory that fits the target's unit stays as it is. Other
//! memory is merged up to the next boundary of a unit, if that unit is mapped completely, by memory with the same properties and
//! access, and none of it is mapped a second time.

use crate::RegionRecord;
use crate::planned::{PlannedMapping, PlannedMemory};
use gpu_vmm_core::{AccessMap, Bytes, Detail, Error, Granularity, Operation, Properties, Result};
use std::collections::BTreeMap;

/// A mapping of the snapshot, with its properties on the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceMapping {
    pub(crate) offset: Bytes,
    pub(crate) size: Bytes,
    /// Its index among the file's memories.
    pub(crate) memory: usize,
    pub(crate) properties: Properties,
    pub(crate) access: AccessMap,
    /// The target's unit for offsets and sizes of such memory.
    pub(crate) unit: Granularity,
    /// Whether the memory is mapped more than once.
    pub(crate) is_alias: bool,
}

impl SourceMapping {
    fn end(&self) -> Bytes {
        self.offset + self.size
    }

    /// Returns whether `next` can be merged with this one.
    fn takes(&self, next: &Self) -> bool {
        self.end() == next.offset
            && self.properties == next.properties
            && self.access == next.access
            && !self.is_alias
            && !next.is_alias
    }
}

/// Returns the mappings of a region on the target. Adds the memory that they need to `memories`. `made` records the new memory of
/// each of the file's memories, for memory that is mapped several times.
pub(crate) fn merge(
    operation: Operation,
    record: &RegionRecord,
    pieces: &[SourceMapping],
    memories: &mut Vec<PlannedMemory>,
    made: &mut BTreeMap<usize, usize>,
) -> Result<Vec<PlannedMapping>> {
    let mut mappings = Vec::with_capacity(pieces.len());
    let mut rest = pieces;
    while let Some(first) = rest.first() {
        let count = fitting(rest).ok_or_else(|| does_not_fit(operation, record, first))?;
        let (these, behind) = rest.split_at(count);
        let memory = *made.entry(first.memory).or_insert_with(|| {
            let size = these.iter().map(|piece| piece.size).sum();
            let sources = these.iter().map(|piece| piece.memory).collect();
            memories.push(PlannedMemory { size, properties: first.properties, sources });
            memories.len() - 1
        });
        mappings.push(PlannedMapping { offset: first.offset, memory, access: first.access });
        rest = behind;
    }
    Ok(mappings)
}

/// Returns the number of leading pieces that make up whole units, or `None` if they cannot.
fn fitting(pieces: &[SourceMapping]) -> Option<usize> {
    let first = pieces.first().filter(|first| first.unit.divides(first.offset))?;
    // Search only to the next boundary: a region can have very many pieces.
    let place = pieces.iter().position(|piece| first.unit.divides(piece.end()))?;
    pieces[..=place].windows(2).all(|pair| pair[0].takes(&pair[1])).then_some(place + 1)
}

fn does_not_fit(operation: Operation, record: &RegionRecord, piece: &SourceMapping) -> Error {
    let SourceMapping { offset, size, unit, properties, is_alias, .. } = piece;
    let why = if *is_alias {
        "it is mapped more than once, so it cannot be merged"
    } else {
        "the rest of that unit is not mapped, or has other properties or other access"
    };
    let reason = format!(
        "the region {:?} at {} has {size} at offset {offset}, and {properties} is mapped in units of {unit} here: {why}; \
         write the snapshot with mappings that are multiples of {unit}",
        record.tag, record.address
    );
    Error::new(operation, Detail::Unsupported { reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_core::{Access, Address, DeviceId};

    const UNIT: u64 = 4;

    fn piece(offset: u64, size: u64, memory: usize) -> SourceMapping {
        SourceMapping {
            offset: Bytes(offset),
            size: Bytes(size),
            memory,
            properties: Properties::on(DeviceId(0)),
            access: AccessMap::NONE,
            unit: Granularity::new(Bytes(UNIT)).unwrap(),
            is_alias: false,
        }
    }

    /// Returns the offset of each mapping, and the memories merged into it.
    fn merged(pieces: &[SourceMapping]) -> Result<Vec<(u64, Vec<usize>)>> {
        let whole = RegionRecord::in_bytes(Address(0x1000), Bytes(64));
        let record = RegionRecord { tag: "weights".to_owned(), ..whole };
        let mut memories = Vec::new();
        let mappings = merge(Operation::Restore, &record, pieces, &mut memories, &mut BTreeMap::new())?;
        let size = |memory: &PlannedMemory| memory.size.0 % UNIT;
        assert!(memories.iter().all(|memory| size(memory) == 0), "{memories:?}");
        Ok(mappings.iter().map(|one| (one.offset.0, memories[one.memory].sources.clone())).collect())
    }

    #[test]
    fn unaligned_pieces_merge_to_next_border() {
        let seen = merged(&[piece(0, 1, 0), piece(1, 3, 1), piece(4, 4, 2), piece(8, 6, 3), piece(14, 2, 4)]);
        assert_eq!(seen.unwrap(), [(0, vec![0, 1]), (4, vec![2]), (8, vec![3, 4])]);
    }

    /// A search over all pieces for each piece would take hours.
    #[test]
    fn very_many_pieces_are_no_matter() {
        const COUNT: u64 = 1 << 19;
        let pieces: Vec<SourceMapping> = (0..COUNT).map(|at| piece(at * UNIT, UNIT, at as usize)).collect();
        assert_eq!(merged(&pieces).unwrap().len() as u64, COUNT);
    }

    #[test]
    fn unmergeable_pieces_are_refused_with_reason() {
        let read = AccessMap::NONE.with(DeviceId(0), Access::Read);
        let shared = Properties::on(DeviceId(0)).shareable();
        for (pieces, why) in [
            (vec![piece(2, 2, 0)], "not mapped"),
            (vec![piece(0, 2, 0)], "not mapped"),
            (vec![piece(0, 2, 0), piece(3, 1, 1)], "not mapped"),
            (vec![piece(0, 2, 0), SourceMapping { access: read, ..piece(2, 2, 1) }], "other access"),
            (
                vec![piece(0, 2, 0), SourceMapping { properties: shared, ..piece(2, 2, 1) }],
                "other properties",
            ),
            (
                vec![SourceMapping { is_alias: true, ..piece(0, 2, 0) }, piece(2, 2, 1)],
                "mapped more than once",
            ),
            (vec![piece(0, 2, 0), SourceMapping { is_alias: true, ..piece(2, 2, 1) }], "rest of that unit"),
        ] {
            let text = merged(&pieces).unwrap_err().to_string();
            assert!(text.contains(why) && text.contains("weights") && text.contains("4 B"), "{text}");
        }
    }
}
