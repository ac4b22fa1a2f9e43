//! `serve` needs Linux.

use crate::CliResult;
use crate::args::serve::ServeArguments;

pub(crate) fn run(_: &ServeArguments) -> CliResult {
    Err("serve needs Linux: memory is passed between processes as descriptors".into())
}
