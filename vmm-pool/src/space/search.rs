//! Where a block goes: the best fit; of several that fit, the one behind which the least has to be mapped.

use super::Space;
use super::bins::UNIT;
use super::ranges::RangeIndex;
use crate::frames::{Frames, LOST, NO_FRAME};
use crate::stream_order::StreamIndex;
use crate::streams::Streams;
use gpu_vmm_core::Backend;

/// So many fitting ranges are looked at before mapping is thought of. More find more that is mapped, and leave more odd
/// pieces behind.
const TRIES: usize = 4;

/// So many ranges that a stream has freed are looked at for others too: work may still use all of them.
const LOOK: usize = 16;

/// What unmapping weighs beside mapping.
const STALE: u32 = 2;

/// What is to find a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    /// The stream whose unfinished work may still use it.
    pub(crate) stream: StreamIndex,
}

/// A place for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    /// How much has to be done before it can be used; zero where all of its memory is there.
    pub(crate) work: u32,
}

/// The best place so far.
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

    /// True where nothing better is looked for.
    fn is_final(&self) -> bool {
        self.tries == 0 || self.spot.is_some_and(|spot| spot.work == 0)
    }
}

impl<B: Backend> Space<B> {
    /// The place for a block; none where there are no addresses.
    ///
    /// Places where addresses would have to be unmapped that are still in use are left out.
    pub(crate) fn find(&self, frames: &mut Frames<B>, streams: &Streams<B>, wanted: Wanted) -> Option<Spot> {
        let Wanted { size, alignment, stream, .. } = wanted;
        let room = size.checked_add(alignment.saturating_sub(UNIT))?;
        let mut best = Best { spot: None, tries: TRIES };
        let mut look = |range: RangeIndex, best: &mut Best| {
            let offset = self.aligned(self.ranges.get(range).offset, alignment)?;
            let work = self.work(frames, streams, offset, wanted)?;
            best.add(Spot { range, offset, work });
            Some(())
        };
        if streams.count() <= 2 {
            for range in self.ranges.fitting(stream, room) {
                look(range, &mut best);
                if best.is_final() {
                    break;
                }
            }
        } else {
            // What lies under another stream may be free for this one as well.
            let mut sets: Vec<_> = (1..streams.count())
                .map(|set| self.ranges.fitting(set as StreamIndex, room).take(LOOK).peekable())
                .collect();
            while !best.is_final()
                && let Some((set, _)) = sets
                    .iter_mut()
                    .enumerate()
                    .filter_map(|(set, ranges)| Some((set, self.ranges.get(*ranges.peek()?).size)))
                    .min_by_key(|(_, size)| *size)
                && let Some(range) = sets[set].next()
            {
                look(range, &mut best);
            }
        }
        best.spot.or_else(|| self.find_in_rest(frames, streams, wanted))
    }

    /// The place in what was never taken, or lies at the end.
    fn find_in_rest(&self, frames: &mut Frames<B>, streams: &Streams<B>, wanted: Wanted) -> Option<Spot> {
        let range = self.ranges.rest();
        let rest = self.ranges.get(range);
        // Where other streams' work still uses the beginning, there is nobody's page behind all that was ever taken.
        [rest.offset, self.ranges.touched().next_multiple_of(self.page)].into_iter().find_map(|from| {
            // Behind pages that are out of use; what is before them is a range of its own then.
            let offset = self.aligned(from.max(rest.offset).max(self.lost_end), wanted.alignment)?;
            let fits = offset.checked_add(wanted.size).is_some_and(|end| end <= rest.end());
            let work = fits.then(|| self.work(frames, streams, offset, wanted)).flatten()?;
            Some(Spot { range, offset, work })
        })
    }

    /// The first offset from `offset` on whose address is a multiple of `alignment`.
    fn aligned(&self, offset: u64, alignment: u64) -> Option<u64> {
        if alignment <= UNIT {
            return Some(offset);
        }
        Some(self.base.checked_add(offset)?.checked_next_multiple_of(alignment)? - self.base)
    }

    /// How much has to be mapped and unmapped before the part from `offset` on can be used; none where that cannot be done
    /// now.
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
                NO_FRAME if page.live > 0 => 0,
                NO_FRAME => 1,
                // Some of it may still be used by another stream's work.
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
