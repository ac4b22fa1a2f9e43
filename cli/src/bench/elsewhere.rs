//! The benchmarks where they cannot run.

use crate::Answer;
use crate::args::BenchArguments;

/// The driver's own calls are found as Unix has them, and reports say on what they were made as Linux tells.
pub(crate) fn run(_: &BenchArguments) -> Answer {
    Err("the benchmarks run on Linux alone".into())
}
