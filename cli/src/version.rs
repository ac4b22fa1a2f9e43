//! The version of the command, with its commit and its features.

/// The commit that the command was built from, or why it is unknown.
pub(crate) const COMMIT: &str = env!("BUILT_FROM_COMMIT");

/// The features that the command was built with.
pub(crate) const FEATURES: &str = env!("BUILT_WITH_FEATURES");

/// The text of `--version`.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("BUILT_FROM_COMMIT"),
    "\nfeatures ",
    env!("BUILT_WITH_FEATURES"),
    "\ntarget ",
    env!("BUILT_FOR_TARGET")
);
