//! What runs came to, for people and for programs.
//!
//! | file | subject |
//! |---|---|
//! | `results` | the report of one run, as JSON has it |
//! | `environment`, `machine` | on what the run was made |
//! | `junit` | reports for programs that read the results of tests |
//! | `compare` | several reports side by side |
//! | `markdown` | the same as a part of a page |

mod compare;
mod environment;
mod junit;
mod machine;
mod markdown;
mod results;
#[cfg(test)]
mod sample;

pub use compare::{Comparison, Row, Seen, Table};
pub use environment::{DeviceFound, Driver, Environment, RanOn};
pub use junit::junit;
pub use machine::{Machine, System};
pub(crate) use results::FAILURE_POINTS;
pub use results::{CaseReport, Report, Summary, groups};
