//! The report for people: a table for each pair, printed line by line.

use super::report::Report;
use crate::CliResult;
use crate::environment_text;
use crate::output::{Output, about, counted, duration, shown};
use gpu_vmm::Bytes;
use gpu_vmm_bench::{Row, Spread, Target, Unit};
use gpu_vmm_conformance::report::Environment;

/// Writes the tables.
#[derive(Default)]
pub(super) struct Text {
    output: Output,
    /// The baseline of the last line.
    baseline: Option<String>,
}

impl Text {
    pub(super) fn opening(&mut self, environment: &Environment) -> CliResult {
        environment_text::write(environment, &mut self.output)?;
        self.output.line("")?;
        self.output.paragraph(
            "",
            "Both sides are sampled alternately. Figures are medians. A ratio is gpu-vmm's figure divided by the \
             baseline's, with the interquartile range of the samples' ratios.",
        )
    }

    pub(super) fn begins(&mut self, name: &str, what: &str) -> CliResult {
        self.baseline = None;
        self.output.line("")?;
        self.output.paragraph(&format!("{}: ", shown(name)), &shown(what))
    }

    pub(super) fn row(&mut self, row: &Row) -> CliResult {
        if self.baseline.as_ref() != Some(&row.baseline.name) {
            if self.baseline.is_none() {
                self.output.line(line(
                    "",
                    "gpu-vmm",
                    "baseline",
                    "ratio",
                    "interquartile range",
                    "target",
                ))?;
            }
            self.output.line(format!("  compared with {}", shown(&row.baseline.name)))?;
            self.baseline = Some(row.baseline.name.clone());
        }
        let [ours, others] = [&row.ours, &row.baseline].map(|side| figure(side.took.median, row.unit));
        let mut what = format!("    {}", shown(&row.what));
        if what.chars().count() > FIRST {
            self.output.paragraph("    ", what.trim_start())?;
            what.clear();
        }
        self.output.line(line(
            &what,
            &ours,
            &others,
            &ratio(row.ratio.median),
            &half(&row.ratio),
            &verdict(row),
        ))
    }

    /// Prints why a pair was not measured to its end.
    pub(super) fn ended(&mut self, how: &str, why: &str) -> CliResult {
        self.output.paragraph(&format!("  {how}: "), &shown(why))
    }

    /// Prints a whole report that was written before.
    pub(super) fn whole(&mut self, report: &Report) -> CliResult {
        self.opening(&report.environment)?;
        for pair in &report.pairs {
            self.begins(&pair.name, &pair.what)?;
            pair.rows.iter().try_for_each(|row| self.row(row))?;
            pair.skipped.iter().try_for_each(|reason| self.ended("skipped", reason))?;
            pair.failed.iter().try_for_each(|error| self.ended("FAILED", error))?;
        }
        Ok(())
    }

    /// Prints the number of targets that are met, and those that are missed.
    pub(super) fn closing(&mut self, report: &Report) -> CliResult {
        let targeted = report.rows().filter(|(_, row)| row.target.is_some()).count();
        let missed: Vec<_> = report.rows().filter(|(_, row)| row.meets_its_target() == Some(false)).collect();
        if targeted == 0 {
            return Ok(());
        }
        self.output.line("")?;
        self.output.line(format!("{} of {} met", targeted - missed.len(), counted(targeted, "target")))?;
        for (pair, row) in missed {
            let text = format!(
                "{}, compared with {}: {}, {}",
                shown(&row.what),
                shown(&row.baseline.name),
                ratio(row.ratio.median),
                verdict(row)
            );
            self.output.paragraph(&format!("  missed: {}: ", shown(&pair.name)), &text)?;
        }
        Ok(())
    }
}

/// The width of the first column.
const FIRST: usize = 42;

fn line(what: &str, ours: &str, others: &str, ratio: &str, half: &str, target: &str) -> String {
    format!("{what:<FIRST$} {ours:>10} {others:>10} {ratio:>7} {half:>19}  {target}")
}

/// Formats a figure in a suitable unit.
pub(super) fn figure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds if value < 1e3 => format!("{value:.1} ns"),
        Unit::Nanoseconds => duration(value / 1e3),
        Unit::MillionsPerSecond => format!("{value:.2} M/s"),
        Unit::Bytes if value < 1024.0 => format!("{value:.1} B"),
        Unit::Bytes => about(Bytes(value as u64)),
    }
}

/// Formats a ratio with its significant digits.
pub(super) fn ratio(value: f64) -> String {
    match value {
        least if least < 0.000_95 => format!("{least:.1e}"),
        tiny if tiny < 0.099_95 => format!("{tiny:.4}"),
        small if small < 9.95 => format!("{small:.3}"),
        large => format!("{large:.1}"),
    }
}

/// Formats the interquartile range of ratios.
pub(super) fn half(spread: &Spread) -> String {
    if spread.low == spread.high {
        return String::new();
    }
    format!("{}–{}", ratio(spread.low), ratio(spread.high))
}

/// Formats the target of a ratio, and whether it is missed.
pub(super) fn verdict(row: &Row) -> String {
    let missed = if row.meets_its_target() == Some(false) { " MISSED" } else { "" };
    row.target.map_or_else(String::new, |of| format!("{}{missed}", target(of)))
}

