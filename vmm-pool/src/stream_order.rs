//! The order in which memory becomes free: moments in the work of streams.

/// A stream's number in its pool.
pub(crate) type StreamIndex = u16;

/// The number for memory that no work uses any more, on any stream.
pub(crate) const CLEAN: StreamIndex = 0;

/// The number for several streams.
pub(crate) const MIXED: StreamIndex = StreamIndex::MAX;

/// The work after which memory is free: everything that was queued on a stream up to a moment. The pool counts one moment per
/// free. Moments have 48 bits, which last three days at a free every nanosecond, and years at the rate of real programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeAfter(u64);

impl FreeAfter {
    /// Free for every stream.
    pub(crate) const FREE: Self = Self(CLEAN as u64);

    pub(crate) const fn new(stream: StreamIndex, moment: u64) -> Self {
        Self(moment << 16 | stream as u64)
    }

    pub(crate) const fn stream(self) -> StreamIndex {
        self.0 as StreamIndex
    }

    pub(crate) const fn moment(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the later one of two moments of the same stream.
    pub(crate) fn later(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_moment_has_more_work() {
        let (one, later) = (FreeAfter::new(7, 5), FreeAfter::new(7, 1 << 40));
        assert_eq!([one.later(later), later.later(one)], [later; 2]);
        assert_eq!((later.stream(), later.moment()), (7, 1 << 40));
        assert_eq!(FreeAfter::FREE.later(FreeAfter::FREE), FreeAfter::FREE);
    }
}
