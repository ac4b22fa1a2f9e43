//! The lookup from a granule of a region to its mapping: a radix tree, in which a lookup takes two or three loads from compact
//! arrays, whatever the number of mappings.
//!
//! All blocks lie in one array; each has 64 entries of 4 bytes. The height of the tree depends on the last granule: one block up
//! to 64 granules, two levels up to 4096, three up to 262,144, and so on. A range of granules that belongs to one mapping is one
//! entry at the highest possible level, and a range without mappings has no block. So neither large mappings nor large holes use
//! much memory.

use std::ops::Range;

const BITS: u32 = 6;
const FAN: usize = 1 << BITS;

/// No mapping; or a slot, which is the number of a mapping; or the block one level below.
///
/// Slots and block numbers have 30 bits. That number of mappings is out of reach: their records would take 100 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry(u32);

impl Entry {
    const NONE: Self = Self(0);
    const SLOT: u32 = 0b01;
    const BELOW: u32 = 0b10;
    /// A slot whose mapping is this one granule.
    const ALONE: u32 = 0b11;

    fn slot(slot: usize, is_alone: bool) -> Self {
        debug_assert!(slot < 1 << 30, "slot {slot}");
        Self((slot as u32) << 2 | if is_alone { Self::ALONE } else { Self::SLOT })
    }

    fn below(block: u32) -> Self {
        Self(block << 2 | Self::BELOW)
    }

    fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The block below, if the entry is one.
    fn block(self) -> Option<u32> {
        (self.0 & 0b11 == Self::BELOW).then_some(self.0 >> 2)
    }

    fn found(self) -> Option<GranuleMapping> {
        let is_alone = self.0 & 0b11 == Self::ALONE;
        (!self.is_none()).then_some(GranuleMapping { slot: (self.0 >> 2) as usize, is_alone })
    }
}

/// The mapping of a granule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GranuleMapping {
    pub(super) slot: usize,
    /// True if the mapping is this one granule, so that its place need not be looked up.
    pub(super) is_alone: bool,
}

