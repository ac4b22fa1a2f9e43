//! The pattern that fills the memory, so that lost and misplaced bytes are detected.
//!
//! A word depends only on the sum of seed and index. Each part is written with the seed for its offset, so all parts
//! together can be checked as one.

use crate::progress::Progress;
use gpu_vmm::{Bytes, Result};
use gpu_vmm_testkit::PATTERN_WORD;

const SEED: u64 = 0x67_70_75_2d_76_6d_6d;

/// The size that is written or checked at a time, so that the progress bar moves.
const PIECE: Bytes = Bytes::mib(256);

/// Returns the seed of the part that begins at an offset.
fn seed_at(offset: Bytes) -> u64 {
    SEED.wrapping_add(offset.0 / PATTERN_WORD.0)
}

/// Calls `work` with the offset, length and seed of each piece of a part, and returns the sum of its results.
pub(crate) fn each_piece(
    from: Bytes,
    to: Bytes,
    progress: &Progress,
    mut work: impl FnMut(Bytes, Bytes, u64) -> Result<u64>,
) -> Result<u64> {
    let mut sum = 0;
    let mut offset = from;
    while offset < to {
        let length = PIECE.min(to - offset);
        sum += work(offset, length, seed_at(offset))?;
        progress.advance(length);
        offset += length;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_testkit::pattern_word;

    #[test]
    fn pieces_continue_the_pattern() -> Result<()> {
        let (from, to) = (Bytes::mib(2), Bytes::mib(1000));
        let mut next = from;
        let progress = Progress::new(false);
        let sum = each_piece(from, to, &progress, |offset, length, seed| {
            assert_eq!(offset, next);
            assert_eq!(pattern_word(seed, 0), pattern_word(SEED, offset.0 / 8));
            next = offset + length;
            Ok(length.0)
        })?;
        assert_eq!((next, sum), (to, (to - from).0));
        Ok(())
    }
}
