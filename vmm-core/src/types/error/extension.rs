//! Errors of the crates above this one.

use super::{DriverError, ErrorKind};
use std::any::Any;

/// An error that a crate on top of this one adds, such as a peer that is gone or a file that is no snapshot.
///
/// The crate's functions return [`Error`](crate::Error) all the same, so that a program has one type to deal with, and
/// [`Error::extension`](crate::Error::extension) gives the crate's own back.
pub trait ExtensionError: std::error::Error + Any + Send + Sync {
    /// What a program can do about it.
    fn kind(&self) -> ErrorKind;

    /// The driver's answer behind it, where there is one.
    fn driver_error(&self) -> Option<&DriverError> {
        None
    }
}
