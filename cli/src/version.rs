//! The version of the command, with its commit and its features.

/// The commit that the command was built from, or why it is unknown.
pub(crate) const COMMIT: &str = env!("GPU_VMM_COMMIT");

/// The features that the command was built with.
pub(crate) const FEATURES: &str = env!("GPU_VMM_FEATURES");

/// The text of `--version`.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("GPU_VMM_COMMIT"),
    "\nfeatures ",
    env!("GPU_VMM_FEATURES"),
    "\ntarget ",
    env!("GPU_VMM_TARGET")
);
