//! The name of one set of memory among several that share an address.

use std::fmt;

/// Which set of [`BankedRegion`](crate::BankedRegion). The number of one that was removed is given to no other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BankId(pub(crate) u32);

impl fmt::Display for BankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("set {}", self.0))
    }
}
