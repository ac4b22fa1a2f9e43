//! The reports of several machines side by side, as Markdown: what differs from machine to machine is no property of gpu-vmm.

use super::markdown::{cells, machine};
use super::report::{Measured, Report};
use super::text::{figure, ratio};
use crate::output::shown;
use gpu_vmm_bench::Row;

/// Returns the tables. Rows and pairs are those that any machine has, in the order of the reports.
pub(super) fn page(reports: &[Report]) -> String {
    let mut page: String =
        (1..).zip(reports).map(|(number, report)| format!("{number}. {}\n", machine(report))).collect();
    for (pair, _) in union(reports, |report| report.pairs.iter().map(|pair| (pair, pair)).collect()) {
        page.push_str(&format!("\n## `{}`: {}\n\n", shown(&pair.name), shown(&pair.what)));
        page.push_str(&head(reports.len()));
        let rows = union(reports, |report| report.rows().filter(|(of, _)| of.name == pair.name).collect());
        for (_, row) in rows {
            let mut line = vec![row.what.clone(), row.baseline.name.clone()];
            line.extend(of_machines(reports, &pair.name, row).into_iter().map(|row| {
                let both = |row: &Row| {
                    let [ours, theirs] =
                        [&row.ours, &row.baseline].map(|side| figure(side.took.median, row.unit));
                    format!("{}: {ours}, {theirs}", ratio(row.ratio.median))
                };
                row.map_or_else(none, both)
            }));
            page.push_str(&cells(&line));
        }
        for (number, report) in (1..).zip(reports) {
            let of = report.pairs.iter().find(|of| of.name == pair.name);
            let why = of.and_then(|of| of.skipped.as_ref().or(of.failed.as_ref()));
            if let Some(why) = why {
                page.push_str(&format!("\nNot measured to its end on {number}: {}\n", shown(why)));
            }
        }
    }
    page
}

fn none() -> String {
    "–".to_owned()
}

/// Returns the heading of a table with a column for each machine.
fn head(machines: usize) -> String {
    let numbers = (1..=machines).map(|number| number.to_string());
    let names: Vec<_> = ["what", "compared with"].map(str::to_owned).into_iter().chain(numbers).collect();
    format!("{}|---|---|{}\n", cells(&names), "--:|".repeat(machines))
}

/// A part that the reports of several machines have in common: a pair, or a figure of a pair.
trait Key {
    fn is(&self, other: &Self) -> bool;
}

impl Key for Measured {
    fn is(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Key for Row {
    fn is(&self, other: &Self) -> bool {
        self.what == other.what && self.baseline.name == other.baseline.name
    }
}

/// Returns what any of the reports has, once.
fn union<'a, T: Key>(
    reports: &'a [Report],
    of: impl Fn(&'a Report) -> Vec<(&'a Measured, &'a T)>,
) -> Vec<(&'a Measured, &'a T)> {
    let mut all: Vec<(&Measured, &T)> = Vec::new();
    for (pair, one) in reports.iter().flat_map(of) {
        if !all.iter().any(|(other, known)| other.is(pair) && known.is(one)) {
            all.push((pair, one));
        }
    }
    all
}

/// Returns the figure of each machine that has it.
fn of_machines<'a>(reports: &'a [Report], pair: &str, row: &Row) -> Vec<Option<&'a Row>> {
    let of = |report: &'a Report| {
        report.rows().find(|(of, one)| of.name == pair && one.is(row)).map(|(_, row)| row)
    };
    reports.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::report;
    use super::*;

    #[test]
    fn machines_have_columns_and_reasons() {
        let (one, mut two) = (report(), report());
        two.pairs[0].rows.remove(0);
        two.pairs[0].rows[0].ratio.median = 0.4;
        two.pairs[0].name = "calls".to_owned();
        two.pairs[1].skipped = None;
        two.pairs[1].failed = Some("no second device".to_owned());
        let page = page(&[one, two]);
        let begin = page.find("\n## `calls`").unwrap_or_default();
        let (machines, tables) = page.split_at(begin);
        let machines: Vec<&str> = machines.lines().collect();
        assert!(machines.len() == 2 && machines[0].starts_with("1. Simulated GPU, driver "), "{page}");
        assert_eq!(machines[0][1..], machines[1][1..]);
        let expected = [
            "",
            "## `calls`: what calls is",
            "",
            "| what | compared with | 1 | 2 |",
            "|---|---|--:|--:|",
            "| create | one call | 0.250: 500.0 ns, 2.0 µs | – |",
            "| map | one call | 0.750: 500.0 ns, 2.0 µs | 0.400: 500.0 ns, 2.0 µs |",
            "| a name that is longer than its column can be | another | 1.500: 500.0 ns, 2.0 µs | 1.500: 500.0 ns, 2.0 µs |",
            "| grow | another | 2.000: 500.0 ns, 2.0 µs | 2.000: 500.0 ns, 2.0 µs |",
            "",
            "## `peer`: what peer is",
            "",
            "| what | compared with | 1 | 2 |",
            "|---|---|--:|--:|",
            "",
            "Not measured to its end on 1: there is no room",
            "",
            "Not measured to its end on 2: no second device",
        ];
        assert_eq!(tables.lines().collect::<Vec<_>>(), expected);
    }
}
