//! The conformance suite where it cannot run.

use crate::Answer;
use crate::args::ConformanceArguments;

/// The suite runs cases in processes that it forks, and that end with it, which Linux alone has.
pub(crate) fn run(_: &ConformanceArguments) -> Answer {
    Err("the conformance suite runs on Linux alone".into())
}
