//! Ranges of addresses, taken and free, that cover a space without gaps. Free ranges are found by size and stream.
//!
//! Each free range has its own order: the work after which any stream may use it. It is *ready* if that work is done. Else it
//! *waits*, and serves the stream that freed it alone. This module does not consider physical memory.
//!
//! To a stream, a ready range and the neighbours that wait for it are one *run*. A request finds the runs of its stream, and the ready
//! ranges.
//!
//! Free neighbours become one range if both are ready, or if both wait for the same stream. A waiting range that an event covers
//! already is not joined with what is freed later: otherwise steady frees beside it would put off the time at which other streams
//! may use it. The last range is always free and ready: it is the end of the space.

use super::bins::{Bins, NONE, UNIT};
use crate::stream_order::{CLEAN, StreamIndex, Turn};

/// A range's number.
pub(crate) type RangeIndex = u32;

/// A range of a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The work after which every stream may use a free range. The stream of a taken range is the one that owns it.
    pub(super) turn: Turn,
    /// The neighbours in the space.
    before: RangeIndex,
    behind: RangeIndex,
    /// The size under which the range is listed: its own, or that of its run if it waits.
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
    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }

    pub(super) fn stream(&self) -> StreamIndex {
        self.turn.stream()
    }

    fn is_free(&self) -> bool {
        self.state == RangeState::Free
    }

    /// Returns true if the range is free but its work may not be done.
    pub(super) fn waits(&self) -> bool {
        self.is_free() && self.stream() != CLEAN
    }

    /// Returns true if new work on a stream may use the range; for [`CLEAN`], if the range is ready.
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
            turn: Turn::FREE,
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

    pub(super) fn get(&self, range: RangeIndex) -> &Range {
        &self.list[range as usize]
    }

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

    fn set(&self, stream: StreamIndex) -> Option<&Set> {
        self.sets.get(usize::from(stream))?.as_deref()
    }

    /// Returns the runs of a stream and the ready ranges with at least `size` bytes, the best fit first, as one of their ranges. The
    /// last range of the space is not included.
    pub(super) fn fitting(&self, stream: StreamIndex, size: u64) -> impl Iterator<Item = RangeIndex> {
        let own = if stream == CLEAN { None } else { self.set(stream) };
        let sets = [self.set(CLEAN), own];
        let next = move |bin| sets.iter().flatten().filter_map(|set| set.bins.filled_from(bin)).min();
        let mut bin = next(Bins::of(size));
        let mut from = size;
        let mut above = 0;
        let all = std::iter::from_fn(move || {
            loop {
                let here = bin?;
                if let Some((index, fit)) = self.best_of(&sets, here, from, above) {
                    above = self.get(index).offset + 1;
                    from = fit;
                    return Some(index);
                }
                bin = next(here + 1);
                (from, above) = (size, 0);
            }
        });
        all.filter(move |range| self.get(*range).waits() || !self.is_in_run(*range, stream))
    }

    /// Returns true if a ready range is a part of a stream's run.
    fn is_in_run(&self, range: RangeIndex, stream: StreamIndex) -> bool {
        let Range { before, behind, .. } = *self.get(range);
        let is_own = |one: &Range| one.waits() && one.stream() == stream;
        [before, behind].into_iter().any(|one| self.list.get(one as usize).is_some_and(is_own))
    }

    /// Returns the smallest entry of a bin with at least `size` bytes, and of several the first one. Of those with exactly
    /// `size` bytes, it considers only entries from `above` on. Looks at the beginning of each list only.
    fn best_of(&self, sets: &[Option<&Set>], bin: usize, size: u64, above: u64) -> Option<(RangeIndex, u64)> {
        const LOOK: usize = 32;
        let mut best: Option<((u64, u64), RangeIndex)> = None;
        for set in sets.iter().flatten() {
            let mut index = set.bins.head(bin);
            for _ in 0..LOOK {
                let Some(range) = self.list.get(index as usize) else { break };
                let key = (range.listed, range.offset);
                if key >= (size, above) && best.is_none_or(|(best, _)| key < best) {
                    best = Some((key, index));
                }
                index = range.next;
            }
        }
        best.map(|((size, _), index)| (index, size))
    }

    /// Returns the run of free ranges around one of them that all serve a stream, without the last range: its first range, its
    /// offset and its end.
    pub(super) fn run(&self, range: RangeIndex, stream: StreamIndex) -> (RangeIndex, u64, u64) {
        let mut first = range;
        while let Some(before) = self.list.get(self.get(first).before as usize)
            && before.serves(stream)
        {
            first = self.get(first).before;
        }
        let mut last = range;
        let goes_on = |range: RangeIndex| range != NONE && range != self.last;
        while goes_on(self.get(last).behind) && self.get(self.get(last).behind).serves(stream) {
            last = self.get(last).behind;
        }
        (first, self.get(first).offset, self.get(last).end())
    }

    /// Returns the last range.
    pub(super) fn rest(&self) -> RangeIndex {
        self.last
    }

    /// Returns the first range of the run that ends with the last range and serves a stream.
    pub(super) fn end_run(&self, stream: StreamIndex) -> RangeIndex {
        self.run(self.last, stream).0
    }

    /// Returns the range of a run that contains an offset; the last one of the space if it ends there.
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
        debug_assert!(self.get(from).offset <= offset && offset <= self.get(from).end());
        self.touched = self.touched.max(end);
        let before = self.get(from).before;
        [before, from].into_iter().for_each(|range| self.unlist_runs(range));
        let mut tail = from;
        while self.get(tail).end() < end {
            tail = self.get(tail).behind;
            self.unlist_runs(tail);
        }
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
        let at = self.at(taken);
        (at.state, at.turn) = (RangeState::Taken, Turn::new(stream, 0));
        let behind = self.get(taken).behind;
        [before, from, behind].into_iter().for_each(|range| self.list_runs(range));
        taken
    }

    /// Frees a taken range after the work of `turn`, and joins it with its free neighbours. `covered` is the moment up to which
    /// events cover the frees on its stream.
    pub(super) fn give(&mut self, range: RangeIndex, turn: Turn, covered: u64) -> Joined {
        // In the order of the list: a later moment is never wrong.
        let newest = self.set(turn.stream()).and_then(|set| self.list.get(set.newest as usize));
        let turn = newest.map_or(turn, |newest| turn.later(newest.turn));
        self.unlist_around(range);
        let at = self.at(range);
        (at.state, at.turn) = (RangeState::Free, turn);
        self.join_neighbours(range, covered)
    }

    /// Returns the next waiting range whose work is done, as its offset and size, and makes it ready.
    pub(super) fn next_done(&mut self, done: impl Fn(Turn) -> bool) -> Option<(u64, u64)> {
        let oldest = |stream: &StreamIndex| self.set(*stream).map_or(NONE, |set| set.oldest);
        let is_done = |range: &RangeIndex| *range != NONE && done(self.get(*range).turn);
        let range = self.waited_for.iter().map(oldest).find(is_done)?;
        self.unlist_around(range);
        self.unlink(range);
        let Range { offset, size, .. } = *self.get(range);
        self.at(range).turn = Turn::FREE;
        self.join_neighbours(range, 0);
        Some((offset, size))
    }

    /// Returns true if ranges wait, or did when [`drop_empty_sets`](Self::drop_empty_sets) was called last.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waited_for.is_empty()
    }

    /// Drops the sets without a range. Those of streams that fill them again in a moment would only be built again, so this is for
    /// the slow path.
    pub(super) fn drop_empty_sets(&mut self) {
        let Self { sets, waited_for, .. } = self;
        waited_for.retain(|stream| {
            let set = &mut sets[usize::from(*stream)];
            if set.as_ref().is_some_and(|set| set.oldest == NONE) {
                *set = None;
            }
            set.is_some()
        });
    }

    /// Joins a free range that is in no list with its neighbours, and lists the result.
    fn join_neighbours(&mut self, range: RangeIndex, covered: u64) -> Joined {
        let mut joined = Joined::default();
        let mut range = range;
        let Range { before, behind, turn, .. } = *self.get(range);
        if before != NONE && self.is_joined(before, turn, covered) {
            joined.before = self.get(before).waits().then_some(self.get(range).offset);
            self.unlink(before);
            self.join(before, range);
            range = before;
        }
        if behind != NONE && self.is_joined(behind, turn, covered) {
            joined.behind = self.get(behind).waits().then_some(self.get(behind).offset);
            self.unlink(behind);
            self.join(range, behind);
        }
        self.at(range).turn = turn;
        self.link_newest(range);
        let Range { before, behind, .. } = *self.get(range);
        [before, range, behind].into_iter().for_each(|range| self.list_runs(range));
        joined
    }

    /// Returns true if a free range that waits for `turn`, or is ready, is joined with this neighbour.
    fn is_joined(&self, neighbour: RangeIndex, turn: Turn, covered: u64) -> bool {
        let other = self.get(neighbour);
        let is_open = turn.stream() == CLEAN || other.turn.moment() > covered;
        other.is_free() && other.stream() == turn.stream() && is_open
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

    /// Returns the streams of the waiting ranges whose runs a range is in.
    fn runs_with(&self, range: RangeIndex) -> [Option<StreamIndex>; 2] {
        let Some(at) = self.list.get(range as usize).filter(|at| at.is_free()) else { return [None; 2] };
        if at.waits() {
            return [Some(at.stream()), None];
        }
        let of = |one: RangeIndex| self.list.get(one as usize).filter(|one| one.waits()).map(Range::stream);
        [of(at.before), of(at.behind)]
    }

    /// Returns the first waiting range of the run of a stream around a range, and the size of the run.
    fn head_of(&self, range: RangeIndex, stream: StreamIndex) -> (RangeIndex, u64) {
        let (first, offset, end) = self.run(range, stream);
        let head = if self.get(first).waits() { first } else { self.get(first).behind };
        (head, end - offset)
    }

    /// Takes all out of the bins that changes with a range.
    fn unlist_around(&mut self, range: RangeIndex) {
        let Range { before, behind, .. } = *self.get(range);
        [before, range, behind].into_iter().for_each(|range| self.unlist_runs(range));
    }

    /// Takes a ready range, and the runs that a range is in, out of their bins.
    fn unlist_runs(&mut self, range: RangeIndex) {
        if range == self.last {
            return;
        }
        let Some(at) = self.list.get(range as usize).filter(|at| at.is_free()) else { return };
        if at.bin != UNLISTED {
            self.unbin(range);
            if self.get(range).waits() {
                return;
            }
        }
        for stream in self.runs_with(range).into_iter().flatten() {
            self.unbin(self.head_of(range, stream).0);
        }
    }

    /// Lists a ready range, and the runs that a range is in, unless they are listed.
    fn list_runs(&mut self, range: RangeIndex) {
        if range == self.last {
            return;
        }
        let Some(at) = self.list.get(range as usize).filter(|at| at.is_free()) else { return };
        if !at.waits() {
            self.bin(range, at.size);
        } else if at.bin != UNLISTED {
            return;
        }
        for stream in self.runs_with(range).into_iter().flatten() {
            let (head, size) = self.head_of(range, stream);
            self.bin(head, size);
        }
    }

    fn bin(&mut self, range: RangeIndex, size: u64) {
        let (bin, set) = (Bins::of(size), usize::from(self.get(range).stream()));
        if self.get(range).bin != UNLISTED {
            return;
        }
        let Some(Some(set)) = self.sets.get_mut(set) else { return };
        let head = set.bins.head(bin);
        set.bins.set_head(bin, range);
        let at = self.at(range);
        (at.back, at.next, at.bin, at.listed) = (NONE, head, bin as u16, size);
        if head != NONE {
            self.at(head).back = range;
        }
    }

    fn unbin(&mut self, range: RangeIndex) {
        let Range { back, next, bin, .. } = *self.get(range);
        if bin == UNLISTED {
            return;
        }
        let set = usize::from(self.get(range).stream());
        self.at(range).bin = UNLISTED;
        if next != NONE {
            self.at(next).back = back;
        }
        if back != NONE {
            self.at(back).next = next;
        } else if let Some(Some(set)) = self.sets.get_mut(set) {
            set.bins.set_head(usize::from(bin), next);
        }
    }

    /// Adds a waiting range to the end of the list of its stream.
    fn link_newest(&mut self, range: RangeIndex) {
        let stream = self.get(range).stream();
        if stream == CLEAN {
            return;
        }
        let set = usize::from(stream);
        if self.sets.len() <= set {
            self.sets.resize_with(set + 1, || None);
        }
        if self.sets[set].is_none() {
            self.sets[set] = Some(Set::new());
            self.waited_for.push(stream);
        }
        let newest = self.set(stream).map_or(NONE, |set| set.newest);
        self.link_behind(range, newest);
    }

    /// Adds a range to the list of its stream, behind another one; [`NONE`] for an empty list.
    fn link_behind(&mut self, range: RangeIndex, older: RangeIndex) {
        let newer = self.list.get(older as usize).map_or(NONE, |older| older.newer);
        self.link(older, range, self.get(range).stream());
        self.link(range, newer, self.get(range).stream());
    }

    /// Takes a range out of the list of its stream if it waits.
    fn unlink(&mut self, range: RangeIndex) {
        let Range { older, newer, .. } = *self.get(range);
        if self.get(range).waits() {
            self.link(older, newer, self.get(range).stream());
        }
    }

    /// Makes two ranges neighbours in the list of a stream; [`NONE`] stands for the end.
    fn link(&mut self, older: RangeIndex, newer: RangeIndex, stream: StreamIndex) {
        let Some(Some(set)) = self.sets.get_mut(usize::from(stream)) else { return };
        match self.list.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => set.oldest = newer,
        }
        match self.list.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => set.newest = older,
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

    /// A range as the test knows it: its offset and size in units, its order, and its number if it is taken.
    #[derive(Clone, Copy, Debug)]
    struct Known {
        offset: u64,
        size: u64,
        turn: Turn,
        taken: Option<RangeIndex>,
    }

    impl Known {
        fn serves(&self, stream: StreamIndex) -> bool {
            self.taken.is_none() && [CLEAN, stream].contains(&self.turn.stream())
        }
    }

    /// The same ranges in a list that is simple.
    #[derive(Debug)]
    struct Simple {
        all: Vec<Known>,
        touched: u64,
        /// By stream: the moment up to which events cover the frees, and up to which they are done.
        covered: [u64; 4],
        done: [u64; 4],
    }

    impl Simple {
        /// Joins the neighbours of a range, which has just become free or ready.
        fn join(&mut self, index: usize) {
            let covered = self.covered;
            let turn = self.all[index].turn;
            let joins = |other: &Known| {
                let stream = turn.stream();
                let is_open = stream == CLEAN || other.turn.moment() > covered[usize::from(stream)];
                other.taken.is_none() && other.turn.stream() == stream && is_open
            };
            let mut index = index;
            if index > 0 && joins(&self.all[index - 1]) {
                self.all[index - 1].size += self.all[index].size;
                self.all.remove(index);
                index -= 1;
            }
            if self.all.get(index + 1).is_some_and(joins) {
                self.all[index].size += self.all[index + 1].size;
                self.all.remove(index + 1);
            }
            self.all[index].turn = turn;
        }

        fn settle(&mut self) {
            let done = self.done;
            let is_done = |one: &Known| {
                let stream = one.turn.stream();
                one.taken.is_none() && stream != CLEAN && one.turn.moment() <= done[usize::from(stream)]
            };
            while let Some(index) = self.all.iter().position(is_done) {
                self.all[index].turn = Turn::FREE;
                self.join(index);
            }
        }
    }

    #[track_caller]
    fn agree(ranges: &Ranges, simple: &Simple) {
        let known = &simple.all;
        let found: Vec<_> =
            ranges.iter().map(|one| (one.offset / UNIT, one.size / UNIT, one.turn, one.is_free())).collect();
        let expected: Vec<_> =
            known.iter().map(|one| (one.offset, one.size, one.turn, one.taken.is_none())).collect();
        assert_eq!(found, expected);
        assert_eq!(
            (ranges.end(), ranges.touched()),
            (known[known.len() - 1].offset * UNIT, simple.touched * UNIT)
        );
        assert_eq!(ranges.get(ranges.rest()).offset, ranges.end());
        // The runs and ready ranges by size, and of one size by offset, without the last range.
        let free = &known[..known.len() - 1];
        for (stream, least) in [(CLEAN, 1), (1, 3), (2, 40), (3, 70)] {
            let mut fitting: Vec<(u64, u64)> = Vec::new();
            for run in free.chunk_by(|one, other| one.serves(stream) && other.serves(stream)) {
                let waits = |one: &&Known| one.turn.stream() != CLEAN;
                let size = run.iter().map(|one| one.size).sum();
                if run[0].serves(stream) && size >= least {
                    let head = run.iter().find(waits).unwrap_or(&run[0]);
                    fitting.push((size, head.offset));
                }
            }
            fitting.sort_unstable();
            let found = ranges.fitting(stream, least * UNIT);
            let found: Vec<_> = found
                .map(|range| {
                    let (_, offset, end) = ranges.run(range, stream);
                    ((end - offset) / UNIT, ranges.get(range).offset / UNIT)
                })
                .collect();
            assert_eq!(found, fitting, "for stream {stream}");
        }
        // The search may begin at any range.
        for one in known.iter().filter(|one| one.size > 0) {
            let (first, last) = (one.offset * UNIT, (one.offset + one.size) * UNIT - 1);
            for (at, near) in [(first, 0), (last, 3), (first + 1, 1000)] {
                assert_eq!(ranges.taken_at(at, near).map(|(range, _)| range), one.taken, "at {at}");
            }
        }
    }

    /// Takes parts of free ranges, frees them after work and lets work be done, at random, next to a list that is simple.
    #[test]
    fn ranges_are_those_of_a_simple_list() {
        let mut ranges = Ranges::new(SIZE * UNIT);
        let first = Known { offset: 0, size: SIZE, turn: Turn::FREE, taken: None };
        let mut simple = Simple { all: vec![first], touched: 0, covered: [0; 4], done: [0; 4] };
        let (mut now, mut state, mut runs) = (0, 7_u64, 0);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..6000 {
            if random(8) == 0 {
                let stream = 1 + random(3) as usize;
                match random(2) {
                    0 => simple.covered[stream] = now,
                    _ => simple.done[stream] = simple.covered[stream],
                }
                simple.settle();
                let done = simple.done;
                while ranges.next_done(|turn| turn.moment() <= done[usize::from(turn.stream())]).is_some() {}
                ranges.drop_empty_sets();
            }
            let index = random(simple.all.len() as u64) as usize;
            let Known { offset, size, taken, turn } = simple.all[index];
            if let Some(range) = taken {
                now += 1;
                let turn = match random(4) {
                    0 => Turn::FREE,
                    _ => Turn::new(turn.stream(), now),
                };
                ranges.give(range, turn, simple.covered[usize::from(turn.stream())]);
                simple.all[index] = Known { turn, taken: None, ..simple.all[index] };
                simple.join(index);
            } else if simple.all.len() < 48 && size > 0 {
                let user = 1 + random(3) as StreamIndex;
                // The part may reach into the free ranges behind, if all serve the stream.
                let run = simple.all[index..].iter().take_while(|one| one.serves(user)).count();
                if run == 0 {
                    continue;
                }
                let count = 1 + random(run as u64) as usize;
                runs += usize::from(count > 1);
                let parts: Vec<_> = simple.all[index..index + count].to_vec();
                let tail = parts[count - 1];
                let least = tail.offset - offset + u64::from(count > 1);
                let skip = if random(3) == 0 { random(size).min(50) } else { 0 };
                let part = least.saturating_sub(skip).max(1) + random(90.min(tail.size.max(1)));
                let part = part.min(tail.offset + tail.size - offset - skip);
                if part == 0 || tail.size == 0 {
                    continue;
                }
                let number = ranges.list.iter().position(|range| {
                    range.is_free() && (range.offset, range.size) == (offset * UNIT, size * UNIT)
                });
                let number = number.map_or(NONE, |number| number as RangeIndex);
                let range = ranges.take(number, (offset + skip) * UNIT, part * UNIT, user);
                let end = offset + skip + part;
                simple.touched = simple.touched.max(end);
                let is_last = index + count == simple.all.len();
                let left = tail.offset + tail.size - end;
                let free = |offset, size, turn| Known { offset, size, turn, taken: None };
                let all = [
                    (skip > 0).then(|| free(offset, skip, turn)),
                    Some(Known {
                        offset: offset + skip,
                        size: part,
                        turn: Turn::new(user, 0),
                        taken: Some(range),
                    }),
                    (left > 0 || is_last).then(|| free(end, left, tail.turn)),
                ];
                simple.all.splice(index..index + count, all.into_iter().flatten());
            }
            agree(&ranges, &simple);
        }
        assert!(runs > 100, "only {runs} parts reached into several ranges");
    }
}
