//! Ranges of addresses, taken and free, that cover a space without gaps. Free ranges are found by size and stream.
//!
//! This module does not consider physical memory, or the work that still uses it. Free neighbours always become one range,
//! listed under the stream that freed the largest part. The last range is always free: it is the end of the space.

use super::bins::{Bins, NONE, UNIT};
use crate::stream_order::{CLEAN, StreamIndex};

/// A range's number.
pub(crate) type RangeIndex = u32;

/// A range of a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The stream that owns the range; of a free range, the stream that freed the largest part.
    pub(super) stream: StreamIndex,
    /// The neighbours in the space.
    before: RangeIndex,
    behind: RangeIndex,
    /// The neighbours in the bin.
    back: RangeIndex,
    next: RangeIndex,
    bin: u16,
    pub(super) state: RangeState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeState {
    Taken,
    Free,
    /// The number is not in use.
    Vacant,
}

impl Range {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }
}

#[derive(Debug)]
pub(super) struct Ranges {
    list: Vec<Range>,
    vacant: Vec<RangeIndex>,
    /// The free ranges, by stream.
    free: Vec<Bins>,
    first: RangeIndex,
    last: RangeIndex,
    /// The end of the highest range that was ever taken.
    touched: u64,
}

impl Ranges {
    /// Creates one free range of `size` bytes, a multiple of the unit.
    pub(super) fn new(size: u64) -> Self {
        let all = Range {
            offset: 0,
            size,
            stream: CLEAN,
            before: NONE,
            behind: NONE,
            back: NONE,
            next: NONE,
            bin: 0,
            state: RangeState::Free,
        };
        Self { list: vec![all], vacant: Vec::new(), free: Vec::new(), first: 0, last: 0, touched: 0 }
    }

    pub(super) fn get(&self, range: RangeIndex) -> &Range {
        &self.list[range as usize]
    }

    fn at(&mut self, range: RangeIndex) -> &mut Range {
        &mut self.list[range as usize]
    }

    /// Returns the end of the last taken range.
    pub(super) fn end(&self) -> u64 {
        self.get(self.last).offset
    }

