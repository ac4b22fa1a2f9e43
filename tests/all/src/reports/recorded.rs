//! A report as a folder keeps it: one short line for each case.
//!
//! The rule, the note and the quirk stay for each case in which the driver does not do what its documentation says, or does
//! not show a listed quirk, and for each failed case. All other cases keep their name and their verdict. The form is still
//! a report's, so that `gpu-vmm conformance --compare` reads it.

use crate::trouble::{Answer, Doing, Trouble};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The end of the part of a note that names a quirk which is listed for a driver's version and which the driver did not
/// show. `quirk ` and the name come before it.
const UNSEEN: &str = " is listed for this version and was not seen";

/// The verdicts of which a reader wants to know more.
const REMARKABLE: [&str; 3] = ["deviates", "more-lenient", "failed"];

/// A report of the conformance suite.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    pub(super) environment: Value,
    pub(super) summary: Value,
    pub(super) cases: Vec<Case>,
}

/// The result of one case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Case {
    pub(super) layer: String,
    pub(super) name: String,
    pub(super) verdict: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) quirk: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) rule: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

impl Report {
    /// Reads a report of `gpu-vmm conformance --format json`, a file of `gpu-vmm check`, or a condensed report.
    pub(super) fn read(file: &Path) -> Answer<Self> {
        let shown = || file.display().to_string();
        let mut value: Value = serde_json::from_str(&fs::read_to_string(file).doing(shown)?).doing(shown)?;
        if value.is_array() {
            let what = "has several reports; a recorded report is a file of its own";
            return Err(Trouble::new(format!("{} {what}", file.display())));
        }
        // Only a file of `gpu-vmm check` has this member. The report of the suite is a part of it.
        if value.get("check").is_some() {
            value = value["conformance"].take();
        }
        if value.is_null() {
            let what = "has no report of the conformance suite, because the check ended before";
            return Err(Trouble::new(format!("{} {what}", file.display())));
        }
        let mut report: Self = serde_json::from_value(value).doing(shown)?;
        report.cases.iter_mut().for_each(Case::condense);
        Ok(report)
    }

    /// Returns the file's text: one line for each case.
    pub(super) fn text(&self) -> Answer<String> {
        let json = |value: &Value| serde_json::to_string(value).doing(|| "a report".to_owned());
        let mut cases = Vec::new();
        for case in &self.cases {
            cases.push(format!("    {}", serde_json::to_string(case).doing(|| case.name.clone())?));
        }
        Ok(format!(
            "{{\n  \"environment\": {},\n  \"summary\": {},\n  \"cases\": [\n{}\n  ]\n}}\n",
            json(&self.environment)?,
            json(&self.summary)?,
            cases.join(",\n")
        ))
    }
}

impl Case {
    fn condense(&mut self) {
        if !self.is_remarkable() {
            self.rule.clear();
            self.note.clear();
        }
    }

    /// Returns true for a failed case, and for a driver that contradicts its documentation or gpu-vmm's quirks.
    pub(super) fn is_remarkable(&self) -> bool {
        REMARKABLE.contains(&self.verdict.as_str()) || self.unseen_quirks().next().is_some()
    }

    /// Returns the listed quirks that the driver did not show.
    pub(super) fn unseen_quirks(&self) -> impl Iterator<Item = &str> {
        self.note.split("; ").filter_map(|part| part.strip_prefix("quirk ")?.strip_suffix(UNSEEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(verdict: &str, note: &str) -> Case {
        let [layer, name, rule] = ["driver", "map::twice", "A rule."].map(str::to_owned);
        Case { layer, name, verdict: verdict.to_owned(), quirk: None, rule, note: note.to_owned() }
    }

    fn report(cases: Vec<Case>) -> String {
        let [environment, summary] = [serde_json::json!({"target": "hip"}), serde_json::json!({"passed": 1})];
        serde_json::json!({"environment": environment, "summary": summary, "cases": cases}).to_string()
    }

    fn read(name: &str, text: &str) -> Answer<Report> {
        let file = std::env::temp_dir().join(format!("gpu-vmm-recorded-{name}-{}.json", std::process::id()));
        fs::write(&file, text).unwrap();
        let report = Report::read(&file);
        fs::remove_file(&file).unwrap();
        report
    }

    #[test]
    fn condensing_keeps_what_contradicts() {
        let unseen = format!("a note; quirk one{UNSEEN}");
        let cases = vec![
            case("passed", "a note"),
            case("skipped", "a reason"),
            case("deviates", "seen"),
            case("as-documented", &unseen),
        ];
        let text = read("keeps", &report(cases)).unwrap().text().unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("map::twice")).collect();
        assert_eq!(lines.len(), 4);
        for line in &lines[..2] {
            assert!(!line.contains("A rule.") && !line.contains("note") && line.len() < 80, "{line}");
        }
        for (line, note) in lines[2..].iter().zip(["seen", unseen.as_str()]) {
            assert!(line.contains("A rule.") && line.contains(note), "{line}");
        }
        assert_eq!(read("again", &text).unwrap().text().unwrap(), text, "a condensed report stays as it is");
    }

    #[test]
    fn check_file_has_its_suite_report() {
        let one = report(vec![case("deviates", "seen")]);
        let check = format!(r#"{{"check": 1, "conformance": {one}}}"#);
        assert_eq!(
            read("check", &check).unwrap().text().unwrap(),
            read("report", &one).unwrap().text().unwrap()
        );
        let ended = read("ended", r#"{"check": 1}"#).unwrap_err().to_string();
        assert!(ended.ends_with("because the check ended before"), "{ended}");
        let several = read("several", &format!("[{one}]")).unwrap_err().to_string();
        assert!(several.contains("has several reports"), "{several}");
        assert!(read("none", r#"{"environment": {}}"#).unwrap_err().to_string().contains("missing field"));
    }

    /// The words for a quirk that was not seen are the suite's.
    #[test]
    fn suite_has_the_words_for_unseen_quirks() {
        assert!(include_str!("../../../../conformance/src/report/results.rs").contains(UNSEEN));
    }
}