/// Formats the target of a ratio.
pub(super) fn target(target: Target) -> String {
    match target {
        Target::AtMost(most) => format!("≤ {most}"),
        Target::AtLeast(least) => format!("≥ {least}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::report::Measured;
    use crate::output::{WIDTH, lines_of};
    use gpu_vmm_bench::Side;

    fn row(what: &str, baseline: &str, ratio: f64, target: Option<Target>) -> Row {
        let side = |name: &str, took| Side { name: name.to_owned(), took: Spread::exact(took) };
        let ratio = Spread { median: ratio, low: ratio / 2.0, high: ratio * 2.0 };
        let (ours, baseline) = (side("gpu-vmm", 500.0), side(baseline, 2000.0));
        Row { what: what.to_owned(), ours, baseline, unit: Unit::Nanoseconds, ratio, samples: 3, target }
    }

    fn printed(write: impl FnOnce(&mut Text) -> CliResult) -> Vec<String> {
        lines_of(WIDTH, |output| {
            let mut text = Text { output: std::mem::replace(output, Output::to(None)), baseline: None };
            write(&mut text)?;
            *output = text.output;
            Ok(())
        })
    }

    /// Returns a report of one pair whose second row misses its target, and of two that did not end.
    pub(in crate::bench) fn report() -> Report {
        let pair = |name: &str, rows, skipped: Option<&str>, failed: Option<&str>| Measured {
            name: name.to_owned(),
            what: format!("what {name} is"),
            rows,
            curves: Vec::new(),
            skipped: skipped.map(str::to_owned),
            failed: failed.map(str::to_owned),
        };
        let rows = vec![
            row("create", "one call", 0.25, Some(Target::AtMost(0.5))),
            row("map", "one call", 0.75, Some(Target::AtMost(0.5))),
            row("a name that is longer than its column can be", "another", 1.5, Some(Target::AtLeast(1.5))),
            row("grow", "another", 2.0, None),
        ];
        let (skipped, failed) = (Some("there is no room"), Some("a call failed"));
        let environment = crate::conformance::text::sample().environment;
        let pairs = vec![pair("calls", rows, None, None), pair("peer", Vec::new(), skipped, failed)];
        Report { environment, pairs }
    }

    #[test]
    fn report_has_pair_tables_and_reasons() {
        let report = report();
        let lines = printed(|text| text.whole(&report));
        let begin = lines.iter().position(|line| line.starts_with("calls: ")).unwrap();
        let expected = [
            "calls: what calls is",
            "                                              gpu-vmm   baseline   ratio interquartile range  target",
            "  compared with one call",
            "    create                                   500.0 ns     2.0 µs   0.250         0.125–0.500  ≤ 0.5",
            "    map                                      500.0 ns     2.0 µs   0.750         0.375–1.500  ≤ 0.5 MISSED",
            "  compared with another",
            "    a name that is longer than its column can be",
            "                                             500.0 ns     2.0 µs   1.500         0.750–3.000  ≥ 1.5",
            "    grow                                     500.0 ns     2.0 µs   2.000         1.000–4.000",
            "",
            "peer: what peer is",
            "  skipped: there is no room",
            "  FAILED: a call failed",
        ];
        assert_eq!(lines[begin..], expected);
    }

    #[test]
    fn end_counts_and_names_missed_targets() {
        let mut report = report();
        let lines = printed(|text| text.closing(&report));
        let missed = "  missed: calls: map, compared with one call: 0.750, ≤ 0.5 MISSED";
        assert_eq!(lines, ["", "2 of 3 targets met", missed]);
        report.pairs[0].rows.drain(1..);
        assert_eq!(printed(|text| text.closing(&report)), ["", "1 of 1 target met"]);
        report.pairs[0].rows.clear();
        assert!(printed(|text| text.closing(&report)).is_empty(), "there are no targets");
    }

    #[test]
    fn figures_are_short() {
        let nanos = [0.5, 999.0, 12_340.0, 12_340_000.0, 2e9].map(|value| figure(value, Unit::Nanoseconds));
        assert_eq!(nanos, ["0.5 ns", "999.0 ns", "12.3 µs", "12.34 ms", "2.00 s"]);
        assert_eq!(figure(354.479, Unit::MillionsPerSecond), "354.48 M/s");
        assert_eq!([63.25, 2_097_152.0].map(|value| figure(value, Unit::Bytes)), ["63.2 B", "2 MiB"]);
        assert_eq!(
            [0.0048, 0.0951, 0.1, 1.0131, 12.34].map(ratio),
            ["0.0048", "0.0951", "0.100", "1.013", "12.3"]
        );
        assert_eq!(
            [0.000_1, 0.000_96, 0.099_9, 9.94, 9.96].map(ratio),
            ["1.0e-4", "0.0010", "0.0999", "9.940", "10.0"]
        );
        assert_eq!([999.9, 1000.0].map(|value| figure(value, Unit::Nanoseconds)), ["999.9 ns", "1.0 µs"]);
        assert_eq!([1023.0, 1024.0].map(|value| figure(value, Unit::Bytes)), ["1023.0 B", "1 KiB"]);
        assert_eq!(half(&Spread { median: 1.0, low: 0.9, high: 1.1 }), "0.900–1.100");
        assert_eq!(half(&Spread::exact(1.0)), "");
    }
}
