//! What another process has been told of a region, and what there is to tell after a change.

use crate::importer_state::{Claim, MAX_MAPPINGS, MAX_PIECES};
use crate::manifest::{SharedMapping, SharedPiece};
use gpu_vmm_core::extend::MemoryId;
use gpu_vmm_core::{Address, Backend, Bytes, Detail, Error, Operation, PhysicalMemory, Region, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What was told: the mappings, and the pieces behind them. Their memory is not kept: a region that has dropped it has given
/// it back.
#[derive(Debug)]
pub(crate) struct ExporterState<B: Backend> {
    base: Address,
    pieces: HashMap<MemoryId<B>, u32>,
    mappings: BTreeMap<Bytes, u32>,
    next: u32,
}

/// What is to be told.
#[derive(Debug)]
pub(crate) struct News<'a, B: Backend> {
    pub(crate) claim: Claim,
    /// The memory of the claim's pieces.
    pub(crate) memory: Vec<&'a PhysicalMemory<B>>,
    mappings: BTreeMap<Bytes, u32>,
}

impl<B: Backend> ExporterState<B> {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self { base: Address(0), pieces: HashMap::new(), mappings: BTreeMap::new(), next: 0 }
    }

    /// What differs in a region from what was told. Each piece comes once, however many mappings it has.
    pub(crate) fn news<'a>(&self, operation: Operation, region: &'a Region<B>) -> Result<News<'a, B>> {
        region.check_usable(operation)?;
        let mut new: HashMap<MemoryId<B>, u32> = HashMap::new();
        let mut news = News {
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
                    news.claim.pieces.push(piece);
                    news.memory.push(mapping.memory);
                    new.insert(key, id);
                    id
                }
            };
            news.mappings.insert(mapping.offset, id);
        }
        let differs = |here: &BTreeMap<Bytes, u32>, there: &BTreeMap<Bytes, u32>| {
            let only = here.iter().filter(|(offset, id)| there.get(offset) != Some(*id));
            only.map(|(offset, id)| SharedMapping { offset: offset.0, piece: *id }).collect::<Vec<_>>()
        };
        news.claim.removed =
            differs(&self.mappings, &news.mappings).iter().map(|mapping| mapping.offset).collect();
        news.claim.mappings = differs(&news.mappings, &self.mappings);
        check_count(operation, "mappings", news.mappings.len(), MAX_MAPPINGS)?;
        check_count(operation, "pieces", self.pieces.len() + news.memory.len(), MAX_PIECES)?;
        Ok(news)
    }

    /// What the next piece is called, with `more` new ones before it.
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

    /// True where nothing of it is new.
    pub(crate) fn has_all(&self, news: &News<'_, B>) -> bool {
        let Claim { base, removed, mappings, .. } = &news.claim;
        removed.is_empty() && mappings.is_empty() && *base == self.base.0
    }

    /// Notes that it has been told.
    pub(crate) fn note(&mut self, news: News<'_, B>) {
        self.base = Address(news.claim.base);
        for (piece, memory) in news.claim.pieces.iter().zip(news.memory) {
            self.next = piece.id + 1;
            self.pieces.insert(memory.id(), piece.id);
        }
        self.mappings = news.mappings;
        if !news.claim.removed.is_empty() {
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
        Detail::Unsupported { reason: format!("the region has {count} {what}; {most} are the most") },
    ))
}
