//! The report for people: a table for each pair, printed line by line.

use super::report::Report;
use crate::Answer;
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
    pub(super) fn opening(&mut self, environment: &Environment) -> Answer {
        environment_text::write(environment, &mut self.output)?;
        self.output.line("")?;
        self.output.paragraph(
            "",
            "Both sides are sampled alternately. A ratio is gpu-vmm's figure divided by the baseline's, sample by \
             sample: the median, and the interquartile range. Figures are medians.",
        )
    }

    pub(super) fn begins(&mut self, name: &str, what: &str) -> Answer {
        self.baseline = None;
        self.output.line("")?;
        self.output.paragraph(&format!("{}: ", shown(name)), &shown(what))
    }

    pub(super) fn row(&mut self, row: &Row) -> Answer {
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
    pub(super) fn ended(&mut self, how: &str, why: &str) -> Answer {
        self.output.paragraph(&format!("  {how}: "), &shown(why))
    }

    /// Prints a whole report that was written before.
    pub(super) fn whole(&mut self, report: &Report) -> Answer {
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
    pub(super) fn closing(&mut self, report: &Report) -> Answer {
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
mod tests {
    use super::*;

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
        assert_eq!(half(&Spread { median: 1.0, low: 0.9, high: 1.1 }), "0.900–1.100");
        assert_eq!(half(&Spread::exact(1.0)), "");
    }
}
