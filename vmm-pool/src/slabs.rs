//! Slabs: ranges that are divided into slots of one small size. Small blocks are slots.
//!
//! Each free slot has its own order, as each free range: it is ready for every stream, or it waits for the work of the stream that used
//! it last, and serves that stream alone. A stream takes its own slots first, then ready ones. So the slots of a tag and size serve all
//! streams, and a new slab is needed only if every slot is taken or waits for another stream.

use crate::classes::size_of;
use crate::space::RangeIndex;
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};
use std::collections::HashMap;

/// A slab's number.
pub(crate) type SlabIndex = u32;

/// The bytes of a slab, if its slots are small enough.
const SIZE: u64 = 64 << 10;
const FEWEST: u64 = 8;
const MAX: u64 = 256;
const WORDS: usize = (MAX / 64) as usize;

/// Slots of a slab, one bit each.
type Map = [u64; WORDS];

/// A range that is divided into slots.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    pub(crate) space: u16,
    pub(crate) range: RangeIndex,
    pub(crate) base: u64,
    pub(crate) class: u16,
    tag: u16,
    slots: u16,
    free: u16,
    /// The free slots. Of one stream, the groups are in the order of their moments.
    groups: Vec<Group>,
    /// The stream that took each slot last.
    streams: Box<[StreamIndex]>,
    /// True if its free slots are not given out any more.
    withdrawn: bool,
}

/// Free slots of a slab that wait for the same work, or ready ones.
#[derive(Clone, Debug)]
struct Group {
    /// The work after which every stream may use all of them.
    free_after: FreeAfter,
    /// The moment of the slot that was freed first.
    first: u64,
    map: Map,
}

/// The requests that a slab can serve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Kind {
    pub(crate) tag: u16,
    pub(crate) class: u16,
}

/// The slabs of a kind with slots that wait for a stream, or with ready slots.
#[derive(Debug)]
struct List {
    stream: StreamIndex,
    /// Each slab with the moment of its first group, in the order of these.
    slabs: Vec<(u64, SlabIndex)>,
}

/// The range of a slab that was removed, since no slot was taken any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) space: u16,
    pub(crate) range: RangeIndex,
    /// The work after which the range is free.
    pub(crate) free_after: FreeAfter,
}

