//! The errors of this program: one line with the fault and the remedy.

use std::fmt;

/// The fault, and the remedy if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(String);

pub(crate) type Answer<T = ()> = Result<T, Trouble>;

impl Trouble {
    /// Creates an error from a text of several lines, such as the output of a program.
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        let lines = text.as_ref().lines().map(str::trim).filter(|line| !line.is_empty());
        Self(lines.collect::<Vec<_>>().join("; "))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds what the program was doing to an error.
pub(crate) trait Doing<T> {
    /// Starts the line with `what`.
    fn doing(self, what: impl FnOnce() -> String) -> Answer<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Answer<T> {
        self.map_err(|error| Trouble::new(format!("{}: {error}", what())))
    }
}
