//! The `bench` subcommand on systems where it cannot run.

use crate::CliResult;
use crate::args::BenchArguments;

/// The driver's own calls are looked up as on Unix, and reports describe the machine from Linux's files.
pub(crate) fn run(_: &BenchArguments) -> CliResult {
    Err("bench runs on Linux only".into())
}
