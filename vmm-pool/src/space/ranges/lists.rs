//! The lists of free ranges: the bins in which requests find runs and ready ranges, and the waiting ranges of each stream in the order
//! of their moments.

use super::{Range, RangeIndex, Ranges, Set, UNLISTED};
use crate::space::bins::{Bins, NONE};
use crate::stream_order::{CLEAN, StreamIndex};

impl Ranges {
    #[inline]
    pub(super) fn set(&self, stream: StreamIndex) -> Option<&Set> {
        self.sets.get(usize::from(stream))?.as_deref()
    }

    /// Returns the runs of a stream and the ready ranges with at least `size` bytes, the best fit first, as one of their ranges. The
    /// last range of the space is not included.
    #[inline]
    pub(in crate::space) fn fitting(
        &self,
        stream: StreamIndex,
        size: u64,
    ) -> impl Iterator<Item = RangeIndex> {
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
    #[inline]
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
    #[inline]
    pub(in crate::space) fn run(&self, range: RangeIndex, stream: StreamIndex) -> (RangeIndex, u64, u64) {
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

    /// Returns the first range of the run that ends with the last range and serves a stream.
    pub(in crate::space) fn end_run(&self, stream: StreamIndex) -> RangeIndex {
        self.run(self.last, stream).0
    }

    /// Returns true if ranges wait, or did when [`drop_empty_sets`](Self::drop_empty_sets) was called last.
    #[inline]
    pub(in crate::space) fn is_waiting(&self) -> bool {
        !self.waited_for.is_empty()
    }

    /// Drops the sets without a range. Those of streams that fill them again in a moment would only be built again, so this is for
    /// the slow path.
    pub(in crate::space) fn drop_empty_sets(&mut self) {
        let Self { sets, waited_for, .. } = self;
        waited_for.retain(|stream| {
            let set = &mut sets[usize::from(*stream)];
            if set.as_ref().is_some_and(|set| set.oldest == NONE) {
                *set = None;
            }
            set.is_some()
        });
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

    /// Returns true if no free range is beside a range, apart from the last one of the space: it is in no run but its own.
    #[inline]
    pub(super) fn is_alone(&self, range: &Range) -> bool {
        let is_free = |one| one != self.last && self.list.get(one as usize).is_some_and(Range::is_free);
        !is_free(range.before) && !is_free(range.behind)
    }

    /// Takes all out of the bins that changes with a range.
    #[inline]
    pub(super) fn unlist_around(&mut self, range: RangeIndex) {
        let Range { before, behind, .. } = *self.get(range);
        [before, range, behind].into_iter().for_each(|range| self.unlist_runs(range));
    }

    /// Lists all that has changed with a free range.
    #[inline]
    pub(super) fn list_around(&mut self, range: RangeIndex) {
        let at = *self.get(range);
        if range != self.last && self.is_alone(&at) {
            return self.bin(range, at.size);
        }
        [at.before, range, at.behind].into_iter().for_each(|range| self.list_runs(range));
    }

    /// Takes a ready range, and the runs that a range is in, out of their bins.
    #[inline]
    pub(super) fn unlist_runs(&mut self, range: RangeIndex) {
        if range != self.last
            && let Some(at) = self.list.get(range as usize)
            && at.is_free()
        {
            self.unlist_free(range);
        }
    }

    fn unlist_free(&mut self, range: RangeIndex) {
        let at = self.get(range);
        let is_first = at.waits() && at.bin != UNLISTED;
        self.unbin(range);
        if !is_first {
            self.unlist_runs_with(range);
        }
    }

    /// Takes the runs out of their bins that a range is in, but not as their first one.
    #[inline(never)]
    fn unlist_runs_with(&mut self, range: RangeIndex) {
        for stream in self.runs_with(range).into_iter().flatten() {
            self.unbin(self.head_of(range, stream).0);
        }
    }

    /// Lists a ready range, and the runs that a range is in, unless they are listed.
    #[inline]
    pub(super) fn list_runs(&mut self, range: RangeIndex) {
        if range != self.last
            && let Some(at) = self.list.get(range as usize)
            && at.is_free()
        {
            self.list_free(range);
        }
    }

    fn list_free(&mut self, range: RangeIndex) {
        let at = self.get(range);
        match self.is_alone(at) {
            true => self.bin(range, at.size),
            false => self.list_runs_with(range),
        }
    }

    /// Lists a range with free ranges beside it.
    #[inline(never)]
    fn list_runs_with(&mut self, range: RangeIndex) {
        let at = self.get(range);
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

    #[inline]
    pub(super) fn bin(&mut self, range: RangeIndex, size: u64) {
        let at = &mut self.list[range as usize];
        if at.bin != UNLISTED {
            return;
        }
        let Some(Some(set)) = self.sets.get_mut(usize::from(at.stream())) else { return };
        let bin = Bins::of(size);
        let head = set.bins.put_first(bin, range);
        (at.back, at.next, at.bin, at.listed) = (NONE, head, bin as u16, size);
        if head != NONE {
            self.at(head).back = range;
        }
    }

    #[inline]
    pub(super) fn unbin(&mut self, range: RangeIndex) {
        let at = self.at(range);
        let (Range { back, next, .. }, set) = (*at, usize::from(at.stream()));
        let bin = std::mem::replace(&mut at.bin, UNLISTED);
        if bin == UNLISTED {
            return;
        }
        if next != NONE {
            self.at(next).back = back;
        }
        if back != NONE {
            self.at(back).next = next;
        } else if let Some(Some(set)) = self.sets.get_mut(set) {
            set.bins.replace_first(usize::from(bin), next);
        }
    }

    /// Adds a waiting range to the end of the list of its stream.
    #[inline]
    pub(super) fn link_newest(&mut self, range: RangeIndex) {
        let stream = self.get(range).stream();
        if stream == CLEAN {
            return;
        }
        if self.set(stream).is_none() {
            self.add_set(stream);
        }
        let Some(Some(set)) = self.sets.get_mut(usize::from(stream)) else { return };
        let older = std::mem::replace(&mut set.newest, range);
        match self.list.get_mut(older as usize) {
            Some(older) => older.newer = range,
            None => set.oldest = range,
        }
        let at = self.at(range);
        (at.older, at.newer) = (older, NONE);
    }

    /// Adds the set of a stream.
    #[cold]
    fn add_set(&mut self, stream: StreamIndex) {
        let set = usize::from(stream);
        if self.sets.len() <= set {
            self.sets.resize_with(set + 1, || None);
        }
        self.sets[set] = Some(Set::new());
        self.waited_for.push(stream);
    }

    /// Adds a range to the list of its stream, behind another one.
    #[inline]
    pub(super) fn link_behind(&mut self, range: RangeIndex, older: RangeIndex) {
        let newer = self.list.get(older as usize).map_or(NONE, |older| older.newer);
        self.link(older, range, self.get(range).stream());
        self.link(range, newer, self.get(range).stream());
    }

    /// Takes a range out of the list of its stream if it waits.
    #[inline]
    pub(super) fn unlink(&mut self, range: RangeIndex) {
        let Range { older, newer, .. } = *self.get(range);
        if self.get(range).waits() {
            self.link(older, newer, self.get(range).stream());
        }
    }

    /// Makes two ranges neighbours in the list of a stream; [`NONE`] stands for the end.
    #[inline]
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
