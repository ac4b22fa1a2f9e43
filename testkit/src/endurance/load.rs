//! The load of a program: its live bytes, and bytes whose work is not done, now and at most.

use super::groups::{footprint, group_of, is_slot, largest};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes and blocks that are live or wait for work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
    /// The most of each at one time.
    pub(super) peak: u64,
    pub(super) peak_blocks: u64,
}

impl Load {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.blocks += 1;
        self.peak = self.peak.max(self.bytes);
        self.peak_blocks = self.peak_blocks.max(self.blocks);
    }

    pub(super) fn remove(&mut self, bytes: u64, blocks: u64) {
        self.bytes -= bytes;
        self.blocks -= blocks;
    }
}

/// The load of a tag, by the sizes of blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct TagLoad {
    /// The load of ranges, by group, with the addresses that alignments need.
    pub(super) groups: BTreeMap<u32, Load>,
    /// The load of slots, by size.
    pub(super) slots: BTreeMap<u64, Load>,
    /// The largest blocks of the addresses that the tag has.
    pub(super) largest: BTreeSet<u64>,
    /// The blocks of the tag that are live or wait for work.
    pub(super) blocks: u64,
    /// True if no handle of the tag is left.
    pub(super) ended: bool,
}

/// The part of a load that one block is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) tag: u64,
    pub(super) capacity: u64,
    pub(super) alignment: u64,
    /// The addresses that count for the block, less what other blocks have taken of them.
    pub(super) bytes: u64,
}

impl Part {
    pub(super) fn new(tag: u64, capacity: u64, alignment: u64) -> Self {
        Self { tag, capacity, alignment, bytes: footprint(capacity, alignment) }
    }

    /// Returns true if the block is a slot of a slab.
    pub(super) fn is_slot(&self) -> bool {
        is_slot(self.capacity, self.alignment)
    }
}

impl TagLoad {
    /// Adds a block.
    pub(super) fn add(&mut self, part: &Part) {
        self.largest.insert(largest(part.capacity, part.alignment));
        self.at(part).add(part.bytes);
    }

    pub(super) fn at(&mut self, part: &Part) -> &mut Load {
        match part.is_slot() {
            true => self.slots.entry(part.capacity).or_default(),
            false => self.groups.entry(group_of(part.capacity)).or_default(),
        }
    }
}
