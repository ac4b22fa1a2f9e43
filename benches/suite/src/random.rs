//! Random numbers that defeat caches, the same in every run.

/// Knuth's MMIX generator, whose upper bits are good.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new() -> Self {
        Self(1)
    }

    /// Returns a number below `limit`, which must be less than 2^32.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * limit) >> 32
    }
}