/// All slabs of a pool.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    list: Vec<Slab>,
    vacant: Vec<SlabIndex>,
    /// The slabs with a free slot.
    partial: HashMap<Kind, Vec<List>>,
    /// Slabs that had no taken slot, but slots that waited for several streams.
    empty: Vec<SlabIndex>,
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
    /// Creates a slab in a range that is free after the work of `free_after`.
    pub(crate) fn new(kind: Kind, free_after: FreeAfter, space: u16, range: RangeIndex, base: u64) -> Self {
        let Kind { tag, class } = kind;
        let slots = slots_of(usize::from(class)) as u16;
        let mut map = [0; WORDS];
        for slot in 0..usize::from(slots) {
            map[slot / 64] |= 1 << (slot % 64);
        }
        let groups = vec![Group { free_after, first: free_after.moment(), map }];
        let streams = vec![CLEAN; usize::from(slots)].into();
        Self { space, range, base, class, tag, slots, free: slots, groups, streams, withdrawn: false }
    }

    fn kind(&self) -> Kind {
        Kind { tag: self.tag, class: self.class }
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
        self.groups.iter().any(|group| group.map[slot / 64] >> (slot % 64) & 1 == 1)
    }

    /// Returns the stream that took a slot last.
    pub(crate) fn stream_of(&self, slot: u16) -> StreamIndex {
        self.streams[usize::from(slot)]
    }

    /// Returns the moment of the first group that waits for a stream, or of the ready slots.
    fn first_of(&self, stream: StreamIndex) -> Option<u64> {
        self.groups.iter().find(|group| group.free_after.stream() == stream).map(|group| group.first)
    }

    /// Takes the free slot that waits for `order`, if there is one, for a stream.
    fn take(&mut self, order: StreamIndex, stream: StreamIndex) -> Option<u16> {
        let place = self.groups.iter().rposition(|group| group.free_after.stream() == order)?;
        let map = &mut self.groups[place].map;
        let word = map.iter().position(|word| *word != 0)?;
        let slot = word * 64 + map[word].trailing_zeros() as usize;
        map[word] &= map[word] - 1;
        if map.iter().all(|word| *word == 0) {
            self.groups.remove(place);
        }
        self.free -= 1;
        self.streams[slot] = stream;
        Some(slot as u16)
    }

    /// Takes a slot of a new slab, whose slots are all ready.
    #[cfg(feature = "snapshot")]
    pub(crate) fn take_slot(&mut self, slot: u16, stream: StreamIndex) {
        let place = usize::from(slot);
        self.groups.iter_mut().for_each(|group| group.map[place / 64] &= !(1 << (place % 64)));
        self.groups.retain(|group| group.map.iter().any(|word| *word != 0));
        self.free -= 1;
        self.streams[place] = stream;
    }

    /// Adds free slots. Slots that an event covers already are not joined with later ones: otherwise steady frees would put off the time
    /// at which other streams may use them. Returns true if no other free slots wait for the same stream.
    fn add(&mut self, map: Map, free_after: FreeAfter, covered: u64) -> bool {
        let newest =
            self.groups.iter_mut().rev().find(|group| group.free_after.stream() == free_after.stream());
        // In the order of the groups: a later moment is never wrong.
        let free_after = newest.as_ref().map_or(free_after, |newest| newest.free_after.later(free_after));
        let is_first = newest.is_none();
        match newest.filter(|newest| free_after.stream() == CLEAN || newest.free_after.moment() > covered) {
            Some(group) => {
                group.free_after = free_after;
                group.map.iter_mut().zip(map).for_each(|(word, more)| *word |= more);
            }
            None => self.groups.push(Group { free_after, first: free_after.moment(), map }),
        }
        is_first
    }

    /// Makes the slots ready that wait for the work of a stream up to a moment. Returns true if there are some, and no ready slots were
    /// there before.
    fn settle(&mut self, stream: StreamIndex, moment: u64) -> bool {
        let is_done =
            |group: &mut Group| group.free_after.stream() == stream && group.free_after.moment() <= moment;
        let done: Vec<_> = self.groups.extract_if(.., is_done).collect();
        let is_first = !done.is_empty() && self.first_of(CLEAN).is_none();
        for group in done {
            self.add(group.map, FreeAfter::FREE, 0);
        }
        is_first
    }

    /// Returns the work after which all free slots are ready; none if they wait for several streams.
    fn free_after(&self, is_done: impl Fn(FreeAfter) -> bool) -> Option<FreeAfter> {
        self.groups.iter().map(|group| group.free_after).filter(|free_after| !is_done(*free_after)).try_fold(
            FreeAfter::FREE,
            |all, free_after| {
                let is_one = all == FreeAfter::FREE || all.stream() == free_after.stream();
                is_one.then(|| all.later(free_after))
            },
        )
    }
}

impl List {
    fn insert(&mut self, first: u64, slab: SlabIndex) {
        let place = self.slabs.partition_point(|(one, _)| *one <= first);
        self.slabs.insert(place, (first, slab));
    }
}

/// Returns the list of a stream among the lists of a kind.
fn list_of(lists: &mut Vec<List>, stream: StreamIndex) -> &mut List {
    let place = lists.iter().position(|list| list.stream == stream).unwrap_or_else(|| {
        lists.push(List { stream, slabs: Vec::new() });
        lists.len() - 1
    });
    &mut lists[place]
}

impl Slabs {
    pub(crate) fn get(&self, slab: SlabIndex) -> &Slab {
        &self.list[slab as usize]
    }

