use super::*;
use gpu_vmm_testkit::Random;
use std::collections::BTreeMap;

/// The same lookup by a tree of the standard library: slot and end, by the first granule.
#[derive(Default)]
struct Model(BTreeMap<u64, (u64, usize)>);

impl Model {
    fn at(&self, granule: u64) -> Option<GranuleMapping> {
        let (first, (end, slot)) = self.0.range(..=granule).next_back()?;
        (granule < *end).then_some(GranuleMapping { slot: *slot, is_alone: end - first == 1 })
    }

    fn first_from(&self, granule: u64) -> Option<usize> {
        let here = self.at(granule).map(|found| found.slot);
        here.or_else(|| Some(self.0.range(granule..).next()?.1.1))
    }

    fn last_to(&self, granule: u64) -> Option<usize> {
        Some(self.0.range(..=granule).next_back()?.1.1)
    }

    fn is_free(&self, granules: &Range<u64>) -> bool {
        self.0.range(..granules.end).next_back().is_none_or(|(_, (end, _))| *end <= granules.start)
    }
}

fn agree(index: &Index, model: &Model, granule: u64) {
    assert_eq!(index.at(granule), model.at(granule), "at {granule}");
    assert_eq!(index.first_from(granule), model.first_from(granule), "from {granule}");
    assert_eq!(index.last_to(granule), model.last_to(granule), "to {granule}");
}

/// The number of blocks reachable from one, including it. All but the root must have an entry.
fn reached(index: &Index, block: u32) -> usize {
    assert!(block == index.root || !index.is_empty(block), "an empty block is in use");
    1 + index
        .block(block)
        .iter()
        .filter_map(|entry| entry.block())
        .map(|below| reached(index, below))
        .sum::<usize>()
}

/// Checks that every block is either in use or spare, and that spare blocks are empty.
fn check_blocks(index: &Index) {
    let spare: std::collections::BTreeSet<u32> = index.spare.iter().copied().collect();
    assert_eq!(spare.len(), index.spare.len(), "a block is spare twice");
    assert!(spare.iter().all(|block| index.is_empty(*block)), "a spare block is not empty");
    let blocks = index.entries.len() / FAN;
    let used = if blocks == 0 { 0 } else { reached(index, index.root) };
    assert_eq!(used + spare.len(), blocks, "blocks are lost");
}

/// A place for a mapping: one granule, a few, or several blocks; at any granule, or at the beginning of a block.
fn granules(random: &mut Random, limit: u64) -> Range<u64> {
    let length = match random.below(6) {
        0..=2 => 1,
        3 => 1 + random.below(9),
        4 => 1 + random.below(3 * FAN),
        _ => FAN << (random.below(2) as u32 * BITS),
    } as u64;
    let first = match random.below(3) {
        0 => random.next() % limit / FAN as u64 * FAN as u64,
        // Close together, so that blocks become full and empty.
        1 => random.next() % limit.min(200),
        _ => random.next() % limit,
    };
    first..first + length
}

