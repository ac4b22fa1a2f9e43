//! The place of a block: the best fit, and of several that fit, the one that needs the least mapping.

use super::ranges::RangeIndex;
use super::{Page, Space};
use crate::frames::{Frames, LOST, NO_FRAME};
use crate::space::UNIT;
use crate::stream_order::StreamIndex;
use crate::streams::Streams;
use gpu_vmm_core::Backend;

/// The number of fitting ranges that a search looks at before it accepts one that needs mapping, if the pool serves several
/// streams. With more, the search finds more mapped memory, but leaves more ranges of odd sizes behind. With one stream, the best fit
/// is mapped already in most cases.
const TRIES: usize = 4;

/// The number of ranges that a search looks at which are large enough, but may not fit: because of the alignment, or because a
/// page of theirs must be mapped and work still uses the page.
const LOOK: usize = 64;

/// The number of pages that a search skips in one part, because they cannot be used now.
const SKIPS: usize = 16;

/// The weight of unmapping and mapping a page; mapping alone weighs 1.
const STALE: u32 = 2;

/// A request for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceRequest {
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    /// The stream whose unfinished work may still use the memory.
    pub(crate) stream: StreamIndex,
}

/// A place for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// The free range that the place begins in.
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    /// The mapping work before the place can be used; zero if all of its memory is there.
    pub(crate) work: u32,
    /// The bytes of the free part around the place that are left over.
    pub(crate) left: u64,
}

/// The best place found so far, and the number of looks that are left.
#[derive(Debug)]
struct Best {
    spot: Option<Spot>,
    tries: usize,
}

impl Best {
    #[inline]
    fn add(&mut self, spot: Spot) {
        self.tries = self.tries.saturating_sub(1);
        if self.spot.is_none_or(|best| spot.work < best.work) {
            self.spot = Some(spot);
        }
    }

    /// Returns true if the search is over.
    #[inline]
    fn is_final(&self) -> bool {
        self.tries == 0 || self.spot.is_some_and(|spot| spot.work == 0)
    }
}

impl<B: Backend> Space<B> {
    /// Finds the place for a block among the free ranges, without the last one. Leaves out places where the pool would have to
    /// unmap addresses that work still uses.
    #[inline]
    pub(crate) fn find(
        &self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        wanted: PlaceRequest,
    ) -> Option<Spot> {
        let PlaceRequest { size, stream, .. } = wanted;
        // In most cases the best fit is mapped, which ends the search. A loop would take longer to begin than this takes.
        let fit = self.ranges.fitting(stream, size).next()?;
        let spot = self.spot_at(frames, fit, wanted);
        let tries = if streams.are_several() { TRIES } else { 1 };
        if spot.is_some_and(|spot| spot.work == 0 || tries == 1) {
            return spot;
        }
        self.find_among(frames, tries, wanted)
    }

    /// Finds the place with the least work among several.
    #[inline(never)]
    fn find_among(&self, frames: &mut Frames<B>, tries: usize, wanted: PlaceRequest) -> Option<Spot> {
        let PlaceRequest { size, alignment, stream } = wanted;
        let mut best = Best { spot: None, tries };
        let mut ends_with = |range: RangeIndex| {
            if let Some(spot) = self.spot_at(frames, range, wanted) {
                best.add(spot);
            }
            best.is_final()
        };
        if !self.ranges.fitting(stream, size).take(LOOK).any(&mut ends_with) && alignment > UNIT {
            // Each of these has an aligned part.
            let room = size.checked_add(alignment - UNIT)?;
            self.ranges.fitting(stream, room).take(LOOK).any(ends_with);
        }
        best.spot
    }

    /// Returns the place in the run around a range.
    #[inline]
    fn spot_at(&self, frames: &mut Frames<B>, range: RangeIndex, wanted: PlaceRequest) -> Option<Spot> {
        let (first, begin, end) = self.ranges.run(range, wanted.stream);
        self.spot_in(frames, first, begin, end, wanted)
    }

    /// Finds the place at the end of the space.
    pub(crate) fn find_in_rest(&self, frames: &mut Frames<B>, wanted: PlaceRequest) -> Option<Spot> {
        let rest = self.ranges.get(self.ranges.rest());
        let first = self.ranges.end_run(wanted.stream);
        // Skips pages that are out of use; the part before them becomes a range of its own.
        let begin = self.ranges.get(first).offset.max(self.lost_end);
        self.spot_in(frames, first, begin, rest.end(), wanted)
    }

    /// Returns the first place in a free part, which begins in the range `first`; none if it cannot be used now.
    #[inline]
    fn spot_in(
        &self,
        frames: &mut Frames<B>,
        first: RangeIndex,
        begin: u64,
        end: u64,
        wanted: PlaceRequest,
    ) -> Option<Spot> {
        let mut offset = begin;
        for _ in 0..SKIPS {
            offset = self.aligned(offset, wanted.alignment)?;
            if offset.checked_add(wanted.size).is_none_or(|needed| needed > end) {
                break;
            }
            match self.work(frames, offset, wanted) {
                Ok(work) => {
                    // The first range may end before the place.
                    let range = self.ranges.free_at(first, offset);
                    return Some(Spot { range, offset, work, left: end - begin - wanted.size });
                }
                Err(page) => offset = (page as u64 + 1) * self.page,
            }
        }
        None
    }

    /// Returns the first offset from `offset` on whose address is a multiple of `alignment`.
    #[inline]
    fn aligned(&self, offset: u64, alignment: u64) -> Option<u64> {
        if alignment <= UNIT {
            return Some(offset);
        }
        Some(self.base.checked_add(offset)?.checked_next_multiple_of(alignment)? - self.base)
    }

    /// Returns the work of mapping and unmapping before the part from `offset` on can be used.
    ///
    /// # Errors
    ///
    /// The page that cannot be used now.
    #[inline]
    pub(super) fn work(
        &self,
        frames: &mut Frames<B>,
        offset: u64,
        PlaceRequest { size, stream, .. }: PlaceRequest,
    ) -> Result<u32, usize> {
        frames.begin_search();
        let mut work = 0;
        for index in self.pages_of(offset, size) {
            let page = self.pages.get(index).unwrap_or(&Page::NEW);
            work += match page.frame {
                LOST => return Err(index),
                _ if page.changing => return Err(index),
                NO_FRAME if page.live > 0 => 0,
                NO_FRAME => 1,
                // The memory has moved here, and work may still use it at other addresses.
                frame if page.live > 0 && !frames.serves_at(frame, page.waiting, stream) => {
                    return Err(index);
                }
                _ if page.live > 0 => 0,
                _ if self.is_own(frames, page, stream) => 0,
                _ if page.waiting.count == 0 => STALE,
                _ => return Err(index),
            };
        }
        Ok(work)
    }

    /// Returns true if a page without a block can use the frame that is mapped there, which no page of this search uses yet.
    #[inline]
    pub(super) fn is_own(&self, frames: &mut Frames<B>, page: &Page, stream: StreamIndex) -> bool {
        page.is_mapped()
            && self.fits(frames, page.frame)
            && frames.serves_at(page.frame, page.waiting, stream)
            && frames.see(page.frame)
    }
}
