//! Reproducible random numbers for tests.

/// A splitmix64 generator; the field is its seed and state.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    #[allow(clippy::should_implement_trait)] // the sequence never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}
