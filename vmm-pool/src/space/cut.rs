//! The remainders of a waiting range in the pages of a part that is taken: pages count the ranges that wait in them.

use super::ranges::Range;

/// A waiting range of which a part is taken. Its remainders before and behind the part may lie in the first and the last page
/// of the part.
pub(super) struct Cut {
    /// The page in which something is left before the part, or [`NOWHERE`].
    before: usize,
    /// The page in which something is left behind the part, or [`NOWHERE`].
    behind: usize,
}

const NOWHERE: usize = usize::MAX;

impl Cut {
    /// Returns none if the range does not wait.
    #[inline]
    pub(super) fn new(
        range: &Range,
        (from, to): (u64, u64),
        pages: &std::ops::Range<usize>,
        page: u64,
    ) -> Option<Self> {
        let (first, last) = (pages.start, pages.end - 1);
        let (begins_before, ends_behind) = (range.offset < from, range.end() > to);
        range.waits().then_some(Self {
            before: if begins_before && first as u64 * page < from { first } else { NOWHERE },
            behind: if ends_behind && to < pages.end as u64 * page { last } else { NOWHERE },
        })
    }

    /// Returns how many ranges are left of it in a page of the part.
    #[inline]
    pub(super) fn left(&self, page: usize) -> u32 {
        u32::from(self.before == page) + u32::from(self.behind == page)
    }
}