    /// Returns all ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Range> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            let range = self.list.get(next as usize)?;
            next = range.behind;
            Some(range)
        })
    }

    /// Returns the taken range that contains an offset. The search begins at `near`, a range that may be close.
    pub(super) fn taken_at(&self, offset: u64, near: RangeIndex) -> Option<(RangeIndex, &Range)> {
        let good = self.list.get(near as usize).is_some_and(|range| range.state != RangeState::Vacant);
        let mut index = if good { near } else { self.first };
        loop {
            let range = self.list.get(index as usize)?;
            if offset < range.offset {
                index = range.before;
            } else if offset >= range.end() {
                index = range.behind;
            } else {
                return (range.state == RangeState::Taken).then_some((index, range));
            }
        }
    }

    /// Returns free ranges of some streams with at least `size` bytes, the best fit first. The last range of the space is not
    /// included.
    pub(super) fn fitting(
        &self,
        sets: std::ops::Range<StreamIndex>,
        size: u64,
    ) -> impl Iterator<Item = RangeIndex> {
        let count = self.free.len();
        let sets = &self.free[count.min(sets.start.into())..count.min(sets.end.into())];
        let next = move |bin| sets.iter().filter_map(|bins| bins.filled_from(bin)).min();
        let mut bin = next(Bins::of(size));
        let mut from = size;
        let mut above = 0;
        std::iter::from_fn(move || {
            loop {
                let here = bin?;
                if let Some((index, fit)) = self.best_of(sets, here, from, above) {
                    above = self.get(index).offset + 1;
                    from = fit;
                    return Some(index);
                }
                bin = next(here + 1);
                (from, above) = (size, 0);
            }
        })
    }

    /// Returns the smallest range of a bin with at least `size` bytes, and of several the first one. Of those with exactly
    /// `size` bytes, it considers only ranges from `above` on. Looks at the beginning of each stream's list only.
    fn best_of(&self, sets: &[Bins], bin: usize, size: u64, above: u64) -> Option<(RangeIndex, u64)> {
        const LOOK: usize = 32;
        let mut best: Option<((u64, u64), RangeIndex)> = None;
        for bins in sets {
            let mut index = bins.head(bin);
            for _ in 0..LOOK {
                let Some(range) = self.list.get(index as usize) else { break };
                let key = (range.size, range.offset);
                if key >= (size, above) && best.is_none_or(|(best, _)| key < best) {
                    best = Some((key, index));
                }
                index = range.next;
            }
        }
        best.map(|((size, _), index)| (index, size))
    }

    /// Returns the last range.
    pub(super) fn rest(&self) -> RangeIndex {
        self.last
    }

    /// Returns the end of the highest range that was ever taken.
    pub(super) fn touched(&self) -> u64 {
        self.touched
    }

    /// Takes `size` bytes at `offset` from a free range.
    pub(super) fn take(
        &mut self,
        from: RangeIndex,
        offset: u64,
        size: u64,
        stream: StreamIndex,
    ) -> RangeIndex {
        let range = *self.get(from);
        debug_assert!(
            range.state == RangeState::Free && offset >= range.offset && offset + size <= range.end()
        );
        self.unlist(from);
        self.touched = self.touched.max(offset + size);
        let mut taken = from;
        if offset > range.offset {
            taken = self.split(from, offset);
            self.enlist(from);
        }
        // The last range is kept even if it is empty: searches never look behind it.
        if offset + size < range.end() || taken == self.last {
            let rest = self.split(taken, offset + size);
            self.enlist(rest);
        }
        let at = self.at(taken);
        at.state = RangeState::Taken;
        at.stream = stream;
        taken
    }

    /// Frees a taken range, and joins it with its free neighbours.
    pub(super) fn give(&mut self, range: RangeIndex) {
        let mut range = range;
        self.at(range).state = RangeState::Free;
        let Range { before, behind, .. } = *self.get(range);
        if before != NONE && self.get(before).state == RangeState::Free {
            self.unlist(before);
            range = self.join(before, range);
        }
        if behind != NONE && self.get(behind).state == RangeState::Free {
            self.unlist(behind);
            range = self.join(range, behind);
        }
        self.enlist(range);
    }

    /// Cuts a range in two. Returns the number of the part from `offset` on, which is a copy of the first part and in no bin.
    fn split(&mut self, range: RangeIndex, offset: u64) -> RangeIndex {
        let old = *self.get(range);
        let cut = Range { offset, size: old.end() - offset, before: range, ..old };
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.at(index) = cut;
                index
            }
            None => {
                self.list.push(cut);
                (self.list.len() - 1) as RangeIndex
            }
        };
        let first = self.at(range);
        first.size = offset - old.offset;
        first.behind = index;
        if old.behind == NONE {
            self.last = index;
        } else {
            self.at(old.behind).before = index;
        }
        index
    }

    /// Joins two neighbours that are in no bin.
    fn join(&mut self, one: RangeIndex, other: RangeIndex) -> RangeIndex {
        let gone = *self.get(other);
        self.at(other).state = RangeState::Vacant;
        self.vacant.push(other);
        let at = self.at(one);
        if gone.size > at.size {
            at.stream = gone.stream;
        }
        at.size += gone.size;
        at.behind = gone.behind;
        if gone.behind == NONE {
            self.last = one;
        } else {
            self.at(gone.behind).before = one;
        }
        one
    }

    fn enlist(&mut self, range: RangeIndex) {
        let Range { size, stream, .. } = *self.get(range);
        if range == self.last {
            return;
        }
        let set = usize::from(stream);
        while self.free.len() <= set {
            self.free.push(Bins::new());
        }
        let bin = Bins::of(size);
        let head = self.free[set].head(bin);
        let at = self.at(range);
        (at.back, at.next, at.bin) = (NONE, head, bin as u16);
        if head != NONE {
            self.at(head).back = range;
        }
        self.free[set].set_head(bin, range);
    }

    fn unlist(&mut self, range: RangeIndex) {
        if range == self.last {
            return;
        }
        let Range { back, next, bin, stream, .. } = *self.get(range);
        if next != NONE {
            self.at(next).back = back;
        }
        if back == NONE {
            self.free[usize::from(stream)].set_head(usize::from(bin), next);
        } else {
            self.at(back).next = next;
        }
    }
}

