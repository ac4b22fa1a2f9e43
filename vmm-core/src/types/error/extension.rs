//! Errors of the crates that extend this one.

use super::{DriverError, ErrorKind};
use std::any::Any;

/// An error type of a crate that extends this one, such as a peer that is gone or a file that is not a snapshot.
///
/// The crate's functions still return [`Error`](crate::Error), so that programs handle one type.
/// [`Error::extension`](crate::Error::extension) returns the crate's own error.
pub trait ExtensionError: std::error::Error + Any + Send + Sync {
    /// Returns the kind of the error.
    fn kind(&self) -> ErrorKind;

    /// Returns the driver's error that caused this one, if any.
    fn driver_error(&self) -> Option<&DriverError> {
        None
    }
}
