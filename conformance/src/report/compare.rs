//! A comparison of several reports.

use super::environment::RanOn;
use super::machine::gib;
use super::results::{CaseReport, Report, Summary};
use crate::outcome::Verdict;
use crate::suite::Layer;
use gpu_vmm_core::Bytes;

/// Several reports in tables with one column for each report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The names of the reports.
    pub names: Vec<String>,
    /// Sentences that say which reports ran on hardware.
    pub opening: Vec<String>,
    /// The environments, the numbers of verdicts, and single cases.
    pub tables: Vec<Table>,
    /// The observations in the cases of the tables.
    pub seen: Vec<Seen>,
}

/// A table with a column for each report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The heading.
    pub title: &'static str,
    /// How to read the table.
    pub about: &'static str,
    /// The rows. A table without rows says that no case belongs in it.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The subject: the name of a case, a group, or a part of the environment.
    pub label: String,
    /// The rule in one sentence, if the row is a case.
    pub rule: String,
    /// The content of each report's column.
    pub cells: Vec<String>,
}

/// The observations in one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The case.
    pub name: String,
    /// The observations, each with the names of the reports that contain it.
    pub notes: Vec<(String, Vec<String>)>,
}

/// The maximum length of a note in characters. The reports contain longer notes.
const MAX_CHARACTERS: usize = 400;

/// The content of a cell without a value.
const NOTHING: &str = "-";

type Reports<'a> = &'a [(String, Report)];

impl Comparison {
    /// Compares reports, each given with its name. Unless `all` is set, cases with the same result in all reports are left
    /// out.
    #[must_use]
    pub fn of(reports: Reports<'_>, all: bool) -> Self {
        let mut tables = vec![environments(reports)];
        let mut seen = Vec::new();
        tables.extend([Layer::Library, Layer::Driver].iter().filter_map(|layer| counts(reports, *layer)));
        let cases = union(reports, |case| (case.layer, case.name.as_str()));
        let (everywhere, somewhere): (Vec<Key<'_>>, Vec<Key<'_>>) =
            cases.into_iter().partition(|key| find(reports, *key).iter().all(Option::is_some));
        for (layer, title) in [
            (Layer::Driver, ["Rules of the drivers", "Rules of the drivers whose verdicts differ"]),
            (Layer::Library, ["What gpu-vmm promises", "Promises of gpu-vmm whose verdicts differ"]),
        ] {
            let keys: Vec<Key<'_>> = everywhere.iter().copied().filter(|key| key.0 == layer).collect();
            if keys.is_empty() {
                continue;
            }
            let shown = |key: &Key<'_>| all || differs(reports, *key);
            let keys: Vec<Key<'_>> = keys.into_iter().filter(shown).collect();
            seen.extend(keys.iter().filter_map(|key| notes(reports, *key)));
            let rows = keys.iter().map(|key| row(reports, *key)).collect();
            tables.push(Table { title: title[usize::from(!all)], about: VERDICTS[layer as usize], rows });
        }
        if !somewhere.is_empty() {
            seen.extend(somewhere.iter().filter_map(|key| notes(reports, *key)));
            let rows = somewhere.iter().map(|key| row(reports, *key)).collect();
            tables.push(Table { title: "Cases that not all reports have", about: "", rows });
        }
        let contradictions = contradictions(reports);
        let unseen = contradictions.rows.iter().map(|row| (Layer::Driver, row.label.as_str()));
        let noted = |key: &Key<'_>| seen.iter().any(|seen| seen.name == key.1);
        let more: Vec<Seen> =
            unseen.filter(|key| !noted(key)).filter_map(|key| notes(reports, key)).collect();
        seen.extend(more);
        tables.push(contradictions);
        let names = reports.iter().map(|(name, _)| name.clone()).collect();
        Self { names, opening: opening(reports), tables, seen }
    }
}

