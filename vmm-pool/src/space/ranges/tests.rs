//! The ranges beside a list that is simple.

use super::*;

const SIZE: u64 = 4096;

/// A range as the test knows it: its offset and size in units, its order, and its number if it is taken.
#[derive(Clone, Copy, Debug)]
struct Known {
    offset: u64,
    size: u64,
    free_after: FreeAfter,
    taken: Option<RangeIndex>,
}

impl Known {
    fn serves(&self, stream: StreamIndex) -> bool {
        self.taken.is_none() && [CLEAN, stream].contains(&self.free_after.stream())
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
        let free_after = self.all[index].free_after;
        let joins = |other: &Known| {
            let stream = free_after.stream();
            let is_open = stream == CLEAN || other.free_after.moment() > covered[usize::from(stream)];
            other.taken.is_none() && other.free_after.stream() == stream && is_open
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
        self.all[index].free_after = free_after;
    }

    fn settle(&mut self) {
        let done = self.done;
        let is_done = |one: &Known| {
            let stream = one.free_after.stream();
            one.taken.is_none() && stream != CLEAN && one.free_after.moment() <= done[usize::from(stream)]
        };
        while let Some(index) = self.all.iter().position(is_done) {
            self.all[index].free_after = FreeAfter::FREE;
            self.join(index);
        }
    }
}

#[track_caller]
fn agree(ranges: &Ranges, simple: &Simple) {
    let known = &simple.all;
    let found: Vec<_> = ranges
        .iter()
        .map(|one| (one.offset / UNIT, one.size / UNIT, one.free_after, one.is_free()))
        .collect();
    let expected: Vec<_> =
        known.iter().map(|one| (one.offset, one.size, one.free_after, one.taken.is_none())).collect();
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
            let waits = |one: &&Known| one.free_after.stream() != CLEAN;
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
    let first = Known { offset: 0, size: SIZE, free_after: FreeAfter::FREE, taken: None };
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
            while ranges
                .next_done(|free_after| free_after.moment() <= done[usize::from(free_after.stream())])
                .is_some()
            {}
            ranges.drop_empty_sets();
        }
        let index = random(simple.all.len() as u64) as usize;
        let Known { offset, size, taken, free_after } = simple.all[index];
        if let Some(range) = taken {
            now += 1;
            let free_after = match random(4) {
                0 => FreeAfter::FREE,
                _ => FreeAfter::new(free_after.stream(), now),
            };
            ranges.give(range, free_after, simple.covered[usize::from(free_after.stream())]);
            simple.all[index] = Known { free_after, taken: None, ..simple.all[index] };
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
            let free = |offset, size, free_after| Known { offset, size, free_after, taken: None };
            let all = [
                (skip > 0).then(|| free(offset, skip, free_after)),
                Some(Known {
                    offset: offset + skip,
                    size: part,
                    free_after: FreeAfter::new(user, 0),
                    taken: Some(range),
                }),
                (left > 0 || is_last).then(|| free(end, left, tail.free_after)),
            ];
            simple.all.splice(index..index + count, all.into_iter().flatten());
        }
        agree(&ranges, &simple);
    }
    assert!(runs > 100, "only {runs} parts reached into several ranges");
}
