//! The sizes of the steps of growth.

use crate::numbers::some_bytes;
use gpu_vmm::{Bytes, Granularity};
use std::str::FromStr;

/// The size that each step adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Increment {
    /// The current size.
    Double,
    /// A constant size.
    By(Bytes),
}

impl FromStr for Increment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "double" => Ok(Self::Double),
            size => some_bytes(size).map(Self::By),
        }
    }
}

impl std::fmt::Display for Increment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Double => f.write_str("doubling"),
            Self::By(size) => write!(f, "steps of {size}"),
        }
    }
}

/// The sizes from `from` to `to` in multiples of the granularity. `to` is the last size whatever the increment. Each
/// size is larger than the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) from: Bytes,
    pub(crate) to: Bytes,
    increment: Increment,
    granularity: Granularity,
}

impl Steps {
    /// Returns the steps between two sizes; `from` is at most `to`.
    pub(crate) fn new(from: Bytes, to: Bytes, increment: Increment, granularity: Granularity) -> Self {
        let rounded = |size| granularity.round_up(size).unwrap_or(size);
        Self { from: rounded(from), to: rounded(to), increment, granularity }
    }

    pub(crate) fn sizes(self) -> impl Iterator<Item = Bytes> {
        std::iter::successors(Some(self.from), move |size| (*size < self.to).then(|| self.after(*size)))
    }

    /// Returns the memory that growth by copying needs: the last two sizes together.
    pub(crate) fn most_with_a_copy(self) -> Bytes {
        let before_last = self.sizes().take_while(|size| *size < self.to).last();
        self.to + before_last.unwrap_or(Bytes::ZERO)
    }

    fn after(self, size: Bytes) -> Bytes {
        let next = match self.increment {
            Increment::Double => size + size,
            Increment::By(more) => size + more,
        };
        self.granularity.round_up(next).map_or(self.to, |next| next.min(self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(from: Bytes, to: Bytes, increment: Increment) -> Steps {
        Steps::new(from, to, increment, Granularity::new(Bytes::mib(2)).unwrap())
    }

    fn mebibytes(from: Bytes, to: Bytes, increment: Increment) -> Vec<u64> {
        steps(from, to, increment).sizes().map(|size| size.0 >> 20).collect()
    }

    #[test]
    fn last_size_is_the_requested_one() {
        let mib = Bytes::mib;
        assert_eq!(mebibytes(mib(2), mib(20), Increment::Double), [2, 4, 8, 16, 20]);
        assert_eq!(mebibytes(mib(2), mib(8), Increment::By(mib(4))), [2, 6, 8]);
        assert_eq!(mebibytes(mib(8), mib(8), Increment::Double), [8]);
    }

    #[test]
    fn sizes_are_rounded_up_and_always_larger() {
        assert_eq!(mebibytes(Bytes(1), Bytes::mib(5), Increment::By(Bytes(1))), [2, 4, 6]);
        assert_eq!(mebibytes(Bytes(1), Bytes(2), Increment::Double), [2]);
    }

    #[test]
    fn a_copy_needs_the_last_two_sizes() {
        let most = |from, to| steps(Bytes::mib(from), Bytes::mib(to), Increment::Double).most_with_a_copy();
        assert_eq!(most(2, 20), Bytes::mib(36));
        assert_eq!(most(8, 8), Bytes::mib(8));
    }

    #[test]
    fn increments_are_read() {
        assert_eq!("double".parse(), Ok(Increment::Double));
        assert_eq!("64MiB".parse(), Ok(Increment::By(Bytes::mib(64))));
        assert!("0".parse::<Increment>().is_err());
        assert!("triple".parse::<Increment>().is_err());
        assert_eq!(Increment::Double.to_string(), "doubling");
        assert_eq!(Increment::By(Bytes::mib(64)).to_string(), "steps of 64 MiB");
    }
}
