//! The `check` subcommand on systems where it cannot run.

use crate::CliResult;
use crate::args::CheckArguments;

/// It runs the conformance suite, which needs Linux.
pub(crate) fn run(_: &CheckArguments) -> CliResult {
    Err("check runs on Linux only".into())
}