#[derive(Debug)]
pub(super) struct Index {
    /// The blocks, one behind the other; none until the first mapping.
    entries: Vec<Entry>,
    /// Unused blocks. Their entries are empty.
    spare: Vec<u32>,
    root: u32,
    /// The number of bits of a granule's number below the bits that choose an entry of the root.
    top: u32,
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), spare: Vec::new(), root: 0, top: 0 }
    }

    /// The mapping of a granule.
    #[inline]
    pub(super) fn at(&self, granule: u64) -> Option<GranuleMapping> {
        if self.is_beyond(granule) {
            return None;
        }
        let (mut block, mut shift) = (self.root, self.top);
        loop {
            let entry = self.entry(place(block, granule >> shift));
            match entry.block() {
                None => return entry.found(),
                Some(below) => (block, shift) = (below, shift - BITS),
            }
        }
    }

    /// The mapping of a granule, or the next one behind it.
    pub(super) fn first_from(&self, granule: u64) -> Option<usize> {
        let mut from = granule;
        while !self.is_beyond(from) {
            let (mut block, mut shift) = (self.root, self.top);
            loop {
                let digit = digit(from >> shift);
                let Some(skip) = self.block(block).get(digit..)?.iter().position(|one| !one.is_none()) else {
                    from = ((from >> shift >> BITS) + 1) << BITS << shift;
                    break;
                };
                if skip > 0 {
                    from = ((from >> shift) + skip as u64) << shift;
                }
                let entry = self.entry(place(block, from >> shift));
                match entry.block() {
                    None => return Some(entry.found()?.slot),
                    Some(below) => (block, shift) = (below, shift - BITS),
                }
            }
        }
        None
    }

    /// The mapping of a granule, or the last one before it.
    pub(super) fn last_to(&self, granule: u64) -> Option<usize> {
        let mut to = granule.min(self.last());
        loop {
            let (mut block, mut shift) = (self.root, self.top);
            loop {
                let digit = digit(to >> shift);
                let Some(found) = self.block(block).get(..=digit)?.iter().rposition(|one| !one.is_none())
                else {
                    to = (to >> shift >> BITS << BITS << shift).checked_sub(1)?;
                    break;
                };
                if found < digit {
                    to = (((to >> shift) - (digit - found) as u64 + 1) << shift) - 1;
                }
                let entry = self.entry(place(block, to >> shift));
                match entry.block() {
                    None => return Some(entry.found()?.slot),
                    Some(below) => (block, shift) = (below, shift - BITS),
                }
            }
        }
    }

    /// Assigns granules to a mapping. Until now they belonged to no mapping, or to this mapping under another slot.
    pub(super) fn set(&mut self, granules: Range<u64>, slot: usize) {
        let is_alone = granules.end - granules.start == 1;
        self.raise(granules.end.saturating_sub(1));
        self.write(self.root, self.top, granules, Entry::slot(slot, is_alone));
    }

    /// Removes all granules of a mapping.
    pub(super) fn clear(&mut self, granules: Range<u64>) {
        self.write(self.root, self.top, granules, Entry::NONE);
    }

    /// Removes everything, and releases all memory but one block.
    pub(super) fn reset(&mut self) {
        self.spare = Vec::new();
        self.entries.truncate(FAN);
        self.entries.shrink_to(FAN);
        self.entries.fill(Entry::NONE);
        (self.root, self.top) = (0, 0);
    }

    /// The last granule within the height of the tree.
    fn last(&self) -> u64 {
        ((FAN as u64) << self.top) - 1
    }

    fn is_beyond(&self, granule: u64) -> bool {
        granule >> self.top >> BITS != 0
    }

    /// The entry at a place in the array.
    fn entry(&self, place: usize) -> Entry {
        self.entries.get(place).copied().unwrap_or(Entry::NONE)
    }

    fn block(&self, block: u32) -> &[Entry] {
        self.entries.get(place(block, 0)..).and_then(|rest| rest.get(..FAN)).unwrap_or_default()
    }

    fn put(&mut self, place: usize, entry: Entry) {
        if let Some(there) = self.entries.get_mut(place) {
            *there = entry;
        }
    }

    /// Returns an empty block.
    fn new_block(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            let block = self.entries.len() / FAN;
            self.entries.resize(self.entries.len() + FAN, Entry::NONE);
            block as u32
        })
    }

    /// Raises the tree until it covers a granule.
    fn raise(&mut self, granule: u64) {
        if self.entries.is_empty() {
            self.root = self.new_block();
        }
        while self.is_beyond(granule) {
            if !self.is_empty(self.root) {
                let old = std::mem::replace(&mut self.root, 0);
                self.root = self.new_block();
                self.put(place(self.root, 0), Entry::below(old));
            }
            self.top += BITS;
        }
    }

    fn is_empty(&self, block: u32) -> bool {
        // One comparison instead of one for each entry.
        self.block(block).iter().fold(0, |all, entry| all | entry.0) == 0
    }

    /// Writes an entry for granules below a block. An entry of which all granules are written is written at this level, and its
    /// lower levels are released. Lower blocks that become empty are released too.
    fn write(&mut self, block: u32, shift: u32, granules: Range<u64>, entry: Entry) {
        let mut from = granules.start;
        while from < granules.end {
            let next = ((from >> shift) + 1) << shift;
            let to = next.min(granules.end);
            let place = place(block, from >> shift);
            let there = self.entry(place).block();
            if to - from == 1 << shift {
                self.put(place, entry);
                // These levels were written when the tree was lower.
                if let Some(below) = there {
                    self.release(below);
                }
            } else {
                let below = there.unwrap_or_else(|| self.new_block());
                self.write(below, shift - BITS, from..to, entry);
                if there.is_none() {
                    self.put(place, Entry::below(below));
                } else if entry.is_none() && self.is_empty(below) {
                    self.put(place, Entry::NONE);
                    self.spare.push(below);
                }
            }
            from = to;
        }
    }

    /// Releases a block and all blocks below it.
    fn release(&mut self, block: u32) {
        for digit in 0..FAN as u64 {
            if let Some(below) = self.entry(place(block, digit)).block() {
                self.release(below);
            }
            self.put(place(block, digit), Entry::NONE);
        }
        self.spare.push(block);
    }
}

/// The position in a block that the lowest bits of a number choose.
fn digit(number: u64) -> usize {
    number as usize & (FAN - 1)
}

/// The place of that entry in the array.
fn place(block: u32, number: u64) -> usize {
    block as usize * FAN + digit(number)
}

#[cfg(test)]
mod tests;