    /// Returns the slab in a taken range of a space; none if the range is a block.
    pub(crate) fn in_range(&self, space: u16, range: RangeIndex) -> Option<&Slab> {
        self.iter().find(|slab| slab.space == space && slab.range == range)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slab> {
        self.list.iter().filter(|slab| slab.slots > 0)
    }

    /// Adds a new slab, and returns its number.
    pub(crate) fn insert(&mut self, slab: Slab) -> SlabIndex {
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
        let streams: Vec<_> =
            self.list[index as usize].groups.iter().map(|group| group.free_after.stream()).collect();
        streams.into_iter().for_each(|stream| self.enlist(index, stream));
        index
    }

    /// Takes up to `count` slots for a stream: its own, then ready ones; fewer or none if no more are free.
    pub(crate) fn take(
        &mut self,
        kind: Kind,
        stream: StreamIndex,
        count: usize,
        mut taken: impl FnMut(SlabIndex, u16, u64),
    ) {
        let Some(lists) = self.partial.get_mut(&kind) else { return };
        let mut left = count;
        for order in [stream, CLEAN] {
            let Some(list) = lists.iter_mut().find(|list| list.stream == order) else { continue };
            while left > 0 {
                let Some((_, index)) = list.slabs.last() else { break };
                let slab = &mut self.list[*index as usize];
                while left > 0
                    && let Some(slot) = slab.take(order, stream)
                {
                    taken(*index, slot, slab.base + u64::from(slot) * slab.slot_size());
                    left -= 1;
                }
                if slab.first_of(order).is_none() {
                    list.slabs.pop();
                }
            }
        }
    }

    /// Returns true if free slots of a kind wait for streams, or are ready.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.partial.get(&kind).is_some_and(|lists| lists.iter().any(|list| !list.slabs.is_empty()))
    }

    /// Makes the slots of a kind ready whose work is done. `done` returns the moment up to which the work of a stream is done.
    pub(crate) fn settle(&mut self, kind: Kind, done: impl Fn(StreamIndex) -> u64) {
        let Some(lists) = self.partial.get_mut(&kind) else { return };
        let mut ready = Vec::new();
        for list in lists.iter_mut().filter(|list| list.stream != CLEAN) {
            let moment = done(list.stream);
            let due = list.slabs.partition_point(|(first, _)| *first <= moment);
            for (_, index) in list.slabs.drain(..due).collect::<Vec<_>>() {
                let slab = &mut self.list[index as usize];
                if slab.settle(list.stream, moment) {
                    ready.push((0, index));
                }
                if let Some(first) = slab.first_of(list.stream) {
                    list.insert(first, index);
                }
            }
        }
        lists.retain(|list| !list.slabs.is_empty());
        if !ready.is_empty() {
            list_of(lists, CLEAN).slabs.append(&mut ready);
        }
    }

    /// Frees a slot after the work of `free_after`. `covered` is the moment up to which events cover the frees on its stream. Removes the slab if
    /// no other slot is taken and all wait for one stream at most; `is_done` returns true for work that is done.
    pub(crate) fn give(
        &mut self,
        index: SlabIndex,
        slot: u16,
        (free_after, covered): (FreeAfter, u64),
        is_done: impl Fn(FreeAfter) -> bool,
    ) -> Option<Ended> {
        let slab = &mut self.list[index as usize];
        debug_assert!(!slab.is_free(slot));
        let mut map = [0; WORDS];
        map[usize::from(slot) / 64] = 1 << (slot % 64);
        let free_after = if is_done(free_after) { FreeAfter::FREE } else { free_after };
        let is_first = slab.add(map, free_after, covered);
        slab.free += 1;
        let is_empty = slab.free == slab.slots;
        if is_first {
            self.enlist(index, free_after.stream());
        }
        if !is_empty {
            return None;
        }
        let ended = self.end(index, is_done);
        if ended.is_none() && !self.empty.contains(&index) {
            self.empty.push(index);
        }
        ended
    }

    /// Removes a slab without a taken slot whose slots have waited for several streams, once they wait for one at most.
    pub(crate) fn next_ended(&mut self, is_done: impl Fn(FreeAfter) -> bool) -> Option<Ended> {
        let is_empty = |slab: &Slab| slab.slots > 0 && slab.free == slab.slots;
        self.empty.retain(|index| is_empty(&self.list[*index as usize]));
        let place = self.empty.iter().position(|index| self.get(*index).free_after(&is_done).is_some())?;
        let index = self.empty.swap_remove(place);
        self.end(index, is_done)
    }

