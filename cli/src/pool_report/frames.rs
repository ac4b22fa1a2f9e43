//! The physical memory of a pool snapshot, in order, and the addresses that each piece is mapped at.

use gpu_vmm::pool::PoolSnapshot;
use serde::Serialize;
use std::collections::BTreeSet;

/// Consecutive frames that are mapped at consecutive pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Frames {
    pub(super) first: u64,
    pub(super) count: u64,
    /// Where they are mapped; empty if they are not.
    pub(super) places: Vec<MappedAt>,
}

/// Where the first of them is mapped: the number of the range, the offset in it, and whether a block lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct MappedAt(pub(super) usize, pub(super) u64, pub(super) bool);

/// More than any pool has, and than a page can show.
const MAX_PLACES: usize = 4 << 20;

/// A range of frames that is mapped at consecutive pages.
struct Run {
    first: u64,
    end: u64,
    /// None if the memory is held but not mapped.
    place: Option<MappedAt>,
}

/// Returns all held frames in order of their numbers. Fails if there are more mappings than a page can show.
pub(super) fn frames(snapshot: &PoolSnapshot) -> Result<Vec<Frames>, String> {
    let runs = runs(snapshot);
    // By number; at the same number, ends come before beginnings.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * runs.len());
    for (index, run) in runs.iter().enumerate() {
        events.push((run.first, true, index));
        events.push((run.end, false, index));
    }
    events.sort_unstable();
    let mut active: BTreeSet<usize> = BTreeSet::new();
    let (mut all, mut from, mut count) = (Vec::new(), 0, 0);
    for (frame, begins, index) in events {
        if frame > from && !active.is_empty() {
            count += active.len();
            if count > MAX_PLACES {
                return Err(format!("its memory is mapped in more than {MAX_PLACES} places"));
            }
            all.push(part(&runs, &active, from, frame, snapshot.page));
        }
        from = frame;
        if begins {
            active.insert(index);
        } else {
            active.remove(&index);
        }
    }
    Ok(all)
}

fn runs(snapshot: &PoolSnapshot) -> Vec<Run> {
    let mapped = snapshot.spaces.iter().enumerate().flat_map(|(space, of)| {
        of.pages.iter().map(move |pages| {
            let first = u64::from(pages.frame);
            let place = MappedAt(space, pages.offset, pages.used);
            Run { first, end: first + pages.count, place: Some(place) }
        })
    });
    let unmapped = snapshot.unmapped.iter().map(|frames| {
        let first = u64::from(frames.frame);
        Run { first, end: first + frames.count, place: None }
    });
    mapped.chain(unmapped).collect()
}

fn part(runs: &[Run], active: &BTreeSet<usize>, first: u64, end: u64, page: u64) -> Frames {
    let place = |run: &Run| {
        let MappedAt(space, offset, used) = run.place?;
        Some(MappedAt(space, offset + (first - run.first) * page, used))
    };
    let places = active.iter().filter_map(|index| runs.get(*index)).filter_map(place).collect();
    Frames { first, count: end - first, places }
}
