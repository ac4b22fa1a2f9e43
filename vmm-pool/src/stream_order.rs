//! In which order memory comes free: a moment in the work of a stream.

/// A stream's number in its pool.
pub(crate) type StreamIndex = u16;

/// No work uses the memory any more, on any stream.
pub(crate) const CLEAN: StreamIndex = 0;

/// Several streams have used it.
pub(crate) const MIXED: StreamIndex = StreamIndex::MAX;

/// After which work memory is free: what was queued on a stream up to a moment. Moments are counted by the pool and fit
/// 48 bits, which is a free every nanosecond for three days, and at the rate of real programs for years.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn(u64);

impl Turn {
    /// Free for everybody.
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

    /// Free for everybody, since the same moment.
    pub(crate) const fn for_all(self) -> Self {
        Self::new(CLEAN, self.moment())
    }

    /// After the work of both.
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
