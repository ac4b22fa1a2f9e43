//! Why a pair ends early.

use gpu_vmm_core::{Detail, Error};
use gpu_vmm_testkit::raw::Missing;
use std::any::Any;

/// The result of a step of a pair.
pub type StepResult<T = ()> = Result<T, Stop>;

/// Why a pair ends early.
#[derive(Debug)]
pub enum Stop {
    /// This device, version or machine lacks something that the pair needs.
    Skipped(String),
    /// The pair failed.
    Failed(String),
}

impl Stop {
    /// Converts a panic.
    pub(crate) fn of(panic: Box<dyn Any + Send>) -> Self {
        match panic.downcast::<Missing>() {
            Ok(missing) => Self::Skipped(missing.0),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Self::Failed(text.unwrap_or("a panic without a text").to_owned())
            }
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error.detail() {
            Detail::Unsupported { .. } => Self::Skipped(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
