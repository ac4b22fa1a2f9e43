//! Ranges of addresses, taken and free, that cover a space without gaps. Free ranges are found by size and stream.
//!
//! Each free range has its own order: the work after which any stream may use it. It is *ready* if that work is done. Else it
//! *waits*, and serves the stream that freed it alone. This module does not consider physical memory.
//!
//! To a stream, a ready range and the neighbours that wait for it are one *run*. A request finds the runs of its stream, and the ready
//! ranges.
//!
//! Free neighbours become one range if both are ready, or if both wait for the same stream. A waiting range that an event covers
//! already is not joined with memory that is freed later: otherwise steady frees beside it would put off the time at which other streams
//! may use it. The last range is always free and ready: it is the end of the space.

mod lists;
#[cfg(test)]
mod tests;

use super::bins::{Bins, NONE, UNIT};
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};

/// A range's number.
pub(crate) type RangeIndex = u32;

/// A range of a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The work after which every stream may use a free range. The stream of a taken range is the one that owns it.
    pub(super) free_after: FreeAfter,
    /// The neighbours in the space.
    before: RangeIndex,
    behind: RangeIndex,
    /// The size under which the range is listed: its own, or the size of its run if it waits.
    listed: u64,
    /// The neighbours in the bin.
    back: RangeIndex,
    next: RangeIndex,
    /// The neighbours in the list of the ranges that wait for the same stream.
    older: RangeIndex,
    newer: RangeIndex,
    /// The bin, or [`UNLISTED`].
    bin: u16,
    pub(super) state: RangeState,
}

/// The largest alignment that sizes are rounded up to.
const MOST_ROUNDED: u64 = 4 << 10;

/// The bin of a range that is in none.
const UNLISTED: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeState {
    Taken,
    Free,
    /// The number is not in use.
    Vacant,
}

impl Range {
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }

    #[inline]
    pub(super) fn stream(&self) -> StreamIndex {
        self.free_after.stream()
    }

    #[inline]
    fn is_free(&self) -> bool {
        self.state == RangeState::Free
    }

    /// Returns true if the range is free but its work may not be done.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.is_free() && self.stream() != CLEAN
    }

    /// Returns true if new work on a stream may use the range; for [`CLEAN`], if the range is ready.
    #[inline]
    fn serves(&self, stream: StreamIndex) -> bool {
        self.is_free() && (self.stream() == CLEAN || self.stream() == stream)
    }
}

/// The runs of one stream, each listed as its first range that waits, or all ready ranges.
#[derive(Debug)]
struct Set {
    bins: Bins,
    /// The ends of the list of waiting ranges, in the order of their moments.
    oldest: RangeIndex,
    newest: RangeIndex,
}

impl Set {
    fn new() -> Box<Self> {
        Box::new(Self { bins: Bins::new(), oldest: NONE, newest: NONE })
    }
}

#[derive(Debug)]
pub(super) struct Ranges {
    list: Vec<Range>,
    vacant: Vec<RangeIndex>,
    /// The free ranges, by the stream that they wait for; the first entry has the ready ones.
    sets: Vec<Option<Box<Set>>>,
    /// The streams that ranges wait for.
    waited_for: Vec<StreamIndex>,
    first: RangeIndex,
    last: RangeIndex,
    /// The end of the highest range that was ever taken.
    touched: u64,
}

/// The offsets at which a freed range was joined with others that wait for the same stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Joined {
    pub(super) before: Option<u64>,
    pub(super) behind: Option<u64>,
}

impl Ranges {
    /// Creates one free range of `size` bytes, a multiple of the unit.
    pub(super) fn new(size: u64) -> Self {
        let all = Range {
            offset: 0,
            size,
            free_after: FreeAfter::FREE,
            before: NONE,
            behind: NONE,
            back: NONE,
            next: NONE,
            older: NONE,
            newer: NONE,
            listed: 0,
            bin: UNLISTED,
            state: RangeState::Free,
        };
        let (vacant, sets, waited_for) = (Vec::new(), vec![Some(Set::new())], Vec::new());
        Self { list: vec![all], vacant, sets, waited_for, first: 0, last: 0, touched: 0 }
    }

    #[inline]
    pub(super) fn get(&self, range: RangeIndex) -> &Range {
        &self.list[range as usize]
    }

    #[inline]
    fn at(&mut self, range: RangeIndex) -> &mut Range {
        &mut self.list[range as usize]
    }

    /// Returns the end of the last taken or waiting range.
    pub(super) fn end(&self) -> u64 {
        self.get(self.last).offset
    }

