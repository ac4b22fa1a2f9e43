//! The errors of this program: one line for people, with what is wrong and what to do.

use std::fmt;

/// What is wrong and, where something can be done about it, what.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(String);

pub(crate) type Answer<T = ()> = Result<T, Trouble>;

impl Trouble {
    /// From a text that may have several lines, as the output of a program has.
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

/// Says what was being done when something failed.
pub(crate) trait Doing<T> {
    /// `what` becomes the beginning of the line.
    fn doing(self, what: impl FnOnce() -> String) -> Answer<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Answer<T> {
        self.map_err(|error| Trouble::new(format!("{}: {error}", what())))
    }
}
