//! A report for people: a line for each group while the cases run, then whatever is out of the ordinary.

use crate::Answer;
use crate::environment_text;
use crate::output::{Output, counted as number, duration};
use gpu_vmm_conformance::report::{CaseReport, Environment, Report, Summary, groups};
use gpu_vmm_conformance::{Layer, Verdict};

/// How much of a note is shown where only what is out of the ordinary is, in characters.
const MAX_CHARACTERS: usize = 300;

const NEW_DEVIATIONS: &str = "NEW DEVIATIONS, of which no quirk of gpu-vmm tells: please report them";

/// So many reasons for skipping are told, and of the rest how many there are.
const MAX_REASONS: usize = 12;

/// Reports for people, one after the other.
pub(super) struct Text {
    output: Output,
    verbose: bool,
    /// Whether to say how a report for an issue is made.
    hint: bool,
    /// Whether anything has been told before.
    begun: bool,
    /// How many cases of the report have been told.
    told: usize,
    /// The layer whose heading was the last.
    layer: Option<Layer>,
}

impl Text {
    pub(super) fn new(output: Output, verbose: bool, hint: bool) -> Self {
        Self { output, verbose, hint, begun: false, told: 0, layer: None }
    }

    /// On what the run is made.
    pub(super) fn opening(&mut self, environment: &Environment) -> Answer {
        self.begin()?;
        (self.told, self.layer) = (0, None);
        environment_text::write(environment, &mut self.output)
    }

    /// Tells of a target that cannot be had.
    pub(super) fn not_run(&mut self, target: &str, reason: &str) -> Answer {
        self.begin()?;
        self.output.paragraph(&format!("{target}: not run: "), reason)
    }

    fn begin(&mut self) -> Answer {
        if std::mem::replace(&mut self.begun, true) { self.output.line("") } else { Ok(()) }
    }

    /// True where a group is complete that has not been told of.
    pub(super) fn is_due(&self, report: &Report) -> bool {
        groups(&report.cases[self.told..]).nth(1).is_some()
    }

    /// Tells of the groups that are complete.
    pub(super) fn grown(&mut self, report: &Report) -> Answer {
        let mut groups: Vec<&[CaseReport]> = groups(&report.cases[self.told..]).collect();
        groups.pop();
        groups.into_iter().try_for_each(|group| self.group(group))
    }

    /// Tells of the rest, and what it all came to.
    pub(super) fn closing(&mut self, report: &Report) -> Answer {
        groups(&report.cases[self.told..]).try_for_each(|group| self.group(group))?;
        if !self.verbose {
            self.skipped(Layer::Library, &report.cases)?;
            self.skipped(Layer::Driver, &report.cases)?;
            self.seen("noted", &report.cases, |case| {
                case.verdict == Verdict::Passed && !case.note.is_empty() && case.failure_points().is_none()
            })?;
            self.seen("more lenient than documented", &report.cases, |case| {
                case.verdict == Verdict::MoreLenient
            })?;
            self.seen("deviates as gpu-vmm knows, by its quirks", &report.cases, |case| {
                case.verdict == Verdict::Deviates && !case.is_new_deviation()
            })?;
        }
        self.seen(NEW_DEVIATIONS, &report.cases, CaseReport::is_new_deviation)?;
        self.failed(&report.cases)?;
        self.summary(report)
    }

    /// Ends the text.
    pub(super) fn complete(&mut self) -> Answer {
        self.output.complete()
    }

