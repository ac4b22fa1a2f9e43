//! What others said: a driver, the system, the loader.

use std::borrow::Cow;
use std::fmt;
use std::io;

/// What a driver answered to one call.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} answered {name} ({code}){}", self.text())]
pub struct DriverError {
    /// The function that was called, such as `cuMemCreate`.
    pub call: &'static str,
    /// The driver's code, as a number, since a newer driver has codes that no binding knows.
    pub code: i64,
    /// The driver's name for the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: Cow<'static, str>,
    /// The driver's own explanation, where it has one.
    pub description: Cow<'static, str>,
}

impl DriverError {
    /// What the operating system answered to a call of its own.
    #[must_use]
    pub fn system(call: &'static str, error: &io::Error) -> Self {
        let name = error.kind().to_string().into();
        let code = error.raw_os_error().map_or(0, i64::from);
        Self { call, code, name, description: error.to_string().into() }
    }

    fn text(&self) -> String {
        if self.description.is_empty() { String::new() } else { format!(": {}", self.description) }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One place where a library was looked for, and what the loader said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The name or path that was given to the loader.
    pub library: String,
    /// The loader's answer.
    pub answer: String,
}

pub(super) fn list(tried: &[Tried]) -> String {
    tried.iter().map(|one| format!("\n  {}: {}", one.library, one.answer)).collect()
}