#[test]
fn index_matches_the_standard_tree() {
    // Miri takes a thousand times as long.
    let (sizes, rounds) = if cfg!(miri) { (2, 15) } else { (7, 3000) };
    let all = [(1, 60), (2, 300), (3, 5000), (4, 300_000), (5, 1 << 35), (6, 5000), (7, 20_000)];
    for (seed, limit) in all.into_iter().take(sizes) {
        let (mut random, mut index, mut model) = (Random(seed), Index::new(), Model::default());
        let mut mappings: Vec<Range<u64>> = Vec::new();
        for round in 0..rounds {
            // Mostly additions, then mostly removals, and so on.
            let wants_more = random.below(10) < if round / 300 % 2 == 0 { 8 } else { 2 };
            if wants_more {
                let new = granules(&mut random, limit);
                if model.is_free(&new) {
                    index.set(new.clone(), mappings.len());
                    model.0.insert(new.start, (new.end, mappings.len()));
                    mappings.push(new);
                }
            } else if !mappings.is_empty() {
                let slot = random.below(mappings.len());
                let old = mappings.swap_remove(slot);
                index.clear(old.clone());
                model.0.remove(&old.start);
                if let Some(moved) = mappings.get(slot) {
                    index.set(moved.clone(), slot);
                    model.0.insert(moved.start, (moved.end, slot));
                }
                agree(&index, &model, old.start);
            }
            for near in mappings.iter().rev().take(3) {
                for granule in [near.start, near.end - 1, near.end, near.start.saturating_sub(1)] {
                    agree(&index, &model, granule);
                }
            }
            for _ in 0..5 {
                agree(&index, &model, random.next() % (2 * limit));
            }
            agree(&index, &model, u64::MAX >> 1);
            if round % 50 == 0 {
                check_blocks(&index);
            }
        }
        while let Some(last) = mappings.pop() {
            index.clear(last);
        }
        check_blocks(&index);
        assert!(index.is_empty(index.root));
        index.reset();
        check_blocks(&index);
        assert_eq!(index.first_from(0), None);
    }
}

#[test]
fn unmapped_places_have_no_mapping() {
    let index = Index::new();
    for granule in [0, 1, 63, 64, u64::MAX] {
        assert_eq!(
            (index.at(granule), index.first_from(granule), index.last_to(granule)),
            (None, None, None)
        );
    }
}

#[test]
fn raised_full_tree_leaves_empty_block() {
    let mut index = Index::new();
    // The whole root, one entry for each granule. When the tree rises, they lie below one entry.
    index.set(0..64, 0);
    index.set(64..65, 1);
    index.clear(0..64);
    check_blocks(&index);
    index.set(5..6, 2);
    assert_eq!((index.at(5).map(|found| found.slot), index.at(6)), (Some(2), None));
    check_blocks(&index);
}

/// A mapping that was written in single granules, and moved to another slot when the tree was higher.
#[test]
fn lower_tree_is_replaced_with_levels() {
    let mut index = Index::new();
    // Two levels, of which each lower block is full.
    for first in 0..64 {
        index.set(first * 64..first * 64 + 64, 0);
    }
    let all = 64 * 64;
    index.set(all..all + 1, 1);
    check_blocks(&index);
    // The whole range is one entry of the third level now.
    index.set(0..all, 2);
    check_blocks(&index);
    for granule in [0, 63, 64, all - 1] {
        assert_eq!(index.at(granule), Some(GranuleMapping { slot: 2, is_alone: false }), "at {granule}");
    }
    index.clear(0..all);
    check_blocks(&index);
    assert_eq!(index.first_from(0), Some(1));
}

/// The number of bytes in blocks.
fn bytes(mappings: impl Iterator<Item = Range<u64>>) -> usize {
    let mut index = Index::new();
    mappings.enumerate().for_each(|(slot, granules)| index.set(granules, slot));
    check_blocks(&index);
    index.entries.len() * size_of::<Entry>()
}

#[test]
fn large_mappings_and_large_holes_take_little() {
    let gib = 1 << 9;
    // With granules of 2 MiB: 2 MiB, and 64 GiB.
    assert_eq!(bytes(std::iter::once(0..1)), 256);
    assert_eq!(bytes(std::iter::once(0..64 * gib)), 256);
    // One granule more does not end with a block, and takes one block at each level.
    assert_eq!(bytes(std::iter::once(0..64 * gib + 1)), 3 * 256);
    assert_eq!(bytes(std::iter::once(1 << 30..(1 << 30) + 1)), 6 * 256, "64 TiB with granules of 64 KiB");
    let count = if cfg!(miri) { 1000 } else { 100_000 };
    let many = bytes((0..count).map(|first| first..first + 1));
    assert!(many < count as usize * 5, "{many}");
}