/// Returns the rules for which a driver contradicts what gpu-vmm's quirks say of its version.
fn contradictions(reports: Reports<'_>) -> Table {
    let contradiction = |case: &CaseReport| -> Option<String> {
        if case.is_new_deviation() {
            return Some("a deviation, and no quirk is listed".to_owned());
        }
        let unseen: Vec<&str> = case.unseen_quirks().collect();
        (!unseen.is_empty()).then(|| format!("{} is listed, and was not seen", unseen.join(", ")))
    };
    let keys = union(reports, |case| (case.layer, case.name.as_str()));
    let rows = keys.into_iter().filter(|key| key.0 == Layer::Driver).filter_map(|key| {
        let found: Vec<Option<String>> =
            find(reports, key).into_iter().map(|case| case.and_then(contradiction)).collect();
        if found.iter().all(Option::is_none) {
            return None;
        }
        let cells = found.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.to_owned())).collect();
        Some(Row { cells, ..row(reports, key) })
    });
    Table {
        title: "Contradictions to gpu-vmm's quirks",
        about: "A driver that deviates where no quirk is listed for its version, or that does not show a listed quirk.",
        rows: rows.collect(),
    }
}

/// How to read the verdicts of each layer.
const VERDICTS: [&str; 2] = [
    "The same on every backend: each must pass, or be skipped if the hardware or the driver's version lacks a feature.",
    "What the vendor's documentation says, and what the driver does. A deviation names the quirk with which \
     gpu-vmm handles it; a deviation without a quirk is NEW.",
];

