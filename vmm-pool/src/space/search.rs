//! Where a block goes: the best fit; of several that fit, the one behind which the least has to be mapped.

use super::Space;
use super::bins::UNIT;
use super::ranges::RangeIndex;
use crate::frames::{Frames, NO_FRAME};
use crate::streams::Streams;
use crate::turn::{CLEAN, StreamIndex};
use gpu_vmm_core::Backend;

/// So many fitting ranges are looked at before mapping is thought of. More find more that is mapped, and leave more odd
/// pieces behind.
const TRIES: usize = 4;

/// What unmapping weighs beside mapping.
const STALE: u32 = 2;

/// A place for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    /// How much has to be done before it can be used; zero where all of its memory is there.
    pub(crate) work: u32,
}

impl<B: Backend> Space<B> {
    /// The place for `size` bytes at a multiple of `alignment`; none where there are no addresses.
    ///
    /// Places where addresses would have to be unmapped that are still in use are left out, unless `waits` is true.
    pub(crate) fn find(
        &self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        (size, alignment): (u64, u64),
        stream: StreamIndex,
        waits: bool,
    ) -> Option<Spot> {
        let mut best: Option<Spot> = None;
        let room = size.checked_add(alignment.saturating_sub(UNIT))?;
        let mut own = self.ranges.fitting(stream, room).peekable();
        let mut everybody = self.ranges.fitting(CLEAN, room).peekable();
        let size_of = |range: &RangeIndex| self.ranges.get(*range).size;
        for _ in 0..TRIES {
            let (one, other) = (own.peek().map(size_of), everybody.peek().map(size_of));
            let own_fits_better = one.is_some_and(|one| other.is_none_or(|other| one <= other));
            let Some(range) = (if own_fits_better { own.next() } else { everybody.next() }) else { break };
            let offset = self.aligned(self.ranges.get(range).offset, alignment)?;
            let Some(work) = self.work(frames, streams, (offset, size), stream, waits) else { continue };
            let spot = Spot { range, offset, work };
            if work == 0 {
                return Some(spot);
            }
            if best.is_none_or(|best| work < best.work) {
                best = Some(spot);
            }
        }
        if best.is_some() {
            return best;
        }
        let (range, from) = self.ranges.rest(|turn| streams.serves(turn, stream));
        let offset = self.aligned(from, alignment)?;
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.ranges.get(range).end());
        let work = fits.then(|| self.work(frames, streams, (offset, size), stream, waits)).flatten()?;
        Some(Spot { range, offset, work })
    }

    /// The first offset from `offset` on whose address is a multiple of `alignment`.
    fn aligned(&self, offset: u64, alignment: u64) -> Option<u64> {
        if alignment <= UNIT {
            return Some(offset);
        }
        Some(self.base.checked_add(offset)?.checked_next_multiple_of(alignment)? - self.base)
    }

    /// How much has to be mapped and unmapped before a part can be used; none where that cannot be done now.
    fn work(
        &self,
        frames: &mut Frames<B>,
        streams: &Streams<B>,
        (offset, size): (u64, u64),
        stream: StreamIndex,
        waits: bool,
    ) -> Option<u32> {
        frames.begin_search();
        let mut work = 0;
        for page in self.pages_of(offset, size) {
            let page = self.page_at(page);
            if page.live > 0 {
                continue;
            }
            if page.frame == NO_FRAME {
                work += 1;
            } else if self.fits(frames, page.frame) && frames.see(page.frame, streams, stream) {
            } else if waits || streams.is_done(page.turn) {
                work += STALE;
            } else {
                return None;
            }
        }
        Some(work)
    }
}