    /// Returns all ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.iter_from(self.first)
    }

    /// Returns a range and those behind it, in order.
    pub(super) fn iter_from(&self, range: RangeIndex) -> impl Iterator<Item = &Range> {
        let mut next = range;
        std::iter::from_fn(move || {
            let range = self.list.get(next as usize)?;
            next = range.behind;
            Some(range)
        })
    }

    /// Returns the taken range that contains an offset. The search begins at `near`, a range that may be close.
    #[inline]
    pub(super) fn taken_at(&self, offset: u64, near: RangeIndex) -> Option<(RangeIndex, &Range)> {
        let index = self.range_at(offset, near)?;
        let range = self.get(index);
        (range.state == RangeState::Taken).then_some((index, range))
    }

    /// Returns the range that contains an offset. The search begins at `near`, a range that may be close.
    #[inline]
    pub(super) fn range_at(&self, offset: u64, near: RangeIndex) -> Option<RangeIndex> {
        let good = self.list.get(near as usize).is_some_and(|range| range.state != RangeState::Vacant);
        let mut index = if good { near } else { self.first };
        loop {
            let range = self.list.get(index as usize)?;
            if offset < range.offset {
                index = range.before;
            } else if offset >= range.end() {
                index = range.behind;
            } else {
                return Some(index);
            }
        }
    }

    /// Returns the first of the ranges of a part that new work on a stream cannot use. The part begins in the range `first`.
    pub(super) fn first_in_the_way(
        &self,
        first: RangeIndex,
        end: u64,
        stream: StreamIndex,
    ) -> Option<RangeIndex> {
        let mut index = first;
        while let Some(range) = self.list.get(index as usize).filter(|range| range.offset < end) {
            if !range.serves(stream) {
                return Some(index);
            }
            index = range.behind;
        }
        None
    }

    /// Returns the last range.
    #[inline]
    pub(super) fn rest(&self) -> RangeIndex {
        self.last
    }

    /// Returns the range of a run that contains an offset; the last one of the space if it ends there.
    #[inline]
    pub(super) fn free_at(&self, first: RangeIndex, offset: u64) -> RangeIndex {
        let mut range = first;
        while range != self.last && self.get(range).end() <= offset {
            range = self.get(range).behind;
        }
        range
    }

    /// Returns the end of the highest range that was ever taken.
    pub(super) fn touched(&self) -> u64 {
        self.touched
    }

    /// Takes `size` bytes at `offset`, which lies in the free range `from`. The part may reach into the free ranges behind it.
    pub(super) fn take(
        &mut self,
        from: RangeIndex,
        offset: u64,
        size: u64,
        stream: StreamIndex,
    ) -> RangeIndex {
        let end = offset + size;
        debug_assert!(self.get(from).is_free(), "the place was found before another change");
        debug_assert!(self.get(from).offset <= offset && offset <= self.get(from).end());
        self.touched = self.touched.max(end);
        let taken = match self.take_front(from, offset, end) {
            Some(front) => front,
            None => self.take_part(from, offset, end),
        };
        let at = self.at(taken);
        (at.state, at.free_after) = (RangeState::Taken, FreeAfter::new(stream, 0));
        taken
    }

    /// Cuts the front off a free range that is a run by itself, as in most cases: no other range changes then.
    #[inline]
    fn take_front(&mut self, from: RangeIndex, offset: u64, end: u64) -> Option<RangeIndex> {
        let at = self.get(from);
        if offset != at.offset || end >= at.end() || from == self.last || !self.is_alone(at) {
            return None;
        }
        self.unbin(from);
        let front = self.split_front(from, end);
        self.bin(from, self.get(from).size);
        Some(front)
    }

    /// Takes the bytes from `offset` to `end` out of the free ranges from `from` on, as one range.
    fn take_part(&mut self, from: RangeIndex, offset: u64, end: u64) -> RangeIndex {
        let before = self.get(from).before;
        [before, from].into_iter().for_each(|range| self.unlist_runs(range));
        let mut tail = from;
        while self.get(tail).end() < end {
            tail = self.get(tail).behind;
            self.unlist_runs(tail);
        }
        let taken = if tail == from && offset == self.get(from).offset && end < self.get(from).end() {
            // The rest keeps its place in the list of its stream.
            self.split_front(from, end)
        } else {
            // The last range is kept even if it is empty: searches never look behind it.
            if end < self.get(tail).end() || tail == self.last {
                self.cut(tail, end);
            }
            let mut taken = from;
            if offset > self.get(from).offset {
                taken = self.cut(from, offset);
            }
            self.unlink(taken);
            while self.get(taken).end() < end {
                let next = self.get(taken).behind;
                self.unlink(next);
                self.join(taken, next);
            }
            taken
        };
        self.at(taken).state = RangeState::Taken;
        let behind = self.get(taken).behind;
        [before, from, behind].into_iter().for_each(|range| self.list_runs(range));
        taken
    }

    /// Notes that the stream of a taken range has another number now.
    pub(super) fn set_stream(&mut self, range: RangeIndex, stream: StreamIndex) {
        debug_assert!(self.get(range).state == RangeState::Taken);
        self.at(range).free_after = FreeAfter::new(stream, 0);
    }

    /// Frees a taken range after the work of `free_after`, and joins it with its free neighbours. `covered` is the moment up to which
    /// events cover the frees on its stream.
    #[inline]
    pub(super) fn give(&mut self, range: RangeIndex, free_after: FreeAfter, covered: u64) -> Joined {
        debug_assert!(self.get(range).state == RangeState::Taken, "it was freed before");
        // In the order of the list: a later moment is never wrong.
        let newest = self.set(free_after.stream()).and_then(|set| self.list.get(set.newest as usize));
        let free_after = newest.map_or(free_after, |newest| free_after.later(newest.free_after));
        self.unlist_around(range);
        let at = self.at(range);
        (at.state, at.free_after) = (RangeState::Free, free_after);
        self.join_neighbours(range, covered)
    }

    /// Returns the next waiting range whose work is done, as its offset and size, and makes it ready.
    pub(super) fn next_done(&mut self, done: impl Fn(FreeAfter) -> bool) -> Option<(u64, u64)> {
        let oldest = |stream: &StreamIndex| self.set(*stream).map_or(NONE, |set| set.oldest);
        let is_done = |range: &RangeIndex| *range != NONE && done(self.get(*range).free_after);
        let range = self.waited_for.iter().map(oldest).find(is_done)?;
        self.unlist_around(range);
        self.unlink(range);
        let Range { offset, size, .. } = *self.get(range);
        self.at(range).free_after = FreeAfter::FREE;
        self.join_neighbours(range, 0);
        Some((offset, size))
    }

    /// Joins a free range that is in no list with its neighbours, and lists the result.
    fn join_neighbours(&mut self, range: RangeIndex, covered: u64) -> Joined {
        let mut joined = Joined::default();
        let mut range = range;
        let Range { before, behind, free_after, .. } = *self.get(range);
        if before != NONE && self.is_joined(before, free_after, covered) {
            joined.before = self.get(before).waits().then_some(self.get(range).offset);
            self.unlink(before);
            self.join(before, range);
            range = before;
        }
        if behind != NONE && self.is_joined(behind, free_after, covered) {
            joined.behind = self.get(behind).waits().then_some(self.get(behind).offset);
            self.unlink(behind);
            self.join(range, behind);
        }
        self.at(range).free_after = free_after;
        self.link_newest(range);
        self.list_around(range);
        joined
    }

    /// Returns true if a free range that waits for `free_after`, or is ready, is joined with this neighbour.
    fn is_joined(&self, neighbour: RangeIndex, free_after: FreeAfter, covered: u64) -> bool {
        let other = self.get(neighbour);
        let is_open = free_after.stream() == CLEAN || other.free_after.moment() > covered;
        other.is_free() && other.stream() == free_after.stream() && is_open
    }

    /// Cuts a free range that is in no bin. Returns the number of the part from `offset` on.
    fn cut(&mut self, range: RangeIndex, offset: u64) -> RangeIndex {
        let behind = self.split(range, offset);
        if self.get(range).waits() {
            self.link_behind(behind, range);
        }
        behind
    }

    /// Cuts a range in two. Returns the number of the part from `offset` on, which is a copy of the first part and in no list.
    fn split(&mut self, range: RangeIndex, offset: u64) -> RangeIndex {
        let old = *self.get(range);
        let index = self.add(Range { offset, size: old.end() - offset, before: range, ..old });
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

    /// Cuts a range in two. Returns the number of the part before `offset`, which is a copy of the other part and in no list.
    fn split_front(&mut self, range: RangeIndex, offset: u64) -> RangeIndex {
        let old = *self.get(range);
        let index = self.add(Range { size: offset - old.offset, behind: range, ..old });
        let rest = self.at(range);
        (rest.offset, rest.size, rest.before) = (offset, old.end() - offset, index);
        match self.list.get_mut(old.before as usize) {
            Some(before) => before.behind = index,
            None => self.first = index,
        }
        index
    }

    /// Adds a range under a vacant number.
    fn add(&mut self, range: Range) -> RangeIndex {
        match self.vacant.pop() {
            Some(index) => {
                *self.at(index) = range;
                index
            }
            None => {
                self.list.push(range);
                (self.list.len() - 1) as RangeIndex
            }
        }
    }

    /// Joins two neighbours that are in no list: the second becomes a part of the first.
    fn join(&mut self, one: RangeIndex, other: RangeIndex) {
        let gone = *self.get(other);
        self.at(other).state = RangeState::Vacant;
        self.vacant.push(other);
        let at = self.at(one);
        at.size += gone.size;
        at.behind = gone.behind;
        if gone.behind == NONE {
            self.last = one;
        } else {
            self.at(gone.behind).before = one;
        }
    }
}

/// Returns `size` rounded up to a multiple of the unit and, up to 4 KiB, of the alignment.
///
/// Otherwise blocks of one alignment would have gaps between them that hardly any request fits into. Ready gaps and waiting blocks are not
/// joined, so that a run of many small blocks would have as many ranges, and each call would go through all of them.
pub(crate) fn rounded(size: u64, alignment: u64) -> Option<u64> {
    size.checked_next_multiple_of(alignment.clamp(UNIT, MOST_ROUNDED))
}