fn opening(reports: Reports<'_>) -> Vec<String> {
    let names = |ran_on: RanOn| -> Option<String> {
        let those = reports.iter().filter(|(_, report)| report.environment.ran_on == ran_on);
        let names: Vec<&str> = those.map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let hardware = names(RanOn::Hardware).unwrap_or_else(|| "none of these reports".to_owned());
    let mut lines = vec![format!("On hardware: {hardware}.")];
    for (ran_on, what) in [
        (
            RanOn::SimulatedDevices,
            "NOT on hardware, but by the vendor's own driver over a simulated HSA runtime",
        ),
        (RanOn::FakeDriver, "NOT on hardware and not by the vendor's driver, but by a fake of it"),
        (RanOn::HostMemory, "On host memory, without a GPU"),
    ] {
        lines.extend(names(ran_on).map(|names| format!("{what}: {names}.")));
    }
    lines
}

fn environments(reports: Reports<'_>) -> Table {
    let row = |label: &str, cell: &dyn Fn(&Report) -> String| Row {
        label: label.to_owned(),
        rule: String::new(),
        cells: reports.iter().map(|(_, report)| cell(report)).collect(),
    };
    let mut rows = vec![
        row("ran on", &|report| report.environment.ran_on.words().to_owned()),
        row("backend", &|report| report.environment.target.clone()),
        row("driver", &|report| report.environment.driver.to_string()),
        row("device", &|report| device(report)),
        row("granularity", &|report| {
            let environment = &report.environment;
            let (memory, addresses) =
                (Bytes(environment.granularity_bytes), Bytes(environment.reservation_unit_bytes));
            format!("{memory}; addresses by {addresses}")
        }),
        row("memory checked by", &|report| report.environment.pattern_by.clone()),
        row("machine", &|report| report.environment.machine.to_string()),
        row("system", &|report| report.environment.system.to_string()),
        row("gpu-vmm", &|report| report.environment.gpu_vmm.clone()),
        row("run at", &|report| report.environment.time.replace('T', " ")),
        row("cases", &|report| format!("{} in {:.1} s", report.cases.len(), report.summary.seconds)),
    ];
    if reports.iter().any(|(_, report)| report.environment.filter.is_some()) {
        rows.push(row("only cases with", &|report| {
            report.environment.filter.clone().unwrap_or_else(|| NOTHING.to_owned())
        }));
    }
    Table { title: "Environments", about: "", rows }
}

fn device(report: &Report) -> String {
    let count = report.environment.devices.len();
    let Some(device) = report.environment.chosen() else { return NOTHING.to_owned() };
    format!("{}, {}; device {} of {count}", device.name, gib(device.memory_bytes), device.device)
}

/// Counts the verdicts in each group of a layer. Returns `None` if no report has the layer.
fn counts(reports: Reports<'_>, layer: Layer) -> Option<Table> {
    let keys = union(reports, |case| (case.layer, case.group()));
    let rows = keys.into_iter().filter(|key| key.0 == layer).map(|key| {
        let count = |report: &Report| {
            let cases: Vec<CaseReport> =
                report.cases.iter().filter(|case| (case.layer, case.group()) == key).cloned().collect();
            if cases.is_empty() { NOTHING.to_owned() } else { counted(&Summary::of(&cases), layer) }
        };
        Row {
            label: key.1.to_owned(),
            rule: String::new(),
            cells: reports.iter().map(|(_, report)| count(report)).collect(),
        }
    });
    let rows: Vec<Row> = rows.collect();
    let (title, about) = match layer {
        Layer::Library => ("The library layer by groups", "The number of cases that passed."),
        Layer::Driver => (
            "The driver layer by groups",
            "The numbers of rules that the driver follows as documented / follows more leniently / deviates from.",
        ),
    };
    (!rows.is_empty()).then_some(Table { title, about, rows })
}

fn counted(summary: &Summary, layer: Layer) -> String {
    let Summary { passed, failed, skipped, as_documented, more_lenient, deviations, new_deviations, .. } =
        summary;
    let mut text = match layer {
        Layer::Library => passed.to_string(),
        Layer::Driver => format!("{as_documented} / {more_lenient} / {deviations}"),
    };
    for (count, what) in [(new_deviations, "NEW"), (failed, "FAILED"), (skipped, "skipped")] {
        if *count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

/// The identity of a case or a group across reports.
type Key<'a> = (Layer, &'a str);

/// Returns the keys of all cases of all reports, each once, in the order of first appearance.
fn union<'a>(reports: Reports<'a>, key: impl Fn(&'a CaseReport) -> Key<'a>) -> Vec<Key<'a>> {
    let mut keys = Vec::new();
    for case in reports.iter().flat_map(|(_, report)| &report.cases) {
        let key = key(case);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Returns a case from each report.
fn find<'a>(reports: Reports<'a>, key: Key<'_>) -> Vec<Option<&'a CaseReport>> {
    let in_report =
        |report: &'a Report| report.cases.iter().find(|case| (case.layer, case.name.as_str()) == key);
    reports.iter().map(|(_, report)| in_report(report)).collect()
}

fn row(reports: Reports<'_>, key: Key<'_>) -> Row {
    let found = find(reports, key);
    let newest = reports
        .iter()
        .zip(&found)
        .filter_map(|((_, report), case)| Some((&report.environment.time, (*case)?)))
        // A condensed report has few rules.
        .filter(|(_, case)| !case.rule.is_empty());
    let cell = |case: &Option<&CaseReport>| case.map_or_else(|| NOTHING.to_owned(), CaseReport::answer);
    Row {
        label: key.1.to_owned(),
        // The newest report comes from the latest version. Its time is text that sorts by time.
        rule: newest.max_by_key(|(time, _)| *time).map(|(_, case)| case.rule.clone()).unwrap_or_default(),
        cells: found.iter().map(cell).collect(),
    }
}

/// Returns true if two reports differ on a case that all reports have. A rule that is skipped because this vendor's
/// driver lacks the call says nothing about another vendor's driver.
fn differs(reports: Reports<'_>, key: Key<'_>) -> bool {
    let reported: Vec<(&str, &CaseReport)> = reports
        .iter()
        .zip(find(reports, key))
        .filter_map(|((_, report), case)| Some((report.environment.target.as_str(), case?)))
        .collect();
    let differ = |(target, case): &(&str, &CaseReport), (other_target, other): &(&str, &CaseReport)| {
        let skipped = [case, other].iter().any(|case| case.verdict == Verdict::Skipped);
        let is_elsewhere = key.0 == Layer::Driver && target != other_target;
        case.answer() != other.answer() && !(skipped && is_elsewhere)
    };
    reported
        .iter()
        .enumerate()
        .any(|(index, one)| reported[index + 1..].iter().any(|other| differ(one, other)))
}

/// Collects the reports' notes on a case.
fn notes(reports: Reports<'_>, key: Key<'_>) -> Option<Seen> {
    let mut notes: Vec<(String, Vec<String>)> = Vec::new();
    for ((name, _), case) in reports.iter().zip(find(reports, key)) {
        let Some(case) = case.filter(|case| !case.note.is_empty()) else { continue };
        let text = format!("{}: {}", case.verdict, shortened(&case.note));
        match notes.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(name.clone()),
            None => notes.push((text, vec![name.clone()])),
        }
    }
    (!notes.is_empty()).then(|| Seen { name: key.1.to_owned(), notes })
}

/// Returns a note as one line, shortened to the maximum length.
fn shortened(note: &str) -> String {
    let line = note.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn two(all: bool) -> Comparison {
        let mut host = sample::report("host");
        host.cases.retain(|case| case.name != "peer::host");
        Comparison::of(&[("hip".to_owned(), sample::report("hip")), ("host".to_owned(), host)], all)
    }

    fn table<'a>(comparison: &'a Comparison, title: &str) -> Vec<(&'a str, Vec<&'a str>)> {
        let table = comparison.tables.iter().find(|table| table.title == title).unwrap();
        let cells = |row: &'a Row| row.cells.iter().map(String::as_str).collect();
        table.rows.iter().map(|row| (row.label.as_str(), cells(row))).collect()
    }

    #[test]
    fn differing_and_missing_cases_are_shown() {
        let some = two(false);
        assert_eq!(
            table(&some, "Rules of the drivers whose verdicts differ"),
            [("map::twice", vec!["more lenient", "as documented"])]
        );
        assert_eq!(table(&some, "Promises of gpu-vmm whose verdicts differ"), []);
        assert_eq!(table(&some, "Cases that not all reports have"), [("peer::host", vec!["skipped", "-"])]);
        let seen: Vec<_> = some.seen.iter().map(|seen| seen.name.as_str()).collect();
        assert_eq!(seen, ["map::twice", "peer::host", "map::unreserved"]);
    }

    #[test]
    fn skipped_rule_differs_within_one_backend() {
        let set = |name: &str, verdict: Verdict, target: &str| {
            let mut report = sample::report(target);
            report.cases.iter_mut().find(|case| case.name == name).unwrap().verdict = verdict;
            Comparison::of(&[("hip".to_owned(), sample::report("hip")), ("other".to_owned(), report)], false)
        };
        let names = |comparison: &Comparison| -> Vec<String> {
            comparison.tables.iter().flat_map(|table| &table.rows).map(|row| row.label.clone()).collect()
        };
        let elsewhere = set("reserve::zero", Verdict::Skipped, "cuda");
        assert!(!names(&elsewhere).contains(&"reserve::zero".to_owned()));
        let same = set("reserve::zero", Verdict::Skipped, "hip");
        assert!(names(&same).contains(&"reserve::zero".to_owned()));
        let promise = set("grow::within", Verdict::Skipped, "cuda");
        assert!(names(&promise).contains(&"grow::within".to_owned()));
    }

    #[test]
    fn new_and_missing_deviations_contradict_the_quirks() {
        let mut missing = sample::report("hip");
        let deviates = missing.cases.iter().position(CaseReport::is_new_deviation).unwrap();
        let new = missing.cases[deviates].name.clone();
        missing.cases[deviates].verdict = Verdict::AsDocumented;
        let listed = missing.cases.iter_mut().find(|case| case.quirk.is_some()).unwrap();
        let (name, quirk) = (listed.name.clone(), listed.quirk.take().unwrap());
        (listed.verdict, listed.note) = (Verdict::AsDocumented, crate::report::unseen(&quirk));
        let both = [("old".to_owned(), sample::report("hip")), ("new".to_owned(), missing)];
        let comparison = Comparison::of(&both, false);
        let unseen = format!("{quirk} is listed, and was not seen");
        let mut expected = [
            (new.as_str(), vec!["a deviation, and no quirk is listed", "-"]),
            (name.as_str(), vec!["-", unseen.as_str()]),
        ];
        let mut rows = table(&comparison, "Contradictions to gpu-vmm's quirks");
        rows.sort();
        expected.sort();
        assert_eq!(rows, expected);
        let one = Comparison::of(&both[..1], false);
        assert!(one.seen.iter().any(|seen| seen.name == new), "{:?}", one.seen);
    }

    #[test]
    fn rule_has_the_newest_reports_words() {
        let [old, new] = ["2026-11-22T10:00:00Z", "2026-11-25T09:00:00Z"].map(|time| {
            let mut report = sample::report("hip");
            report.environment.time = time.to_owned();
            report.cases.iter_mut().for_each(|case| case.rule = time.to_owned());
            (time.to_owned(), report)
        });
        for reports in [[old.clone(), new.clone()], [new.clone(), old]] {
            let all = Comparison::of(&reports, true);
            let rules: Vec<_> =
                all.tables.iter().flat_map(|table| &table.rows).filter(|row| !row.rule.is_empty()).collect();
            assert!(!rules.is_empty() && rules.iter().all(|row| row.rule == new.0), "{rules:?}");
        }
    }

    #[test]
    fn condensing_takes_rules_from_older_report() {
        let full = sample::report("hip");
        let mut condensed = full.clone();
        condensed.environment.time = "2027-01-01T00:00:00Z".to_owned();
        condensed.cases.iter_mut().for_each(|case| case.rule.clear());
        let all = Comparison::of(&[("full".to_owned(), full), ("condensed".to_owned(), condensed)], true);
        let cases = all.tables.iter().flat_map(|table| &table.rows).filter(|row| row.label.contains("::"));
        let rules: Vec<&str> = cases.map(|row| row.rule.as_str()).collect();
        assert!(rules.len() > 5 && rules.iter().all(|rule| !rule.is_empty()), "{rules:?}");
    }

    #[test]
    fn all_cases_are_shown_on_request() {
        let all = two(true);
        let rules = table(&all, "Rules of the drivers");
        assert_eq!(rules.len(), 7);
        assert!(rules.contains(&("map::offset", vec!["deviates: map-offset"; 2])), "{rules:?}");
        assert!(rules.contains(&("map::unreserved", vec!["NEW deviation"; 2])), "{rules:?}");
        assert_eq!(table(&all, "What gpu-vmm promises").len(), 5);
        let same = all.seen.iter().find(|seen| seen.name == "map::offset").unwrap();
        assert_eq!(same.notes[0].1, ["hip", "host"], "a note that both reports contain is written once");
    }

    #[test]
    fn groups_are_counted_and_hardware_is_named() {
        let both = two(false);
        assert_eq!(
            table(&both, "The library layer by groups"),
            [("grow", vec!["2, 1 FAILED", "2, 1 FAILED"]), ("peer", vec!["0, 3 skipped", "0, 2 skipped"])]
        );
        let driver = table(&both, "The driver layer by groups");
        assert_eq!(driver[1].1[0], "0 / 1 / 2, 1 NEW, 1 FAILED, 1 skipped");
        assert_eq!(both.opening[0], "On hardware: none of these reports.");
        assert!(both.opening[1].starts_with("NOT on hardware") && both.opening[1].ends_with(": hip."));
    }
}
