//! Errors of the crates above this one.

use super::{Detail, DriverError, Error, ErrorKind};
use crate::types::Operation;
use std::any::Any;
use std::sync::Arc;

/// An error that a crate on top of this one adds, such as a peer that is gone or a file that is no snapshot.
///
/// The crate's functions return [`Error`] all the same, so that a program has one type to deal with, and
/// [`Error::extension`] gives the crate's own back.
pub trait ExtensionError: std::error::Error + Any + Send + Sync {
    /// What a program can do about it.
    fn kind(&self) -> ErrorKind;

    /// The driver's answer behind it, where there is one.
    fn driver_error(&self) -> Option<&DriverError> {
        None
    }
}

impl Error {
    /// An error of an extension.
    #[must_use]
    pub fn of_extension(operation: Operation, error: impl ExtensionError) -> Self {
        Self::new(operation, Detail::Extension(Arc::new(error)))
    }

    /// The error of an extension that is behind this one, where it is of this type.
    #[must_use]
    pub fn extension<E: ExtensionError>(&self) -> Option<&E> {
        match self.detail() {
            Detail::Extension(error) => (&**error as &dyn Any).downcast_ref(),
            _ => None,
        }
    }
}
