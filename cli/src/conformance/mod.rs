//! The `conformance` subcommand: checks every rule of gpu-vmm and of the driver, and reports the results.

mod list;
mod runner;
mod side_by_side;
pub(crate) mod text;

use crate::CliResult;
use crate::args::{ConformanceArguments, Format, TargetChoice, refusal};
use crate::destination::{Destination, checked};
use crate::output::{Output, counted};
use gpu_vmm::AnyBackend;
use gpu_vmm_conformance::report::{Report, junit};
use gpu_vmm_conformance::{Item, Layer, Suite};
use runner::Runner;
pub(crate) use runner::TIME_OVER;
use std::path::{Path, PathBuf};
use std::time::Duration;
use text::Text;

/// Must be called before anything but the arguments is read, because it forks.
pub(crate) fn run(options: &ConformanceArguments) -> CliResult {
    if !options.compare.is_empty() {
        return side_by_side::run(options);
    }
    set_endurance(options);
    #[allow(unsafe_code)] // the suite forks before anything else
    // SAFETY: reading the arguments has started no thread and opened no driver.
    let suite = unsafe { Suite::start_built_in() }
        .map_err(|error| format!("cannot start the suite's first process: {error}"))?;
    let mut items = wanted(&suite, options.filter.as_deref())?;
    if options.time.is_some() {
        // The driver's rules take a tenth of the time, and say what no other machine's report can.
        items.sort_by_key(|item| item.layer != Layer::Driver);
    }
    if options.list {
        return list::print(&items, &mut Output::default());
    }
    let file = destination(options)?;
    if options.format == Format::Text {
        let reports = Runner::new(suite, items, options, Some(Output::to(file))).reports()?;
        return verdict(&reports);
    }
    let text = file.as_ref().filter(|file| !file.is_stdout()).map(|_| Output::default());
    let reports = Runner::new(suite, items, options, text).reports()?;
    let mut output = Output::to(file);
    output.line(document(&reports, options)?)?;
    output.complete()?;
    verdict(&reports)
}

/// The group that runs for as long as its user says, and the variable that it reads.
const ENDURANCE: (&str, &str) = ("endurance", "GPU_VMM_ENDURANCE_SECONDS");

/// The time of that group if it runs alone and its user says nothing.
const ENDURANCE_ALONE: Duration = Duration::from_secs(60);

/// Sets the time of the group `endurance`, for this process and those that it forks.
fn set_endurance(options: &ConformanceArguments) {
    let (group, variable) = ENDURANCE;
    let is_alone = options.filter.as_ref().is_some_and(|filter| filter.contains(group));
    let is_set = std::env::var_os(variable).is_some();
    let alone = Some(ENDURANCE_ALONE).filter(|_| is_alone && !is_set);
    if let Some(time) = options.endurance.or(alone) {
        #[allow(unsafe_code)]
        // SAFETY: reading the arguments has started no thread.
        unsafe {
            std::env::set_var(variable, time.as_secs().to_string());
        }
    }
}

/// Returns the file that the report goes to, if one is named.
fn destination(options: &ConformanceArguments) -> CliResult<Option<Destination>> {
    let inputs: Vec<&Path> = options.compare.iter().map(PathBuf::as_path).collect();
    checked("conformance", "--out", options.out.as_deref(), &inputs)
}

/// Returns the cases to run.
fn wanted(suite: &Suite<AnyBackend>, filter: Option<&str>) -> CliResult<Vec<Item>> {
    let all = suite.items();
    let Some(filter) = filter else { return Ok(all) };
    let items: Vec<Item> =
        all.into_iter().filter(|item| format!("{}::{}", item.layer, item.name).contains(filter)).collect();
    if items.is_empty() {
        let text =
            format!("no case has {filter:?} in its name; `gpu-vmm conformance --list` lists all names");
        return Err(refusal("conformance", text).into());
    }
    Ok(items)
}

/// Returns the reports in a format for programs.
fn document(reports: &[Report], options: &ConformanceArguments) -> CliResult<String> {
    Ok(match (options.format, options.backend, reports) {
        (Format::Junit, _, reports) => junit(reports)?,
        (_, TargetChoice::All, reports) => serde_json::to_string_pretty(reports)?,
        (_, _, reports) => serde_json::to_string_pretty(&reports.first())?,
    })
}

/// Returns an error if a case failed. A driver's deviation is not a failure.
fn verdict(reports: &[Report]) -> CliResult {
    let failed: usize = reports.iter().map(|report| report.summary.failed).sum();
    let all: usize = reports.iter().map(|report| report.cases.len()).sum();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} failed", counted(all, "case")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_conformance::Verdict;

    #[test]
    fn only_failed_cases_fail_the_run() {
        let mut report = text::sample();
        assert_eq!(verdict(&[report.clone()]).unwrap_err().to_string(), "2 of 13 cases failed");
        report.cases.retain(|case| case.verdict != Verdict::Failed);
        report.summary.failed = 0;
        assert_eq!(report.summary.new_deviations, 1);
        assert!(verdict(&[report]).is_ok());
    }
}