    /// A group's line, below the heading of its layer.
    fn group(&mut self, cases: &[CaseReport]) -> Answer {
        self.told += cases.len();
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

    /// One case, where each is shown.
    fn case(&mut self, case: &CaseReport) -> Answer {
        let answer = case.answer();
        self.output.line(format!("    {:<58}{answer:<20}{:>12}", case.name, time(case.seconds)))?;
        if case.note.is_empty() { Ok(()) } else { self.output.paragraph("        ", &case.note) }
    }

    /// The reasons for which cases were skipped, the most frequent first.
    fn skipped(&mut self, layer: Layer, cases: &[CaseReport]) -> Answer {
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
                self.output.line(format!("  {cases:>4}  for {reasons}; --verbose has them all"))
            }
        }
    }

    /// What was seen of a driver in some cases.
    fn seen(&mut self, heading: &str, cases: &[CaseReport], which: impl Fn(&CaseReport) -> bool) -> Answer {
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

    /// Every case that failed, with all that is known of it.
    fn failed(&mut self, cases: &[CaseReport]) -> Answer {
        for case in cases.iter().filter(|case| case.verdict == Verdict::Failed) {
            self.heading(&format!("FAILED {}::{}", case.layer, case.name))?;
            self.output.paragraph("  rule  ", &case.rule)?;
            self.output.paragraph("  seen  ", &case.note)?;
        }
        Ok(())
    }

    fn heading(&mut self, text: &str) -> Answer {
        self.output.line("")?;
        self.output.line(text)
    }

    /// The last lines: how many came to what, and how to tell others.
    fn summary(&mut self, report: &Report) -> Answer {
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
                    text.push_str(&format!(
                        "; calls of the driver were made to fail {}",
                        number(points, "time")
                    ));
                }
                self.output.paragraph(&format!("  {layer:<9}"), &text)?;
            }
        }
        if self.hint && filter.is_none() {
            self.output.line(format!(
                "to attach it to an issue: gpu-vmm conformance --backend {target} --format json --out report.json"
            ))?;
        }
        Ok(())
    }
}

/// How many cases came to what, in words.
fn counted(summary: &Summary) -> String {
    let Summary { passed, failed, skipped, as_documented, more_lenient, deviations, new_deviations, .. } =
        summary;
    let counts = [
        (*passed, "passed"),
        (*as_documented, "as documented"),
        (*more_lenient, "more lenient"),
        (deviations - new_deviations, "deviating as known"),
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

/// The beginning of a note, on lines of its own choice.
fn shortened(note: &str) -> String {
    let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
    match note.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &note[..end]),
        None => note,
    }
}

/// A report with cases of every verdict.
#[cfg(test)]
pub(super) fn sample() -> Report {
    let text = include_str!("../../../conformance/src/report/sample.json");
    serde_json::from_str(text).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Destination;

    /// What is told of a report, as one text.
    fn told(report: &Report, verbose: bool) -> String {
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
        let told = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
        told
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_told_and_the_rest_counted() {
        let text = told(&sample(), false);
        for part in [
            "hip: SIMULATED, no GPU: the vendor",
            "  grow                   2       1        -   762.50 ms\n",
            "  peer                   -       -        3",
            "  map                           -             1         1    1       1        1",
            "skipped in the library layer\n     2  the hip backend has one usable device\n     1  host access",
            "more lenient than documented\n  map::twice  success; the second mapping is used\n",
            "by its quirks\n  map::offset  [map-offset] hipErrorInvalidValue for an offset of 2 MiB\n",
            "NEW DEVIATIONS, of which no quirk of gpu-vmm tells: please report them\n  map::unreserved  it was ended",
            "FAILED library::grow::moves\n  rule  Growth that remaps copies no byte.\n  seen  assertion failed",
            "        left: 1",
            "hip: 13 cases in 4.25 s\n  library  2 passed, 1 FAILED, 3 skipped; calls of the driver were made to fail 137 times\n",
            "  driver   2 as documented, 1 more lenient, 1 deviating as known, 1 NEW, 1 FAILED, 1 skipped\n",
            "gpu-vmm conformance --backend hip --format json --out report.json\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains("failure points: 137"), "{text}");
    }

    #[test]
    fn each_case_is_told_where_all_are_wanted() {
        let text = told(&sample(), true);
        assert!(text.contains("failure points: 137"), "{text}");
        for case in sample().cases {
            assert_eq!(text.matches(&format!("    {} ", case.name)).count(), 1, "{text}");
        }
    }
}
