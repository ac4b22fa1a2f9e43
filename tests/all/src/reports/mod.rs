//! Reports of the conformance suite, from host memory and from each version of HIP, and the page about them.

mod page;
mod recorded;

use crate::cargo;
use crate::layout::Layout;
use crate::process::{self, Counts};
use crate::runtime::Runtime;
use crate::suites::{LIMIT, prepare};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing};
use recorded::Report;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most GPUs that a case uses.
const GPUS: u32 = 2;

/// The page in the folder of the reports.
const PAGE: &str = "README.md";

/// The start of the line that begins the generated part of a page.
const MARK: &str = "<!-- generated";

/// Writes all reports and the page; the table lists failed cases.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], folder: &Path, summary: &mut Summary) -> Answer {
    let program = cargo::command_program()?;
    for place in [folder, &layout.logs()] {
        fs::create_dir_all(place).doing(|| place.display().to_string())?;
    }
    summary.add(one(layout, Command::new(&program), "host", "host", folder)?);
    if !runtimes.is_empty() {
        cargo::simulator(&layout.simulator())?;
    }
    for runtime in runtimes {
        let mut command = runtime.command(&layout.simulator(), &program, None);
        prepare(&mut command, GPUS);
        summary.add(one(layout, command, "hip", &format!("hip-{}", runtime.version), folder)?);
    }
    record(folder)
}

/// Writes one report.
fn one(layout: &Layout, mut command: Command, backend: &str, name: &str, folder: &Path) -> Answer<Row> {
    let file = folder.join(format!("{name}.json"));
    command.args(["conformance", "--backend", backend, "--format", "json", "--out"]).arg(&file);
    let log = layout.logs().join(format!("report-{name}.txt"));
    let ended = process::run(&mut command, &log, LIMIT)?;
    let passed = ended.status.is_some_and(|status| status.success());
    if !passed {
        println!("{}\n{command:?}\n", fs::read_to_string(&log).unwrap_or_default());
    }
    let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
    let row = Row::of(&file.display().to_string(), outcome, ended.time);
    Ok(match summary_of(&file) {
        Ok((counts, driver)) => row.counting(Some(counts)).noting(driver),
        Err(trouble) => row.noting(trouble.to_string()),
    })
}

/// Returns the numbers of a report for gpu-vmm, and a sentence for the driver.
fn summary_of(file: &Path) -> Answer<(Counts, String)> {
    let text = fs::read_to_string(file).doing(|| file.display().to_string())?;
    let report: Value = serde_json::from_str(&text).doing(|| file.display().to_string())?;
    let count = |name: &str| report["summary"][name].as_u64().unwrap_or_default();
    let counts = Counts { passed: count("passed"), failed: count("failed"), ignored: count("skipped") };
    let driver = format!(
        "the driver: {} as documented, {} more lenient, {} deviate, {} of them new",
        count("as_documented"),
        count("more_lenient"),
        count("deviations"),
        count("new_deviations")
    );
    Ok((counts, driver))
}

/// Condenses the folder's reports and generates the marked part of its page again, if it has one. A folder without such a
/// page keeps full reports.
fn record(folder: &Path) -> Answer {
    let page = folder.join(PAGE);
    let Ok(text) = fs::read_to_string(&page) else { return Ok(()) };
    let Some(before) = before_generated(&text) else { return Ok(()) };
    let reports = recorded_in(folder)?;
    for (name, report) in &reports {
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, report.text()?).doing(|| file.display().to_string())?;
    }
    fs::write(&page, format!("{before}\n\n{}", page::page(&reports))).doing(|| page.display().to_string())
}

/// Returns the part of a page up to the line that begins its generated part.
fn before_generated(text: &str) -> Option<&str> {
    let mark = text.lines().find(|line| line.starts_with(MARK))?;
    Some(&text[..text.find(mark)? + mark.len()])
}

/// Reads all reports in a folder, with their names, in their order.
fn recorded_in(folder: &Path) -> Answer<Vec<(String, Report)>> {
    let entries = fs::read_dir(folder).doing(|| folder.display().to_string())?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    let named = |file: &PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Report::read(file)?))
    };
    files.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_has_condensed_reports_and_their_page() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance");
        let reports = recorded_in(&folder).unwrap();
        assert!(reports.len() >= 6, "{}", reports.len());
        let again = "condense it: cargo test-all report docs/conformance";
        for (name, report) in &reports {
            let text = fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
            // Without the texts, which would be a megabyte.
            assert!(text == report.text().unwrap(), "{name}.json is not condensed; {again}");
        }
        let page = fs::read_to_string(folder.join(PAGE)).unwrap();
        let (_, generated) = page.split_at(before_generated(&page).unwrap().len());
        assert_eq!(generated.trim(), page::page(&reports).trim(), "{again}");
    }
}
