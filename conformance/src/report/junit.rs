//! Reports in JUnit's format, for programs that read test results.

use super::results::{CaseReport, Report, groups};
use crate::outcome::Verdict;
use quick_junit::{NonSuccessKind, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// Writes all reports into one document: each group of a layer of a target is a suite. A driver's deviation from its
/// documentation is not a failure; it becomes the case's output.
///
/// # Errors
///
/// No error is known; the document is built in memory.
pub fn junit(reports: &[Report]) -> Result<String, SerializeError> {
    let mut document = quick_junit::Report::new("gpu-vmm conformance");
    document.set_time(reports.iter().map(|report| time(report.summary.seconds)).sum());
    document.add_test_suites(
        reports.iter().flat_map(|report| groups(&report.cases).map(|group| suite(report, group))),
    );
    document.to_string()
}

fn suite(report: &Report, group: &[CaseReport]) -> TestSuite {
    let environment = &report.environment;
    let first = &group[0];
    let name = format!("{}.{}.{}", environment.target, first.layer, first.group());
    let mut suite = TestSuite::new(name.as_str());
    suite.set_time(group.iter().map(|case| time(case.seconds)).sum());
    let device = environment.chosen().map(|device| device.name.as_str()).unwrap_or_default();
    suite.add_properties([
        ("gpu-vmm", environment.gpu_vmm.as_str()),
        ("ran on", &environment.ran_on.to_string()),
        ("driver", &environment.driver.to_string()),
        ("device", device),
    ]);
    suite.add_test_cases(group.iter().map(|case| test_case(&name, case)));
    suite
}

fn test_case(class: &str, case: &CaseReport) -> TestCase {
    let status = match case.verdict {
        Verdict::Failed => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status
                .set_message(case.note.lines().next().unwrap_or_default())
                .set_description(case.note.as_str());
            status
        }
        Verdict::Skipped => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(case.note.as_str());
            status
        }
        _ => TestCaseStatus::success(),
    };
    let name = case.name.strip_prefix(case.group()).unwrap_or(&case.name).trim_start_matches(':');
    let mut test = TestCase::new(name, status);
    test.set_classname(class).set_time(time(case.seconds));
    if !matches!(case.verdict, Verdict::Failed | Verdict::Skipped) {
        let said = format!("{}\n{}", case.answer(), case.note);
        if said.trim_end() != Verdict::Passed.words() {
            test.set_system_out(said.trim_end());
        }
    }
    test
}

fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn document_is_readable_and_complete() {
        let reports = [sample::report("hip"), sample::report("host")];
        let text = junit(&reports).unwrap();
        let read = quick_junit::Report::deserialize_from_str(&text).unwrap();
        assert_eq!(read.tests, reports.iter().map(|report| report.cases.len()).sum::<usize>());
        let failed: usize = reports.iter().map(|report| report.summary.failed).sum();
        assert!(failed > 0 && read.failures == failed, "{text}");
        let names: Vec<&str> = read.test_suites.iter().map(|suite| suite.name.as_str()).collect();
        assert!(names.contains(&"hip.driver.map") && names.contains(&"host.library.grow"), "{names:?}");
    }

    #[test]
    fn whatever_a_case_has_printed_is_text() {
        let mut report = sample::report("hip");
        let odd = "<tag attribute=\"1\"> & ]]> \u{1}\u{1b}[31mred\u{1b}[0m";
        for case in &mut report.cases {
            odd.clone_into(&mut case.note);
        }
        let text = junit(&[report]).unwrap();
        let read = quick_junit::Report::deserialize_from_str(&text).unwrap();
        let out = read
            .test_suites
            .iter()
            .flat_map(|suite| &suite.test_cases)
            .find_map(|case| case.system_out.as_ref());
        assert!(out.unwrap().as_str().ends_with("<tag attribute=\"1\"> & ]]> red"), "{text}");
    }
}
