//! The state of a region that an exporter has sent, and the changes since then.

use crate::importer_state::{Claim, MAX_MAPPINGS, MAX_PIECES};
use crate::manifest::{SharedMapping, SharedPiece};
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, Error, MemoryId, Operation, PhysicalMemory, Region, Result,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::marker::PhantomData;

/// The mappings that were sent, and their pieces of memory. Holds no memory, so that the region alone decides when memory is
/// released.
#[derive(Debug)]
pub(crate) struct ExporterState<B: Backend> {
    base: Address,
    pieces: HashMap<MemoryId, u32>,
    mappings: BTreeMap<Bytes, u32>,
    next: u32,
    /// An exporter's regions have one backend.
    backend: PhantomData<fn() -> B>,
}

/// The changes of a region since the last description that was sent.
#[derive(Debug)]
pub(crate) struct Changes<'a, B: Backend> {
    pub(crate) claim: Claim,
    /// The memory of the claim's pieces.
    pub(crate) memory: Vec<&'a PhysicalMemory<B>>,
    mappings: BTreeMap<Bytes, u32>,
}

impl<B: Backend> ExporterState<B> {
    /// Creates the state before anything was sent.
    pub(crate) fn new() -> Self {
        let (pieces, mappings) = (HashMap::new(), BTreeMap::new());
        Self { base: Address(0), pieces, mappings, next: 0, backend: PhantomData }
    }

    /// Returns the changes of a region since the last description. Each new piece is listed once, however many mappings it has.
    pub(crate) fn changes<'a>(&self, operation: Operation, region: &'a Region<B>) -> Result<Changes<'a, B>> {
        region.check_usable(operation)?;
        let mut new: HashMap<MemoryId, u32> = HashMap::new();
        let mut changes = Changes {
            claim: Claim { base: region.address().0, end: region.end().0, ..Claim::default() },
            memory: Vec::new(),
            mappings: BTreeMap::new(),
        };
        for mapping in region.mappings() {
            let key = mapping.memory.id();
            let known = self.pieces.get(&key).or_else(|| new.get(&key)).copied();
            let id = match known {
                Some(id) => id,
                None => {
                    let id = self.id_of_new(operation, new.len())?;
                    let piece = SharedPiece::of(operation, region.backend(), id, mapping.memory)?;
                    changes.claim.pieces.push(piece);
                    changes.memory.push(mapping.memory);
                    new.insert(key, id);
                    id
                }
            };
            changes.mappings.insert(mapping.offset, id);
        }
        let differs = |here: &BTreeMap<Bytes, u32>, there: &BTreeMap<Bytes, u32>| {
            let only = here.iter().filter(|(offset, id)| there.get(offset) != Some(*id));
            only.map(|(offset, id)| SharedMapping { offset: offset.0, piece: *id }).collect::<Vec<_>>()
        };
        changes.claim.removed =
            differs(&self.mappings, &changes.mappings).iter().map(|mapping| mapping.offset).collect();
        changes.claim.mappings = differs(&changes.mappings, &self.mappings);
        check_count(operation, "mappings", changes.mappings.len(), MAX_MAPPINGS)?;
        check_count(operation, "pieces", self.pieces.len() + changes.memory.len(), MAX_PIECES)?;
        Ok(changes)
    }

    /// Returns the number of the next piece, after `more` new ones.
    fn id_of_new(&self, operation: Operation, more: usize) -> Result<u32> {
        let id = u32::try_from(more).ok().and_then(|more| self.next.checked_add(more));
        id.filter(|id| *id < u32::MAX).ok_or_else(|| {
            Error::new(
                operation,
                Detail::Unsupported {
                    reason: "2^32 - 1 pieces of memory have been shared in one exchange; begin a new one"
                        .to_owned(),
                },
            )
        })
    }

    /// Returns true if there are no changes.
    pub(crate) fn is_sent(&self, changes: &Changes<'_, B>) -> bool {
        let Claim { base, removed, mappings, .. } = &changes.claim;
        removed.is_empty() && mappings.is_empty() && *base == self.base.0
    }

    /// Records that the changes were sent.
    pub(crate) fn record(&mut self, changes: Changes<'_, B>) {
        self.base = Address(changes.claim.base);
        for (piece, memory) in changes.claim.pieces.iter().zip(changes.memory) {
            self.next = piece.id + 1;
            self.pieces.insert(memory.id(), piece.id);
        }
        self.mappings = changes.mappings;
        if !changes.claim.removed.is_empty() {
            let used: BTreeSet<u32> = self.mappings.values().copied().collect();
            self.pieces.retain(|_, id| used.contains(id));
        }
    }
}

fn check_count(operation: Operation, what: &str, count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Error::new(
        operation,
        Detail::Unsupported { reason: format!("the region has {count} {what}, and the limit is {most}") },
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn exporter_has_the_importers_mapping_limit() {
        let check = |count| check_count(Operation::Publish, "mappings", count, MAX_MAPPINGS);
        check(MAX_MAPPINGS).unwrap();
        let error = check(MAX_MAPPINGS + 1).unwrap_err();
        let expected =
            "publish change: not supported: the region has 262145 mappings, and the limit is 262144";
        assert_eq!(error.to_string(), expected);
    }
}
