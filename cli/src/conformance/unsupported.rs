//! The `conformance` subcommand on systems where it cannot run.

use crate::CliResult;
use crate::args::ConformanceArguments;

/// The suite runs cases in forked processes that end with it, which needs Linux.
pub(crate) fn run(_: &ConformanceArguments) -> CliResult {
    Err("conformance runs on Linux only".into())
}
