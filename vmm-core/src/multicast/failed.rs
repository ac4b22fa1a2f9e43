//! A step that could not be made, with what it would have used up.

use crate::types::Error;

/// Why a step failed, and what it was made from, as it was: the step can be tried again, or given up by dropping this.
///
/// In functions that give the library's [`Result`](crate::Result), `?` takes the error and drops the rest.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.0)]
pub struct Failed<T>(Box<(Error, T)>);

impl<T> Failed<T> {
    pub(super) fn new(error: Error, kept: T) -> Self {
        Self(Box::new((error, kept)))
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// What there still is.
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
