//! The results of a benchmark run.

use crate::destination::Destination;
use crate::{Answer, input};
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

/// Writes a report to a file, as `--json` prints it.
pub(super) fn write(file: &mut Destination, report: &Report) -> Answer {
    file.add(&format!("{}\n", serde_json::to_string_pretty(report)?))?;
    file.complete()
}

/// Reads a report that `--json` or `--out` wrote.
pub(super) fn read(file: &Path) -> Answer<Report> {
    let text = input::read(file)?;
    Ok(serde_json::from_slice(&text)
        .map_err(|error| format!("{} is not a report: {error}", file.display()))?)
}
