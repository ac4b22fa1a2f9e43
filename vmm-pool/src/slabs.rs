//! Slabs: ranges that are divided into slots of one small size. Small blocks are slots.

use crate::classes::size_of;
use crate::space::RangeIndex;
use crate::stream_order::StreamIndex;
use std::collections::HashMap;

/// A slab's number.
pub(crate) type SlabIndex = u32;

/// The bytes of a slab, if its slots are small enough.
const SIZE: u64 = 64 << 10;
const FEWEST: u64 = 8;
const MAX: u64 = 256;
const WORDS: usize = (MAX / 64) as usize;

/// A range that is divided into slots.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    pub(crate) space: u16,
    pub(crate) range: RangeIndex,
    pub(crate) base: u64,
    pub(crate) class: u16,
    pub(crate) tag: u16,
    pub(crate) stream: StreamIndex,
    slots: u16,
    free: u16,
    /// One bit per slot, set if the slot is free.
    map: [u64; WORDS],
    /// True if the slab is in the list of its kind.
    listed: bool,
    /// True if its free slots are not given out any more.
    withdrawn: bool,
}

/// The requests that a slab can serve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Kind {
    tag: u16,
    stream: StreamIndex,
    class: u16,
}

/// The state of a slab after a slot was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// Other slots of the slab are taken.
    Kept,
    /// No slot is taken: the caller must remove the slab and free its range.
    Empty,
}

/// All slabs of a pool.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    list: Vec<Slab>,
    vacant: Vec<SlabIndex>,
    /// The slabs with a free slot.
    partial: HashMap<Kind, Vec<SlabIndex>>,
}

/// Returns the size of a class's slabs.
pub(crate) const fn slab_size(class: usize) -> u64 {
    slots_of(class) * size_of(class)
}

const fn slots_of(class: usize) -> u64 {
    let slots = SIZE / size_of(class);
    if slots < FEWEST {
        FEWEST
    } else if slots > MAX {
        MAX
    } else {
        slots
    }
}

impl Slab {
    pub(crate) fn new(
        class: usize,
        tag: u16,
        stream: StreamIndex,
        space: u16,
        range: RangeIndex,
        base: u64,
    ) -> Self {
        let slots = slots_of(class) as u16;
        let mut map = [0; WORDS];
        for slot in 0..usize::from(slots) {
            map[slot / 64] |= 1 << (slot % 64);
        }
        let (class, free) = (class as u16, slots);
        Self { space, range, base, class, tag, stream, slots, free, map, listed: false, withdrawn: false }
    }

    fn kind(&self) -> Kind {
        Kind { tag: self.tag, stream: self.stream, class: self.class }
    }

    pub(crate) fn slot_size(&self) -> u64 {
        size_of(usize::from(self.class))
    }

    pub(crate) fn size(&self) -> u64 {
        slab_size(usize::from(self.class))
    }