    /// Removes a slab without a taken slot, unless its slots wait for several streams.
    fn end(&mut self, index: SlabIndex, is_done: impl Fn(FreeAfter) -> bool) -> Option<Ended> {
        let free_after = self.get(index).free_after(is_done)?;
        self.unlist(index);
        let slab = &mut self.list[index as usize];
        let (space, range) = (slab.space, slab.range);
        (slab.slots, slab.free) = (0, 0);
        slab.groups.clear();
        self.vacant.push(index);
        Some(Ended { space, range, free_after })
    }

    /// Gives no more slots out of the slabs that `which` accepts. Taken slots can be freed.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Slab) -> bool) {
        for index in 0..self.list.len() {
            if self.list[index].slots > 0 && which(&self.list[index]) {
                self.unlist(index as SlabIndex);
                self.list[index].withdrawn = true;
            }
        }
    }

    /// Adds a slab to the list of its kind for a stream.
    fn enlist(&mut self, index: SlabIndex, stream: StreamIndex) {
        let slab = &self.list[index as usize];
        if !slab.withdrawn
            && let Some(first) = slab.first_of(stream)
        {
            list_of(self.partial.entry(slab.kind()).or_default(), stream).insert(first, index);
        }
    }

    /// Takes a slab out of the lists of its kind.
    fn unlist(&mut self, index: SlabIndex) {
        let slab = &self.list[index as usize];
        let lists = self.partial.get_mut(&slab.kind()).into_iter().flatten();
        for list in lists.filter(|list| slab.first_of(list.stream).is_some()) {
            // Slots are taken from the last slabs first, so these become empty first.
            if let Some(place) = list.slabs.iter().rposition(|(_, one)| *one == index) {
                list.slabs.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { tag: 0, class: 0 };

    fn slab(range: RangeIndex, base: u64) -> Slab {
        Slab::new(KIND, FreeAfter::new(1, 1), 0, range, base)
    }

    /// Takes slots for a stream.
    fn take(slabs: &mut Slabs, stream: StreamIndex, count: usize) -> Vec<(SlabIndex, u16, u64)> {
        let mut taken = Vec::new();
        slabs.take(KIND, stream, count, |slab, slot, address| taken.push((slab, slot, address)));
        taken
    }

    /// Frees a slot while no work is done.
    fn give(
        slabs: &mut Slabs,
        (slab, slot, _): (SlabIndex, u16, u64),
        free_after: FreeAfter,
    ) -> Option<FreeAfter> {
        slabs
            .give(slab, slot, (free_after, 0), |free_after| free_after == FreeAfter::FREE)
            .map(|ended| ended.free_after)
    }

    /// Steady frees do not put off the time at which a slot is ready.
    #[test]
    fn covered_slots_ignore_later_frees() {
        let mut slabs = Slabs::default();
        slabs.insert(slab(0, 0x1000));
        let taken = take(&mut slabs, 1, 256);
        let never = |free_after: FreeAfter| free_after == FreeAfter::FREE;
        for (number, moment) in (2..).enumerate().take(3) {
            let (slab, slot, _) = taken[number];
            slabs.give(slab, slot, (FreeAfter::new(1, moment), moment - 1), never);
        }
        slabs.settle(KIND, |_| 3);
        assert_eq!(take(&mut slabs, 2, 9), taken[..2]);
        assert_eq!(take(&mut slabs, 1, 9), [taken[2]]);
    }

    #[test]
    fn withdrawn_slabs_serve_no_stream() {
        let mut slabs = Slabs::default();
        slabs.insert(slab(0, 0x1000));
        let taken = take(&mut slabs, 1, 2);
        slabs.withdraw(|_| true);
        assert_eq!(give(&mut slabs, taken[0], FreeAfter::new(2, 5)), None);
        assert!(!slabs.has(KIND) && take(&mut slabs, 1, 1).is_empty() && take(&mut slabs, 2, 1).is_empty());
        assert_eq!(give(&mut slabs, taken[1], FreeAfter::new(2, 6)), None);
        assert_eq!(
            slabs.next_ended(|free_after| free_after.stream() == 2).map(|ended| ended.free_after),
            Some(FreeAfter::new(1, 1))
        );
    }
}
