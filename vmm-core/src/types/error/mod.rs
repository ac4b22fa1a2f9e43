//! The error type of gpu-vmm. An [`Error`] holds the operation that failed and a [`Detail`] with the cause and its numbers;
//! its [`ErrorKind`] follows from the detail.
//!
//! Every text states the operation, the numbers, and what would have been right. A driver's error is kept as a
//! [`DriverError`], with the driver's own code and name.

mod classify;
mod detail;
mod driver;
mod extension;
mod kind;

pub use detail::Detail;
pub use driver::{DriverError, LoadAttempt};
pub use extension::ExtensionError;
pub use kind::ErrorKind;

use crate::types::Operation;
use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

/// The result type of gpu-vmm's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of gpu-vmm, one pointer wide.
///
/// Programs act on its [`kind`](Self::kind). Its text begins with the [`operation`](Self::operation) and contains all numbers.
/// Programs that need the numbers match on the [`detail`](Self::detail).
///
/// ```
/// # use gpu_vmm_core as gpu_vmm;
/// use gpu_vmm::{Bytes, Detail, Error, ErrorKind, OffsetRange, Operation};
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
    /// Creates an error of an operation.
    #[must_use]
    pub fn new(operation: Operation, detail: Detail) -> Self {
        Self(Box::new(Failed { operation, detail }))
    }

    /// Returns the kind of the error, which determines what a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.detail.kind()
    }

    /// Returns the operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the cause of the error, with its numbers.
    #[must_use]
    pub fn detail(&self) -> &Detail {
        &self.0.detail
    }

    /// Consumes the error and returns its [`detail`](Self::detail).
    #[must_use]
    pub fn into_detail(self) -> Detail {
        self.0.detail
    }

    /// Replaces the detail and keeps the operation.
    #[must_use]
    pub fn map_detail(mut self, map: impl FnOnce(Detail) -> Detail) -> Self {
        self.0.detail = map(self.0.detail);
        self
    }

    /// Returns true if the [kind](Self::kind) is [`ErrorKind::OutOfMemory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.kind() == ErrorKind::OutOfMemory
    }

    /// Creates an error from the error of an extension.
    #[must_use]
    pub fn of_extension(operation: Operation, error: impl ExtensionError) -> Self {
        Self::new(operation, Detail::Extension(Arc::new(error)))
    }

    /// Returns the extension's error if this error was created from one of type `E`.
    #[must_use]
    pub fn extension<E: ExtensionError>(&self) -> Option<&E> {
        match self.detail() {
            Detail::Extension(error) => (&**error as &dyn Any).downcast_ref(),
            _ => None,
        }
    }

    /// Creates the error of a call of a driver or the operating system: [`Detail::OutOfDescriptors`] for `EMFILE`, and otherwise
    /// [`Detail::Driver`]. `context` states the arguments of the call.
    #[must_use]
    pub fn driver(operation: Operation, source: DriverError, context: impl fmt::Display) -> Self {
        let context = context.to_string();
        let detail = match source.is_out_of_descriptors() {
            true => Detail::OutOfDescriptors { source, context },
            false => Detail::Driver { source, context },
        };
        Self::new(operation, detail)
    }

    /// Combines this error with the error of the rollback that it caused, as [`Detail::RollbackFailed`].
    #[must_use]
    pub fn rollback_failed(self, undo: Self) -> Self {
        Self::new(self.operation(), Detail::RollbackFailed { error: self, undo })
    }

    /// Returns the driver's error that caused this one, if any.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self.detail() {
            Detail::OutOfMemory { source, .. }
            | Detail::OutOfAddresses { source, .. }
            | Detail::DeviceLost { source, .. }
            | Detail::File { source, .. }
            | Detail::Driver { source, .. }
            | Detail::OutOfDescriptors { source, .. }
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
    /// Prints the same line as `Display`, because `Debug` is used when `main` returns an error. `{:#?}` prints the fields.
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
    use crate::types::{Address, AddressRange, Bytes, DeviceId};

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn an_error_of_main_reads_well() {
        let error = Error::new(Operation::Grow, Detail::ZeroSize);
        assert_eq!(format!("{error:?}"), error.to_string());
        let fields = "Error {\n    kind: InvalidArgument,\n    operation: Grow,\n    detail: ZeroSize,\n}";
        assert_eq!(format!("{error:#?}"), fields);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("refused: {0}")]
    struct Refused(DriverError);

    impl ExtensionError for Refused {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Peer
        }

        fn driver_error(&self) -> Option<&DriverError> {
            Some(&self.0)
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("gone")]
    struct Gone;

    impl ExtensionError for Gone {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Busy
        }
    }

    #[test]
    fn driver_error_is_found_where_present() {
        let source = DriverError { call: "call", code: 7, name: "NAME".into(), description: "".into() };
        let found = |detail| Error::new(Operation::Map, detail).driver_error().cloned();
        let other = DriverError { code: 8, ..source.clone() };
        let [cause, undo] = [&source, &other].map(|source| {
            let range = AddressRange { base: Address(0x1000), size: Bytes(0x1000) };
            Error::driver(Operation::Grow, source.clone(), range)
        });
        let details = [
            Detail::OutOfMemory {
                device: DeviceId(0),
                requested: Bytes(1),
                free: Bytes::ZERO,
                total: Bytes(1),
                source: source.clone(),
            },
            Detail::DeviceLost { source: source.clone() },
            Detail::File { path: String::new(), source: source.clone() },
            Detail::Capturing { source: Some(source.clone()) },
            cause.detail().clone(),
            cause.clone().rollback_failed(undo).into_detail(),
            Detail::AddressesLost { address: Address(0), reserved: Bytes(1), source: cause.clone() },
            Detail::Extension(Arc::new(Refused(source.clone()))),
        ];
        for detail in details {
            assert_eq!(found(detail.clone()), Some(source.clone()), "{detail}");
        }
        for detail in
            [Detail::ZeroSize, Detail::Capturing { source: None }, Detail::Extension(Arc::new(Gone))]
        {
            assert_eq!(found(detail.clone()), None, "{detail}");
        }
        assert!(cause.to_string().contains("0x1000..0x2000 (4 KiB)"), "{cause}");
        assert_eq!(std::error::Error::source(&cause).map(ToString::to_string), Some(source.to_string()));
    }

    #[test]
    fn error_keeps_operation_and_extension() {
        let error = Error::of_extension(Operation::Grow, Gone);
        assert_eq!((error.kind(), error.is_out_of_memory()), (ErrorKind::Busy, false));
        assert!(error.extension::<Gone>().is_some() && error.extension::<Refused>().is_none());
        let both = error.rollback_failed(Error::new(Operation::Unmap, Detail::Forked));
        assert_eq!((both.operation(), both.kind()), (Operation::Grow, ErrorKind::Poisoned));
        let changed = both.map_detail(|_| Detail::ZeroSize);
        assert_eq!((changed.operation(), changed.kind()), (Operation::Grow, ErrorKind::InvalidArgument));
        assert!(changed.extension::<Gone>().is_none());
        // Addresses are not memory: to free some does not help.
        let full = Detail::ExceedsAddressSpace { size: Bytes(2), limit: Bytes(1) };
        assert!(!Error::new(Operation::Reserve, full).is_out_of_memory());
    }
}
