//! The report for people: a line for each group while the cases run, then the remarkable cases.

use crate::CliResult;
use crate::environment_text;
use crate::output::{Output, counted as number, duration};
use gpu_vmm_conformance::report::{CaseReport, Environment, Report, Summary, groups};
use gpu_vmm_conformance::{Layer, Verdict};

/// The number of characters of a note that are shown without --verbose.
const MAX_CHARACTERS: usize = 300;

const NEW_DEVIATIONS: &str = "NEW DEVIATIONS, unknown to gpu-vmm's quirks: please report them";

/// The number of reasons for skipping that are listed; the rest are counted.
const MAX_REASONS: usize = 12;

/// Prints reports for people, one after the other.
pub(super) struct Text {
    output: Output,
    verbose: bool,
    /// Whether to print how to make a report for an issue.
    hint: bool,
    /// Whether anything has been printed before.
    begun: bool,
    /// The number of cases of the report that have been printed.
    printed: usize,
    /// The layer of the last heading.
    layer: Option<Layer>,
}

impl Text {
    pub(super) fn new(output: Output, verbose: bool, hint: bool) -> Self {
        Self { output, verbose, hint, begun: false, printed: 0, layer: None }
    }

    /// Prints the environment of the run.
    pub(super) fn opening(&mut self, environment: &Environment) -> CliResult {
        self.begin()?;
        (self.printed, self.layer) = (0, None);
        environment_text::write(environment, &mut self.output)
    }

    /// Prints why a target did not run.
    pub(super) fn not_run(&mut self, target: &str, reason: &str) -> CliResult {
        self.begin()?;
        self.output.paragraph(&format!("{target}: not run: "), reason)
    }

    fn begin(&mut self) -> CliResult {
        if std::mem::replace(&mut self.begun, true) { self.output.line("") } else { Ok(()) }
    }

    /// True if a group is complete that has not been printed.
    pub(super) fn is_due(&self, report: &Report) -> bool {
        groups(&report.cases[self.printed..]).nth(1).is_some()
    }

    /// Prints the complete groups.
    pub(super) fn grown(&mut self, report: &Report) -> CliResult {
        let mut groups: Vec<&[CaseReport]> = groups(&report.cases[self.printed..]).collect();
        groups.pop();
        groups.into_iter().try_for_each(|group| self.group(group))
    }

    /// Prints the remaining groups, the remarkable cases and the summary.
    pub(super) fn closing(&mut self, report: &Report) -> CliResult {
        groups(&report.cases[self.printed..]).try_for_each(|group| self.group(group))?;
        if !self.verbose {
            self.skipped(Layer::Library, &report.cases)?;
            self.skipped(Layer::Driver, &report.cases)?;
            self.seen("noted", &report.cases, |case| {
                case.verdict == Verdict::Passed && !case.note.is_empty() && case.failure_points().is_none()
            })?;
            self.seen("more lenient than documented", &report.cases, |case| {
                case.verdict == Verdict::MoreLenient
            })?;
            self.seen("deviates as gpu-vmm's quirks say", &report.cases, |case| {
                case.verdict == Verdict::Deviates && !case.is_new_deviation()
            })?;
        }
        self.seen(NEW_DEVIATIONS, &report.cases, CaseReport::is_new_deviation)?;
        self.failed(&report.cases)?;
        self.summary(report)
    }

    /// Completes the text.
    pub(super) fn complete(&mut self) -> CliResult {
        self.output.complete()
    }

    /// Prints a group's line, below the heading of its layer.
    fn group(&mut self, cases: &[CaseReport]) -> CliResult {
        self.printed += cases.len();
        let (layer, group) = (cases[0].layer, cases[0].group());
        if self.layer.replace(layer) != Some(layer) {
            self.output.line("")?;
            self.output.line(match layer {
                Layer::Library => format!("{layer:<18}  passed  failed  skipped        time"),
                Layer::Driver => format!(
                    "{layer:<18}  as documented  more lenient  deviates  NEW  failed  skipped        time"
                ),
            })?;
        }
        let summary = Summary::of(cases);
        let Summary { passed, failed, skipped, as_documented, more_lenient, new_deviations, .. } = summary;
        let known = summary.deviations - new_deviations;
        let counts: &[(usize, usize)] = match layer {
            Layer::Library => &[(passed, 8), (failed, 8), (skipped, 9)],
            Layer::Driver => &[
                (as_documented, 15),
                (more_lenient, 14),
                (known, 10),
                (new_deviations, 5),
                (failed, 8),
                (skipped, 9),
            ],
        };
        let mut line = format!("  {group:<16}");
        for (count, width) in counts {
            let count = if *count == 0 { "-".to_owned() } else { count.to_string() };
            line.push_str(&format!("{count:>width$}"));
        }
        self.output.line(format!("{line}{:>12}", time(summary.seconds)))?;
        if self.verbose {
            cases.iter().try_for_each(|case| self.case(case))?;
        }
        Ok(())
    }

