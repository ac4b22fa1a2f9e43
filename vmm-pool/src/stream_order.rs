//! The order in which memory becomes free: moments in the work of streams.

/// A stream's number in its pool.
pub(crate) type StreamIndex = u16;

/// The number for memory that no work uses any more, on any stream.
pub(crate) const CLEAN: StreamIndex = 0;

/// The number for memory that several streams have used.
pub(crate) const MIXED: StreamIndex = StreamIndex::MAX;

/// The work after which memory is free: everything that was queued on a stream up to a moment. The pool counts one moment per
/// free. Moments have 48 bits, which last three days at a free every nanosecond, and years at the rate of real programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn(u64);

impl Turn {
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

    /// Returns the order for memory that is free for every stream since the same moment.
    pub(crate) const fn for_all(self) -> Self {
        Self::new(CLEAN, self.moment())
    }

    /// Returns the order for memory that is free after the work of both.
    #[inline]
    pub(crate) fn and(self, other: Self) -> Self {
        let moment = self.moment().max(other.moment());
        match (self.stream(), other.stream()) {
            (CLEAN, _) => other,
            (_, CLEAN) => self,
            (one, two) if one == two => Self::new(one, moment),
            _ => Self::new(MIXED, moment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_waited_for() {
        let (one, later, other) = (Turn::new(1, 5), Turn::new(1, 7), Turn::new(2, 6));
        assert_eq!(one.and(later), later);
        assert_eq!(later.and(one), later);
        assert_eq!(Turn::FREE.and(one), one);
        assert_eq!(one.and(Turn::FREE), one);
        assert_eq!(later.and(other), Turn::new(MIXED, 7));
        assert_eq!(Turn::new(MIXED, 9).and(one), Turn::new(MIXED, 9));
    }
}
