//! What others said: a driver, the system, the loader.

#[cfg(unix)]
use crate::types::errno;
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
        #[cfg(unix)]
        if let Some(code) = error.raw_os_error() {
            let errno = rustix::io::Errno::from_raw_os_error(code);
            let (name, description) = (errno::name(errno), errno::explanation(call, errno));
            return Self { call, code: code.into(), name, description };
        }
        let code = error.raw_os_error().map_or(0, i64::from);
        let (name, text) = (error.kind().to_string(), error.to_string());
        // The code is said already, and so is all of an error that is a kind and nothing else.
        let text = text.split(" (os error").next().filter(|text| *text != name).unwrap_or_default();
        Self { call, code, description: text.to_owned().into(), name: name.into() }
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
pub struct LoadAttempt {
    /// The name or path that was given to the loader.
    pub library: String,
    /// The loader's answer.
    pub answer: String,
}

pub(super) fn list(tried: &[LoadAttempt]) -> String {
    tried.iter().map(|one| format!("\n  {}: {}", one.library, one.answer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_said_once() {
        let text = |error| DriverError::system("open", &error).to_string();
        #[cfg(unix)]
        assert_eq!(
            text(io::Error::from_raw_os_error(2)),
            "open answered ENOENT (2): No such file or directory"
        );
        assert_eq!(text(io::ErrorKind::OutOfMemory.into()), "open answered out of memory (0)");
        let own = io::Error::new(io::ErrorKind::AlreadyExists, "what is there is no regular file");
        assert_eq!(text(own), "open answered entity already exists (0): what is there is no regular file");
    }
}
