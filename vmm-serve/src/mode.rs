//! The users that may read and replace a region.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The rights of users to a region, as the permission bits of a file: read 4 and write 2 for its owner, its group and all others.
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_serve as serve; }
/// use gpu_vmm::serve::Mode;
///
/// assert_eq!(Mode::default(), Mode::new(0o600).unwrap());
/// assert_eq!(Mode::new(0o640).unwrap().to_string(), "640");
/// assert_eq!(Mode::new(0o700), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mode(u16);

impl Default for Mode {
    /// The owner may read and write, other users nothing.
    fn default() -> Self {
        Self(0o600)
    }
}

impl Mode {
    /// Returns the mode with these bits, or `None` if there are others than read and write.
    #[must_use]
    pub const fn new(bits: u16) -> Option<Self> {
        if bits & !0o666 == 0 { Some(Self(bits)) } else { None }
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the mode if a peer that sent it may have.
    pub(crate) const fn checked(self) -> Option<Self> {
        Self::new(self.0)
    }

    /// Returns whether a user may read, and whether it may write.
    pub(crate) const fn rights(self, is_owner: bool, is_in_group: bool) -> (bool, bool) {
        let bits = match (is_owner, is_in_group) {
            (true, _) => self.0 >> 6,
            (false, true) => self.0 >> 3,
            (false, false) => self.0,
        };
        (bits & 4 != 0, bits & 2 != 0)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_class_that_fits_decides() {
        let mode = Mode(0o246);
        assert_eq!(mode.rights(true, true), (false, true));
        assert_eq!(mode.rights(false, true), (true, false));
        assert_eq!(mode.rights(false, false), (true, true));
    }
}
