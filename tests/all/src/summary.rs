//! The table at the end: which tests ran, which failed, and which could not be run.

use crate::process::Counts;
use crate::trouble::Trouble;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Not run, which is no failure.
    Skipped,
}

#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    outcome: Outcome,
    counts: Option<Counts>,
    time: Option<Duration>,
    note: Option<String>,
}

impl Row {
    pub(crate) fn of(name: &str, outcome: Outcome, time: Duration) -> Self {
        Self { name: name.to_owned(), outcome, counts: None, time: Some(time), note: None }
    }

    /// A row for tests that could not be run, a failure if they were `required`.
    pub(crate) fn skipped(name: &str, reason: Trouble, required: bool) -> Self {
        let outcome = if required { Outcome::Failed } else { Outcome::Skipped };
        let note = Some(format!("NOT RUN: {reason}"));
        Self { name: name.to_owned(), outcome, counts: None, time: None, note }
    }

    /// A row for tests that should have run and could not.
    pub(crate) fn broken(name: &str, reason: Trouble) -> Self {
        Self::skipped(name, reason, true)
    }

    pub(crate) fn counting(self, counts: Option<Counts>) -> Self {
        Self { counts, ..self }
    }

    pub(crate) fn noting(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Summary(Vec<Row>);

impl Summary {
    pub(crate) fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Returns whether nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.0.iter().all(|row| row.outcome != Outcome::Failed)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|row| row.name.len()).max().unwrap_or_default();
        writeln!(f, "\n{:width$}           passed  failed  ignored  seconds", "")?;
        for row in &self.0 {
            let outcome = match row.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped => "SKIPPED",
            };
            write!(f, "{:width$}  {outcome:7}", row.name)?;
            let numbers = match row.counts {
                Some(counts) => {
                    format!("{:8}{:8}{:9}", counts.passed, counts.failed, counts.ignored)
                }
                None => " ".repeat(25),
            };
            if let Some(time) = row.time {
                write!(f, "{numbers}{:9.1}", time.as_secs_f64())?;
            }
            if let Some(note) = &row.note {
                write!(f, "  {note}")?;
            }
            writeln!(f)?;
        }
        let failed = self.0.iter().filter(|row| row.outcome == Outcome::Failed).count();
        let skipped = self.0.iter().filter(|row| row.outcome == Outcome::Skipped).count();
        match (failed, skipped) {
            (0, 0) => writeln!(f, "\nall passed"),
            (0, _) => writeln!(f, "\nnothing failed, but {skipped} of {} could not be run", self.0.len()),
            _ => writeln!(f, "\n{failed} of {} FAILED", self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_is_not_passed() {
        let mut summary = Summary::default();
        let counts = Some(Counts { passed: 92, failed: 0, ignored: 12 });
        summary
            .add(Row::of("HIP 6.4.3, 1 GPU", Outcome::Passed, Duration::from_millis(3140)).counting(counts));
        summary.add(Row::skipped("HIP 7", Trouble::new("there is none"), false));
        assert!(summary.is_good());
        let text = summary.to_string();
        assert!(text.contains("HIP 6.4.3, 1 GPU  ok           92       0       12      3.1\n"), "{text}");
        assert!(text.contains("SKIPPED  NOT RUN: there is none"), "{text}");
        assert!(text.ends_with("nothing failed, but 1 of 2 could not be run\n"), "{text}");
        summary.add(Row::skipped("HIP 8", Trouble::new("there is none"), true));
        assert!(!summary.is_good());
        assert!(summary.to_string().ends_with("1 of 3 FAILED\n"));
    }
}
