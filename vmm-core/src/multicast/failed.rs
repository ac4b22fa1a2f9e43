//! A step that failed, with the value that it would have consumed.

use crate::types::Error;

/// The error of a step, and the unchanged value that the step would have consumed. Try the step again with it, or drop it.
///
/// In functions that return the library's [`Result`](crate::Result), `?` returns the error and drops the value.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.0)]
pub struct Failed<T>(Box<(Error, T)>);

impl<T> Failed<T> {
    pub(super) fn new(error: Error, kept: T) -> Self {
        Self(Box::new((error, kept)))
    }

    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// Returns the value.
    #[must_use]
    pub fn into_kept(self) -> T {
        self.0.1
    }
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.0.0
    }
}