    pub(crate) fn free(&self) -> u16 {
        self.free
    }

    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    pub(crate) fn is_free(&self, slot: u16) -> bool {
        let slot = usize::from(slot);
        self.map[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Takes a free slot, if there is one.
    fn take(&mut self) -> Option<u16> {
        let word = self.map.iter().position(|word| *word != 0)?;
        let bit = self.map[word].trailing_zeros();
        self.map[word] &= self.map[word] - 1;
        self.free -= 1;
        Some(word as u16 * 64 + bit as u16)
    }
}

impl Slabs {
    pub(crate) fn get(&self, slab: SlabIndex) -> &Slab {
        &self.list[slab as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slab> {
        self.list.iter().filter(|slab| slab.slots > 0)
    }

    /// Adds a slab whose slots are all free.
    pub(crate) fn insert(&mut self, slab: Slab) {
        let kind = slab.kind();
        let slab = Slab { listed: true, ..slab };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.list[index as usize] = slab;
                index
            }
            None => {
                self.list.push(slab);
                (self.list.len() - 1) as SlabIndex
            }
        };
        self.partial.entry(kind).or_default().push(index);
    }

    /// Takes up to `count` slots; fewer or none if no more are free.
    pub(crate) fn take(
        &mut self,
        (tag, stream, class): (u16, StreamIndex, usize),
        count: usize,
        mut taken: impl FnMut(SlabIndex, u16, u64),
    ) {
        let Some(partial) = self.partial.get_mut(&Kind { tag, stream, class: class as u16 }) else { return };
        let mut left = count;
        while left > 0 {
            let Some(index) = partial.last() else { return };
            let slab = &mut self.list[*index as usize];
            while left > 0
                && let Some(slot) = slab.take()
            {
                taken(*index, slot, slab.base + u64::from(slot) * slab.slot_size());
                left -= 1;
            }
            if slab.free == 0 {
                slab.listed = false;
                partial.pop();
            }
        }
    }

    /// Frees a slot.
    pub(crate) fn give(&mut self, index: SlabIndex, slot: u16) -> Given {
        let slab = &mut self.list[index as usize];
        debug_assert!(!slab.is_free(slot));
        slab.map[usize::from(slot) / 64] |= 1 << (slot % 64);
        slab.free += 1;
        if slab.free == slab.slots {
            return Given::Empty;
        }
        if !slab.listed && !slab.withdrawn {
            slab.listed = true;
            self.partial.entry(slab.kind()).or_default().push(index);
        }
        Given::Kept
    }

    /// Removes a slab that has no taken slot.
    pub(crate) fn remove(&mut self, index: SlabIndex) {
        self.unlist(index);
        let slab = &mut self.list[index as usize];
        (slab.slots, slab.free) = (0, 0);
        self.vacant.push(index);
    }

    /// Gives no more slots out of the slabs that `which` accepts. Taken slots can be freed.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Slab) -> bool) {
        for index in 0..self.list.len() {
            let slab = &mut self.list[index];
            if slab.slots > 0 && which(slab) {
                slab.withdrawn = true;
                self.unlist(index as SlabIndex);
            }
        }
    }

    /// Takes a slab out of the list of its kind.
    fn unlist(&mut self, index: SlabIndex) {
        let slab = &mut self.list[index as usize];
        if slab.listed
            && let Some(partial) = self.partial.get_mut(&slab.kind())
        {
            // Slots are taken from the last slabs first, so these become empty first.
            if let Some(place) = partial.iter().rposition(|one| *one == index) {
                partial.remove(place);
            }
        }
        slab.listed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: (u16, StreamIndex, usize) = (0, 1, 0);

    fn take(slabs: &mut Slabs, count: usize) -> Vec<(SlabIndex, u16, u64)> {
        let mut taken = Vec::new();
        slabs.take(KIND, count, |slab, slot, address| taken.push((slab, slot, address)));
        taken
    }

    #[test]
    fn every_slot_is_given_out_once() {
        let mut slabs = Slabs::default();
        assert!(take(&mut slabs, 1).is_empty());
        slabs.insert(Slab::new(0, 0, 1, 0, 0, 0x1000));
        slabs.insert(Slab::new(0, 0, 1, 0, 1, 0x10_0000));
        let taken = take(&mut slabs, 1000);
        assert_eq!(taken.len(), 512);
        let mut addresses: Vec<_> = taken.iter().map(|(.., address)| *address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 512);
        let (slab, slot, address) = taken[77];
        assert_eq!(slabs.give(slab, slot), Given::Kept);
        assert_eq!(take(&mut slabs, 2), [(slab, slot, address)]);
    }

    #[test]
    fn an_empty_slab_is_told_of_and_removed() {
        let mut slabs = Slabs::default();
        slabs.insert(Slab::new(0, 0, 1, 0, 0, 0x1000));
        let taken = take(&mut slabs, 3);
        let given: Vec<_> = taken.iter().map(|(slab, slot, _)| slabs.give(*slab, *slot)).collect();
        assert_eq!(given, [Given::Kept, Given::Kept, Given::Empty]);
        slabs.remove(0);
        assert!(take(&mut slabs, 1).is_empty());
        assert_eq!(slabs.iter().count(), 0);
    }
}
