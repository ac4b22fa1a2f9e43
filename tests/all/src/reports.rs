//! Reports of the conformance suite, from host memory and from each version of HIP, and the page that compares them.

use crate::cargo;
use crate::layout::Layout;
use crate::process::{self, Counts};
use crate::runtime::Runtime;
use crate::suites::{LIMIT, prepare};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
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
    page(&program, folder)
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

/// Generates the marked part of the folder's page again, if it has one.
fn page(program: &Path, folder: &Path) -> Answer {
    let page = folder.join(PAGE);
    let Ok(text) = fs::read_to_string(&page) else { return Ok(()) };
    let Some(mark) = text.lines().find(|line| line.starts_with(MARK)) else { return Ok(()) };
    let reports = reports_in(folder)?;
    if reports.len() < 2 {
        return Ok(());
    }
    let end = text.find(mark).unwrap_or_default() + mark.len();
    let mut command = Command::new(program);
    command.args(["conformance", "--verbose", "--format", "markdown", "--compare"]).args(reports);
    let made = command.output().doing(|| format!("{command:?}"))?;
    if !made.status.success() {
        return Err(Trouble::new(String::from_utf8_lossy(&made.stderr)));
    }
    let made = String::from_utf8_lossy(&made.stdout);
    fs::write(&page, format!("{}\n\n{made}", &text[..end])).doing(|| page.display().to_string())
}

/// Returns all reports in a folder, by name.
fn reports_in(folder: &Path) -> Answer<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).doing(|| folder.display().to_string())?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    Ok(files)
}
