//! The names of vendors, as a user writes them. An error names a vendor, so that `device` does not return one.

use crate::types::{Detail, Error, Operation, Result, Vendor};
use std::str::FromStr;

impl FromStr for Vendor {
    type Err = Error;

    /// Parses a [name](Vendor::name) in upper or lower case: `cuda`, `hip` or `host`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for any other text.
    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Cuda, Self::Hip, Self::Host];
        all.into_iter().find(|vendor| vendor.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let reason = format!("there is no backend {name:?}; write cuda, hip or host");
            Error::new(Operation::Open, Detail::Unsupported { reason })
        })
    }
}

impl TryFrom<&str> for Vendor {
    type Error = Error;

    /// Parses a name, like [`str::parse`].
    fn try_from(name: &str) -> Result<Self> {
        name.parse()
    }
}
