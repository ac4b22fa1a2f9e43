//! The place of a block: the best fit, and of several that fit, the one that needs the least mapping.

use super::Space;
use super::bins::UNIT;
use super::ranges::RangeIndex;
use crate::frames::{Frames, LOST, NO_FRAME};
use crate::stream_order::StreamIndex;
use crate::streams::Streams;
use gpu_vmm_core::Backend;

/// The number of fitting ranges that a search looks at before it accepts one that needs mapping, if the pool serves several
/// streams. With more, the search finds more mapped memory, but leaves more ranges of odd sizes behind. With one stream, the best fit
/// is mapped already in most cases.
const TRIES: usize = 4;

/// The number of ranges for each stream that a search among the ranges of all streams looks at, since work may still use all of
/// them. Then it looks at those of the request's own stream.
const LOOK: usize = 16;

/// The weight of unmapping and mapping a page; mapping alone weighs 1.
const STALE: u32 = 2;

/// A request for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    /// The stream whose unfinished work may still use the memory.
    pub(crate) stream: StreamIndex,
}

/// A place for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    /// The mapping work before the place can be used; zero if all of its memory is there.
    pub(crate) work: u32,
}

/// The best place found so far, and the number of looks that are left.
#[derive(Debug)]
struct Best {
    spot: Option<Spot>,
    tries: usize,
}

impl Best {
    fn add(&mut self, spot: Spot) {
        self.tries = self.tries.saturating_sub(1);
        if self.spot.is_none_or(|best| spot.work < best.work) {
            self.spot = Some(spot);
        }
    }

    /// Returns true if the search is over.
    fn is_final(&self) -> bool {
        self.tries == 0 || self.spot.is_some_and(|spot| spot.work == 0)
    }
}

impl<B: Backend> Space<B> {
    /// Finds the place for a block; none if there are no addresses.
    ///
    /// Leaves out places where the pool would have to unmap addresses that work still uses.
    pub(crate) fn find(&self, frames: &mut Frames<B>, streams: &Streams<B>, wanted: Wanted) -> Option<Spot> {
        let Wanted { size, alignment, stream, .. } = wanted;
        let room = size.checked_add(alignment.saturating_sub(UNIT))?;
        let several = streams.are_several();
        let mut best = Best { spot: None, tries: if several { TRIES } else { 1 } };
        let mut ends_with = |range: RangeIndex| {
            if let Some(spot) = self.spot_in(frames, streams, range, wanted) {
                best.add(spot);
            }
            best.is_final()
        };
        // A range that another stream freed may be free for this one as well.
        let of_all = || self.ranges.fitting(1..streams.count() as StreamIndex, room);
        if !(several && of_all().take(LOOK * streams.count()).any(&mut ends_with)) {
            self.ranges.fitting(stream..stream + 1, room).any(ends_with);
        }
        best.spot.or_else(|| self.find_in_rest(frames, streams, wanted))
    }

    /// Returns the place at the beginning of a free range; none if it cannot be used now.
    fn spot_in(
        &self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        range: RangeIndex,
        wanted: Wanted,
    ) -> Option<Spot> {
        let offset = self.aligned(self.ranges.get(range).offset, wanted.alignment)?;
        let work = self.work(frames, streams, offset, wanted)?;
        Some(Spot { range, offset, work })
    }

    /// Finds the place in the last range, which is the end of the space.
    fn find_in_rest(&self, frames: &mut Frames<B>, streams: &Streams<B>, wanted: Wanted) -> Option<Spot> {
        let range = self.ranges.rest();
        let rest = self.ranges.get(range);
        // If other streams' work still uses the beginning, the pages behind everything ever taken have no owner.
        [rest.offset, self.ranges.touched().next_multiple_of(self.page)].into_iter().find_map(|from| {
            // Skips pages that are out of use; the part before them becomes a range of its own.
            let offset = self.aligned(from.max(rest.offset).max(self.lost_end), wanted.alignment)?;
            let fits = offset.checked_add(wanted.size).is_some_and(|end| end <= rest.end());
            let work = fits.then(|| self.work(frames, streams, offset, wanted)).flatten()?;
            Some(Spot { range, offset, work })
        })
    }

    /// Returns the first offset from `offset` on whose address is a multiple of `alignment`.
    fn aligned(&self, offset: u64, alignment: u64) -> Option<u64> {
        if alignment <= UNIT {
            return Some(offset);
        }
        Some(self.base.checked_add(offset)?.checked_next_multiple_of(alignment)? - self.base)
    }

    /// Returns the work of mapping and unmapping before the part from `offset` on can be used; none if that is impossible now.
    fn work(
        &self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        offset: u64,
        Wanted { size, stream, .. }: Wanted,
    ) -> Option<u32> {
        frames.begin_search();
        let mut work = 0;
        for page in self.pages_of(offset, size) {
            let page = self.page_at(page);
            work += match page.frame {
                LOST => return None,
                _ if page.changing => return None,
                NO_FRAME if page.live > 0 => 0,
                NO_FRAME => 1,
                // Another stream's work may still use a part of it.
                frame if page.live > 0 && !streams.serves(frames.turn(frame), stream) => return None,
                _ if page.live > 0 => 0,
                frame if self.fits(frames, frame) && frames.see(frame, streams, stream) => 0,
                _ if streams.is_done(page.turn) => STALE,
                _ => return None,
            };
        }
        Some(work)
    }
}
