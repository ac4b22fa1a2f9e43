//! The report of one run, as in JSON.

use super::environment::Environment;
use crate::outcome::{Outcome, Verdict};
use crate::suite::{Item, Layer};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The environment of the run.
    pub environment: Environment,
    /// The number of cases with each verdict.
    pub summary: Summary,
    /// All cases, group by group, in the order in which they ran.
    pub cases: Vec<CaseReport>,
}

/// The result of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// The group and the case, such as `grow::within`.
    pub name: String,
    /// The layer that the case checks.
    pub layer: Layer,
    /// The rule in one sentence. A condensed report has it only for deviations.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The verdict on the rule.
    pub verdict: Verdict,
    /// The duration in seconds. A condensed report does not have it.
    #[serde(default)]
    pub seconds: f64,
    /// Why the case was skipped, how it failed, or what it observed. A condensed report has it only for deviations.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The quirk that explains a deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quirk: Option<String>,
}

/// The number of cases with each verdict. Each case is in one of the first six counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Rules that hold.
    pub passed: usize,
    /// Rules that do not hold, and cases that could not find out.
    pub failed: usize,
    /// Cases that could not be checked.
    pub skipped: usize,
    /// Documented rules that the driver follows.
    pub as_documented: usize,
    /// Documented rules where the driver accepts more.
    pub more_lenient: usize,
    /// Documented rules that the driver breaks.
    pub deviations: usize,
    /// Deviations that no quirk of gpu-vmm explains.
    pub new_deviations: usize,
    /// The duration of the run in seconds, including opening the driver.
    pub seconds: f64,
}

/// The maximum length of a stored note in characters: captured output can be long.
const MAX_CHARACTERS: usize = 2000;

/// The words around the name of a quirk that a version should have and that its driver did not show.
const UNSEEN: [&str; 2] = ["quirk ", " is listed for this version and was not seen"];

/// Returns the part of a note about a quirk that was not seen.
pub(crate) fn unseen(quirk: &str) -> String {
    UNSEEN.join(quirk)
}

/// The start of the note of a case that makes driver calls fail. The number of failed calls follows.
pub(crate) const FAILURE_POINTS: &str = "failure points: ";

impl Report {
    /// Creates the report of a run that begins.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, summary: Summary::default(), cases: Vec::new() }
    }

    /// Adds the outcome of an item.
    pub fn add(&mut self, item: &Item, outcome: &Outcome, time: Duration) {
        let case = CaseReport {
            name: item.name.to_owned(),
            layer: item.layer,
            rule: item.about.to_owned(),
            verdict: outcome.verdict,
            seconds: seconds(time),
            note: kept(&outcome.note, std::env::var("HOME").ok().as_deref()),
            quirk: outcome.quirk.clone(),
        };
        self.summary.count(&case);
        self.cases.push(case);
    }

    /// Sets the duration of the run.
    pub fn took(&mut self, time: Duration) {
        self.summary.seconds = seconds(time);
    }
}

impl CaseReport {
    /// Returns how often the case made a driver call fail, or `None` if the case does no such thing.
    #[must_use]
    pub fn failure_points(&self) -> Option<u64> {
        let number = self.note.strip_prefix(FAILURE_POINTS)?;
        number.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
    }

    /// Returns the group of the case.
    #[must_use]
    pub fn group(&self) -> &str {
        self.name.split_once("::").map_or(&self.name, |(group, _)| group)
    }

    /// Returns true for a deviation that no quirk explains.
    #[must_use]
    pub fn is_new_deviation(&self) -> bool {
        self.verdict == Verdict::Deviates && self.quirk.is_none()
    }

    /// Returns the quirks that gpu-vmm lists for this version and that the driver did not show.
    pub fn unseen_quirks(&self) -> impl Iterator<Item = &str> {
        self.note.split("; ").filter_map(|part| part.strip_prefix(UNSEEN[0])?.strip_suffix(UNSEEN[1]))
    }

    /// Returns the verdict in words, with the quirk that explains it.
    #[must_use]
    pub fn answer(&self) -> String {
        match &self.quirk {
            Some(quirk) => format!("{}: {quirk}", self.verdict),
            None if self.is_new_deviation() => "NEW deviation".to_owned(),
            None => self.verdict.to_string(),
        }
    }
}

impl Summary {
    /// Counts the verdicts of cases, and sums their durations.
    #[must_use]
    pub fn of(cases: &[CaseReport]) -> Self {
        let mut summary = Self::default();
        for case in cases {
            summary.count(case);
            summary.seconds += case.seconds;
        }
        summary
    }

    fn count(&mut self, case: &CaseReport) {
        *match case.verdict {
            Verdict::Passed => &mut self.passed,
            Verdict::Failed => &mut self.failed,
            Verdict::Skipped => &mut self.skipped,
            Verdict::AsDocumented => &mut self.as_documented,
            Verdict::MoreLenient => &mut self.more_lenient,
            Verdict::Deviates => &mut self.deviations,
        } += 1;
        self.new_deviations += usize::from(case.is_new_deviation());
    }
}

/// Iterates over runs of cases that share a group and a layer.
pub fn groups(cases: &[CaseReport]) -> impl Iterator<Item = &[CaseReport]> {
    cases.chunk_by(|a, b| (a.layer, a.group()) == (b.layer, b.group()))
}

/// Returns seconds with the precision of a microsecond.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

/// Prepares a note for the report: cuts it at the maximum length, and replaces the path of the user's home.
fn kept(note: &str, home: Option<&str>) -> String {
    let note = match home {
        // Some users' home is `/`, which every path contains.
        Some(home) if home.len() > 1 => note.replace(home, "~"),
        _ => note.to_owned(),
    };
    match note.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} [{} bytes more]", &note[..end], note.len() - end),
        None => note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_note_is_cut_between_characters() {
        assert_eq!(kept("short", None), "short");
        let long = "ü".repeat(MAX_CHARACTERS + 3);
        assert_eq!(kept(&long, None), format!("{} [6 bytes more]", "ü".repeat(MAX_CHARACTERS)));
    }

    #[test]
    fn note_hides_the_home_folder() {
        let note = "in /home/user/src/a.rs";
        assert_eq!(kept(note, Some("/home/user")), "in ~/src/a.rs");
        assert_eq!(kept(note, Some("/")), note);
    }

    #[test]
    fn unseen_quirks_are_found_in_notes() {
        let mut case = crate::report::sample::report("hip").cases.remove(0);
        case.note = format!("a note; {}; {}", unseen("one"), unseen("two"));
        assert_eq!(case.unseen_quirks().collect::<Vec<_>>(), ["one", "two"]);
        case.note = "quirk one is something else".to_owned();
        assert_eq!(case.unseen_quirks().count(), 0);
    }

    #[test]
    fn each_case_is_counted_once() {
        let report = crate::report::sample::report("hip");
        let Summary { passed, failed, skipped, as_documented, more_lenient, deviations, .. } = report.summary;
        assert_eq!(passed + failed + skipped + as_documented + more_lenient + deviations, report.cases.len());
        assert!(deviations > report.summary.new_deviations && report.summary.new_deviations == 1);
        let sizes: Vec<usize> = groups(&report.cases).map(<[_]>::len).collect();
        assert!(sizes.len() > 2 && sizes.iter().sum::<usize>() == report.cases.len(), "{sizes:?}");
    }

    #[test]
    fn report_is_read_as_written() {
        let report = crate::report::sample::report("hip");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(
            text.contains(r#""verdict":"as-documented""#) && text.contains(r#""layer":"driver""#),
            "{text}"
        );
    }
}
