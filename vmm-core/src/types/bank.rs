//! Identifiers of the banks that share one range of addresses.

use std::fmt;

/// The identifier of a bank in a [`BankedRegion`](crate::BankedRegion). The identifier of a removed bank is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BankId(pub u32);

impl fmt::Display for BankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("bank {}", self.0))
    }
}
