//! The results of runs, for people and for programs.

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
pub use results::{CaseReport, Report, Summary, groups};
pub(crate) use results::{FAILURE_POINTS, unseen};
