//! What can go wrong: [`Error`] says which operation failed, of which kind the failure is, and what is behind it.
//!
//! Every text names the operation, the numbers, and what would have been right. What a driver said is kept as
//! [`DriverError`], with its own code and name.

mod classify;
mod detail;
mod driver;
mod extension;
mod kind;

pub use detail::Detail;
pub use driver::{DriverError, LoadAttempt};
pub use extension::ExtensionError;
pub use kind::ErrorKind;

use crate::types::{AddressRange, Operation};
use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

/// What every fallible function of gpu-vmm returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of gpu-vmm, one pointer wide.
///
/// A program acts on its [`kind`](Self::kind). Its text begins with the [`operation`](Self::operation) and has all numbers; a
/// program that needs those matches on the [`detail`](Self::detail).
///
/// ```
/// use gpu_vmm_core::{Bytes, Detail, Error, ErrorKind, OffsetRange, Operation};
///
/// let range = OffsetRange { offset: Bytes::mib(6), length: Bytes::mib(4) };
/// let error = Error::new(Operation::Unmap, Detail::OutOfRange { range, limit: Bytes::mib(8) });
/// assert_eq!(error.kind(), ErrorKind::OutOfRange);
/// assert_eq!(error.operation(), Operation::Unmap);
/// assert_eq!(error.to_string(), "unmap: 4 MiB at offset 6 MiB ends at 10 MiB, beyond the limit of 8 MiB");
/// ```
#[derive(Clone)]
pub struct Error(Box<Failed>);

#[derive(Clone)]
struct Failed {
    operation: Operation,
    detail: Detail,
}

impl Error {
    /// An error of this operation.
    #[must_use]
    pub fn new(operation: Operation, detail: Detail) -> Self {
        Self(Box::new(Failed { operation, detail }))
    }

    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.detail.kind()
    }

    /// What was asked for.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// What is behind it, with the numbers.
    #[must_use]
    pub fn detail(&self) -> &Detail {
        &self.0.detail
    }

    /// The same as [`detail`](Self::detail), without the error around it.
    #[must_use]
    pub fn into_detail(self) -> Detail {
        self.0.detail
    }

    /// The same error of the same operation, with something else behind it.
    #[must_use]
    pub fn map_detail(mut self, map: impl FnOnce(Detail) -> Detail) -> Self {
        self.0.detail = map(self.0.detail);
        self
    }

    /// Returns true for an error of the [kind](Self::kind) [`ErrorKind::OutOfMemory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.kind() == ErrorKind::OutOfMemory
    }

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

    /// An answer of a driver that has no kind of its own, with the numbers that it was given.
    #[must_use]
    pub fn driver(operation: Operation, source: DriverError, range: AddressRange) -> Self {
        Self::new(operation, Detail::Driver { source, context: range.to_string() })
    }

    /// This error, where putting back what the operation had done failed as well.
    #[must_use]
    pub fn rollback_failed(self, undo: Self) -> Self {
        Self::new(self.operation(), Detail::RollbackFailed { error: self, undo })
    }

    /// The driver's answer that is behind this error, where there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self.detail() {
            Detail::OutOfMemory { source, .. }
            | Detail::DeviceLost { source, .. }
            | Detail::File { source, .. }
            | Detail::Driver { source, .. }
            | Detail::Capturing { source: Some(source), .. } => Some(source),
            Detail::RollbackFailed { error: source, .. } | Detail::AddressesLost { source, .. } => {
                source.driver_error()
            }
            Detail::Extension(error) => error.driver_error(),
            _ => None,
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.operation, self.0.detail)
    }
}

impl fmt::Debug for Error {
    /// Prints the same line as `Display`, which is what a program prints whose `main` returns the error; `{:#?}` prints the
    /// fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.kind())
            .field("operation", &self.0.operation)
            .field("detail", &self.0.detail)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.detail.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn an_error_of_main_reads_well() {
        let error = Error::new(Operation::Grow, Detail::ZeroSize);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:#?}").contains("kind: InvalidArgument"), "{error:#?}");
    }
}