    /// Prints one case, with --verbose.
    fn case(&mut self, case: &CaseReport) -> CliResult {
        let answer = case.answer();
        self.output.line(format!("    {:<58}{answer:<20}{:>12}", case.name, time(case.seconds)))?;
        if case.note.is_empty() { Ok(()) } else { self.output.paragraph("        ", &case.note) }
    }

    /// Prints the reasons for which cases were skipped, the most frequent first.
    fn skipped(&mut self, layer: Layer, cases: &[CaseReport]) -> CliResult {
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for case in cases.iter().filter(|case| case.layer == layer && case.verdict == Verdict::Skipped) {
            match reasons.iter_mut().find(|(reason, _)| *reason == case.note) {
                Some((_, count)) => *count += 1,
                None => reasons.push((&case.note, 1)),
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.heading(&format!("skipped in the {layer} layer"))?;
        let rest = reasons.split_off(reasons.len().min(MAX_REASONS));
        for (reason, count) in &reasons {
            self.output.paragraph(&format!("  {count:>4}  "), &shortened(reason))?;
        }
        let cases: usize = rest.iter().map(|(_, count)| count).sum();
        match rest.len() {
            0 => Ok(()),
            reasons => {
                let reasons = number(reasons, "other reason");
                self.output.line(format!("  {cases:>4}  for {reasons}; --verbose lists them all"))
            }
        }
    }

    /// Prints the notes of some cases.
    fn seen(
        &mut self,
        heading: &str,
        cases: &[CaseReport],
        which: impl Fn(&CaseReport) -> bool,
    ) -> CliResult {
        let cases: Vec<&CaseReport> = cases.iter().filter(|case| which(case)).collect();
        if cases.is_empty() {
            return Ok(());
        }
        self.heading(heading)?;
        let width = cases.iter().map(|case| case.name.chars().count()).max().unwrap_or_default();
        for case in cases {
            let quirk = case.quirk.as_ref().map(|quirk| format!("[{quirk}] ")).unwrap_or_default();
            let label = format!("  {:<width$}  ", case.name);
            self.output.paragraph(&label, &format!("{quirk}{}", shortened(&case.note)))?;
        }
        Ok(())
    }

    /// Prints every failed case with its rule and its note.
    fn failed(&mut self, cases: &[CaseReport]) -> CliResult {
        for case in cases.iter().filter(|case| case.verdict == Verdict::Failed) {
            self.heading(&format!("FAILED {}::{}", case.layer, case.name))?;
            self.output.paragraph("  rule  ", &case.rule)?;
            self.output.paragraph("  seen  ", &case.note)?;
        }
        Ok(())
    }

    fn heading(&mut self, text: &str) -> CliResult {
        self.output.line("")?;
        self.output.line(text)
    }

    /// Prints the counts of the results, and how to make a report for an issue.
    fn summary(&mut self, report: &Report) -> CliResult {
        let Environment { target, filter, .. } = &report.environment;
        let took = time(report.summary.seconds);
        self.heading(&format!("{target}: {} in {took}", number(report.cases.len(), "case")))?;
        for layer in [Layer::Library, Layer::Driver] {
            let cases: Vec<CaseReport> =
                report.cases.iter().filter(|case| case.layer == layer).cloned().collect();
            if !cases.is_empty() {
                let mut text = counted(&Summary::of(&cases));
                let points: u64 = cases.iter().filter_map(CaseReport::failure_points).sum();
                if points > 0 {
                    text.push_str(&format!("; driver calls were made to fail {}", number(points, "time")));
                }
                self.output.paragraph(&format!("  {layer:<9}"), &text)?;
            }
        }
        if self.hint && filter.is_none() {
            self.output.line(format!(
                "report for an issue: gpu-vmm conformance --backend {target} --format json --out report.json"
            ))?;
        }
        Ok(())
    }
}

/// Returns the counts of the results in words.
fn counted(summary: &Summary) -> String {
    let Summary { passed, failed, skipped, as_documented, more_lenient, deviations, new_deviations, .. } =
        summary;
    let counts = [
        (*passed, "passed"),
        (*as_documented, "as documented"),
        (*more_lenient, "more lenient"),
        (deviations - new_deviations, "deviating (known)"),
        (*new_deviations, "NEW"),
        (*failed, "FAILED"),
        (*skipped, "skipped"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn time(seconds: f64) -> String {
    duration(seconds * 1e6)
}

/// Returns the beginning of a note, on one line.
fn shortened(note: &str) -> String {
    let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
    match note.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &note[..end]),
        None => note,
    }
}

/// A report with cases of every verdict.
#[cfg(test)]
pub(crate) fn sample() -> Report {
    let text = include_str!("../../../conformance/src/report/sample.json");
    serde_json::from_str(text).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Destination;
    use crate::output::{WIDTH, lines_of};

    /// Returns the printed text of a report.
    fn text_of(report: &Report, verbose: bool) -> String {
        let file = std::env::temp_dir().join(format!("gpu-vmm-text-{}-{verbose}", std::process::id()));
        let mut text = Text::new(Output::to(Some(Destination::check(&file).unwrap())), verbose, true);
        text.opening(&report.environment).unwrap();
        let mut growing = Report { cases: Vec::new(), ..report.clone() };
        for case in &report.cases {
            growing.cases.push(case.clone());
            text.grown(&growing).unwrap();
        }
        text.closing(report).unwrap();
        text.complete().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        text
    }

    #[test]
    fn ordinary_results_are_only_counted() {
        let text = text_of(&sample(), false);
        for part in [
            "hip: SIMULATED, no GPU: the vendor",
            "  peer                   -       -        3",
            "  peer                   -       -        3",
            "  map                           -             1         1    1       1        1",
            "skipped in the library layer\n     2  the hip backend has one usable device\n     1  host access",
            "more lenient than documented\n  map::twice  success; the second mapping is used\n",
            "quirks say\n  map::offset  [map-offset] hipErrorInvalidValue for an offset of 2 MiB\n",
            "NEW DEVIATIONS, unknown to gpu-vmm's quirks: please report them\n  map::unreserved  it was ended",
            "FAILED library::grow::moves\n  rule  Growth that remaps copies no byte.\n  seen  assertion failed",
            "        left: 1",
            "hip: 13 cases in 4.25 s\n  library  2 passed, 1 FAILED, 3 skipped; driver calls were made to fail 137 times\n",
            "  driver   2 as documented, 1 more lenient, 1 deviating (known), 1 NEW, 1 FAILED, 1 skipped\n",
            "gpu-vmm conformance --backend hip --format json --out report.json\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains("failure points: 137"), "{text}");
    }

    #[test]
    fn reasons_are_cut_and_shortened() {
        let mut report = sample();
        let skipped = report.cases.iter().find(|case| case.verdict == Verdict::Skipped).unwrap().clone();
        let with = |note: String| CaseReport { layer: Layer::Library, note, ..skipped.clone() };
        // The last reason is the one of most cases. Of the 13 others, one has three cases and each other one two.
        let others = (0..26).map(|number| with(format!("reason {:02}", number / 2)));
        let mut cases: Vec<CaseReport> = others.collect();
        cases.push(with("reason 12".to_owned()));
        cases.extend((0..4).map(|_| with("w ".repeat(200))));
        report.cases = cases;
        let lines = lines_of(WIDTH, |output| {
            let mut text = Text::new(std::mem::replace(output, Output::to(None)), false, false);
            text.skipped(Layer::Library, &report.cases)?;
            text.skipped(Layer::Driver, &report.cases)?;
            *output = text.output;
            Ok(())
        });
        assert_eq!(lines[..2], ["", "skipped in the library layer"]);
        assert!(lines[2].starts_with("     4  w w w"), "{lines:?}");
        let long: String = lines[2..6].iter().map(|line| format!("{} ", line[8..].trim())).collect();
        assert_eq!(long.trim(), format!("{}...", "w ".repeat(150)), "300 characters");
        assert_eq!(lines[6], "     3  reason 12");
        assert_eq!(lines[7], "     2  reason 00", "in their order");
        assert_eq!(
            lines[16..],
            ["     2  reason 09", "     4  for 2 other reasons; --verbose lists them all"]
        );
    }

    #[test]
    fn each_backend_has_its_own_part() {
        let report = sample();
        let lines = lines_of(WIDTH, |output| {
            let mut text = Text::new(std::mem::replace(output, Output::to(None)), false, false);
            text.not_run("cuda", "no library")?;
            text.opening(&report.environment)?;
            text.closing(&Report { cases: Vec::new(), ..report.clone() })?;
            *output = text.output;
            Ok(())
        });
        assert_eq!(lines[..2], ["cuda: not run: no library", ""]);
        assert!(lines[2].starts_with("hip: SIMULATED"), "{lines:?}");
        let expected = [
            "  driver   7.2.53211 (number 70253211), libamdhip64.so.7",
            "  device   0 of 2: Simulated GPU, 1 GiB, granularity 2 MiB",
            "  machine  A processor, 2 threads, 23.5 GiB",
            "  system   Linux 6.18.44, Debian GNU/Linux 13 (trixie)",
            "  gpu-vmm  0.1.0, 2026-11-21T14:39:47Z",
            "",
            "hip: 0 cases in 4.25 s",
        ];
        assert_eq!(lines[3..], expected, "without a hint");
    }

    #[test]
    fn partial_report_is_not_for_issues() {
        let mut report = sample();
        assert!(text_of(&report, false).contains("report for an issue"));
        report.environment.filter = Some("grow".to_owned());
        assert!(!text_of(&report, false).contains("report for an issue"));
    }

    #[test]
    fn verbose_report_lists_each_case() {
        let text = text_of(&sample(), true);
        assert!(text.contains("failure points: 137"), "{text}");
        for case in sample().cases {
            assert_eq!(text.matches(&format!("    {} ", case.name)).count(), 1, "{text}");
        }
    }
}
