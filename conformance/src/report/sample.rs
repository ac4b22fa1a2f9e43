//! A stored report with cases of every verdict, as in JSON: later versions must read what earlier versions wrote.

use super::{RanOn, Report};

/// Returns the report for HIP, or for another target that follows all documented rules without leniency.
pub(crate) fn report(target: &str) -> Report {
    let mut report: Report = serde_json::from_str(include_str!("sample.json")).unwrap();
    if target != "hip" {
        target.clone_into(&mut report.environment.target);
        report.environment.ran_on = RanOn::HostMemory;
        let text = serde_json::to_string(&report.cases).unwrap();
        let text = text.replace(r#""more-lenient""#, r#""as-documented""#);
        report.cases = serde_json::from_str(&text).unwrap();
    }
    report
}
