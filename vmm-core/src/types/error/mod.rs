//! What can go wrong, one kind for each thing that a caller would do about it.
//!
//! Every text names the operation, the numbers, and what would have been right. What a driver said is kept as
//! [`DriverError`], with its own code and name. Checks come before any driver call, so the kinds up to
//! [`Error::NotBound`] mean that no driver was asked and nothing has changed.

mod driver;
mod kind;
mod kinds;

pub use driver::{DriverError, LoadAttempt};
pub use kind::ErrorKind;
pub use kinds::Error;

use crate::types::AddressRange;

/// What every fallible function of gpu-vmm gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True where the device has too little memory, free or at all.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::ExceedsDevice { .. } => true,
            Self::Partial { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }

    /// An answer of a driver that has no kind of its own, with the numbers that it was given.
    #[must_use]
    pub fn driver(operation: &'static str, source: DriverError, range: AddressRange) -> Self {
        Self::Driver { operation, source, context: range.to_string() }
    }

    /// The driver's answer that is behind this error, where there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::OutOfMemory { source, .. }
            | Self::DeviceLost { source, .. }
            | Self::File { source, .. }
            | Self::Driver { source, .. }
            | Self::Capturing { source: Some(source), .. } => Some(source),
            Self::RollbackFailed { error: source, .. }
            | Self::AddressesLost { source, .. }
            | Self::Partial { source, .. } => source.driver_error(),
            _ => None,
        }
    }
}