/// Returns `size` rounded up to a multiple of the unit.
pub(crate) fn rounded(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4096;

    /// A range as the test knows it: its offset and size in units, its stream, and its number if it is taken.
    type Known = (u64, u64, StreamIndex, Option<RangeIndex>);

    /// Joins free neighbours under the stream of the largest part; of equal parts, the first.
    fn joined(all: &[Known]) -> Vec<Known> {
        let mut joined: Vec<Known> = Vec::new();
        for &one in all {
            match joined.last_mut() {
                Some((_, size, stream, None)) if one.3.is_none() => {
                    *stream = if one.1 > *size { one.2 } else { *stream };
                    *size += one.1;
                }
                _ => joined.push(one),
            }
        }
        joined
    }

    #[track_caller]
    fn agree(ranges: &Ranges, known: &[Known], touched: u64) {
        let found: Vec<_> =
            ranges.iter().map(|range| (range.offset / UNIT, range.size / UNIT, range.stream)).collect();
        let expected: Vec<_> = known.iter().map(|one| (one.0, one.1, one.2)).collect();
        assert_eq!(found, expected);
        assert_eq!((ranges.end(), ranges.touched()), (known[known.len() - 1].0 * UNIT, touched * UNIT));
        assert_eq!(ranges.get(ranges.rest()).offset, ranges.end());
        // The free ranges by size, and of one size by offset, without the last.
        for (sets, least) in [(0..4, 1), (1..2, 3), (2..4, 40), (1..9, 70)] {
            let is_fitting = |one: &&Known| one.3.is_none() && one.1 >= least && sets.contains(&one.2);
            let mut fitting: Vec<_> =
                known[..known.len() - 1].iter().filter(is_fitting).map(|one| (one.1, one.0)).collect();
            fitting.sort_unstable();
            let found = ranges.fitting(sets, least * UNIT).map(|range| ranges.get(range));
            let found: Vec<_> = found.map(|range| (range.size / UNIT, range.offset / UNIT)).collect();
            assert_eq!(found, fitting);
        }
        // The search may begin at any range.
        for &(offset, size, _, taken) in known.iter().filter(|one| one.1 > 0) {
            for (at, near) in [(offset * UNIT, 0), ((offset + size) * UNIT - 1, 3), (offset * UNIT + 1, 1000)]
            {
                assert_eq!(ranges.taken_at(at, near).map(|(range, _)| range), taken, "at {at}");
            }
        }
    }

    /// Takes parts of free ranges and frees them, at random, next to a list that is simple.
    #[test]
    fn ranges_are_those_of_a_simple_list() {
        let mut ranges = Ranges::new(SIZE * UNIT);
        let mut known: Vec<Known> = vec![(0, SIZE, CLEAN, None)];
        let (mut touched, mut state) = (0, 7_u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let index = random(known.len() as u64) as usize;
            let (offset, size, stream, taken) = known[index];
            if let Some(range) = taken {
                ranges.give(range);
                known[index].3 = None;
                known = joined(&known);
            } else if known.len() < 48 {
                let part = size.min(1 + random(90));
                let skip = if random(3) == 0 { random(size - part + 1).min(50) } else { 0 };
                if part == 0 {
                    continue;
                }
                let number = ranges.list.iter().position(|range| {
                    range.state == RangeState::Free
                        && (range.offset, range.size) == (offset * UNIT, size * UNIT)
                });
                let user = 1 + random(3) as StreamIndex;
                let number = number.map_or(NONE, |number| number as RangeIndex);
                let range = ranges.take(number, (offset + skip) * UNIT, part * UNIT, user);
                touched = touched.max(offset + skip + part);
                let is_last = index + 1 == known.len();
                let (behind, rest) = (offset + skip + part, size - skip - part);
                let parts = [
                    (skip > 0).then_some((offset, skip, stream, None)),
                    Some((offset + skip, part, user, Some(range))),
                    (rest > 0 || is_last).then_some((behind, rest, stream, None)),
                ];
                known.splice(index..=index, parts.into_iter().flatten());
            }
            agree(&ranges, &known, touched);
        }
    }
}
