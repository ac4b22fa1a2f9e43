//! Errors of drivers, the operating system and the dynamic loader.

#[cfg(unix)]
use crate::types::errno;
use std::borrow::Cow;
use std::fmt;
use std::io;

/// The error that a driver or the operating system returned for one call.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} answered {name} ({code}){}", self.text())]
pub struct DriverError {
    /// The function that failed, such as `cuMemCreate`.
    pub call: &'static str,
    /// The driver's error code. It is a number because a newer driver can return codes that no binding knows.
    pub code: i64,
    /// The driver's name for the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: Cow<'static, str>,
    /// The driver's explanation; empty if it has none.
    pub description: Cow<'static, str>,
}

impl DriverError {
    /// Creates the error of a call to the operating system.
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
        // The code is printed separately, and the text of an error without a payload is the name of its kind.
        let text = text.split(" (os error").next().filter(|text| *text != name).unwrap_or_default();
        Self { call, code, description: text.to_owned().into(), name: name.into() }
    }

    /// Returns true for `EMFILE`, which the operating system returns if the process has no descriptor left.
    pub(super) fn is_out_of_descriptors(&self) -> bool {
        self.name == "EMFILE"
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

/// One attempt to load a library, and the loader's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadAttempt {
    /// The name or path that was passed to the loader.
    pub library: String,
    /// The loader's message.
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
        let short = DriverError::system("open", &io::ErrorKind::OutOfMemory.into());
        let both = [short.to_string(), format!("{short:?}")];
        assert_eq!(both, ["open answered out of memory (0)"; 2]);
        let own = io::Error::new(io::ErrorKind::AlreadyExists, "the existing file is not a regular file");
        assert_eq!(
            text(own),
            "open answered entity already exists (0): the existing file is not a regular file"
        );
    }
}
