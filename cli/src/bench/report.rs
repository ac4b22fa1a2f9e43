//! The results of a benchmark run.

use crate::destination::Destination;
use crate::{CliResult, input};
use gpu_vmm_bench::{About, Curve, Row};
use gpu_vmm_conformance::report::Environment;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The environment and the results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) environment: Environment,
    pub(super) pairs: Vec<Measured>,
}

/// The results of one pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) rows: Vec<Row>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) curves: Vec<Curve>,
    /// Why the pair was not measured to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) skipped: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

impl Measured {
    pub(super) fn new(about: About) -> Self {
        Self {
            name: about.name.to_owned(),
            what: about.what.to_owned(),
            rows: Vec::new(),
            curves: Vec::new(),
            skipped: None,
            failed: None,
        }
    }
}

impl Report {
    /// Changes the last pair.
    pub(super) fn last(&mut self, change: impl FnOnce(&mut Measured)) {
        self.pairs.last_mut().map(change);
    }

    /// Returns all figures, each with its pair.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Measured, &Row)> {
        self.pairs.iter().flat_map(|pair| pair.rows.iter().map(move |row| (pair, row)))
    }
}

/// Writes a report to a file: what `--json` prints, with one line for each figure.
pub(super) fn write(file: &mut Destination, report: &Report) -> CliResult {
    file.add(&text(report)?)?;
    file.complete()
}

/// Returns a report as JSON with one line for each figure and each curve: recorded reports are in the repository.
fn text(report: &Report) -> CliResult<String> {
    let environment = json(&report.environment)?;
    let pairs = report.pairs.iter().map(pair).collect::<CliResult<Vec<String>>>()?;
    Ok(format!("{{\n  \"environment\": {environment},\n  \"pairs\": [{}]\n}}\n", pairs.join(",")))
}

fn pair(pair: &Measured) -> CliResult<String> {
    let Measured { name, what, rows, curves, skipped, failed } = pair;
    let mut text = format!("\n    {{\"name\": {}, \"what\": {}", json(name)?, json(what)?);
    for (member, reason) in [("skipped", skipped), ("failed", failed)] {
        if let Some(reason) = reason {
            text += &format!(", \"{member}\": {}", json(reason)?);
        }
    }
    text += &format!(", \"rows\": [{}]", lines(rows)?);
    if !curves.is_empty() {
        text += &format!(", \"curves\": [{}]", lines(curves)?);
    }
    text.push('}');
    Ok(text)
}

fn lines<T: Serialize>(list: &[T]) -> CliResult<String> {
    let lines = list.iter().map(|one| Ok(format!("\n      {}", json(one)?)));
    Ok(lines.collect::<CliResult<Vec<String>>>()?.join(","))
}

fn json<T: Serialize + ?Sized>(value: &T) -> CliResult<String> {
    Ok(serde_json::to_string(value)?)
}

/// Reads a report that `--json` or `--out` wrote.
pub(super) fn read(file: &Path) -> CliResult<Report> {
    let text = input::read(file)?;
    Ok(serde_json::from_slice(&text)
        .map_err(|error| format!("{} is not a report: {error}", file.display()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_reports_have_one_line_per_figure() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/performance");
        for machine in ["nvidia-h100-1", "nvidia-h100-2", "nvidia-h200-1", "nvidia-h200-2"] {
            let recorded = std::fs::read_to_string(folder.join(format!("{machine}.json"))).unwrap();
            let mut report: Report = serde_json::from_str(&recorded).unwrap();
            let figures = |pair: &Measured| pair.rows.len() + pair.curves.len();
            let figures: usize = report.pairs.iter().map(figures).sum();
            assert!(figures > 150 && report.pairs.iter().any(|pair| !pair.curves.is_empty()));
            let lines = 4 + report.pairs.len() + figures;
            let written = text(&report).unwrap();
            assert_eq!(
                [written.lines().count(), recorded.lines().count()],
                [lines; 2],
                "{machine}.json is not as `gpu-vmm bench --out` writes it"
            );
            // All members are there.
            report.pairs[0].failed = Some("a \"reason\"".to_owned());
            report.pairs[1].skipped = Some("another".to_owned());
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            let written = value(&text(&report).unwrap());
            assert_eq!(written, value(&json(&report).unwrap()));
        }
    }
}
