//! The report as Markdown: a table for each pair.

use super::report::{Measured, Report};
use super::text::{figure, half, ratio};
use crate::output::shown;

/// Returns the whole report as Markdown.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!("{}.\n", machine(report));
    report.pairs.iter().for_each(|pair| page.push_str(&table(pair)));
    page
}

/// Returns the machine that was measured on, the version, and the time.
pub(super) fn machine(report: &Report) -> String {
    let environment = &report.environment;
    let device = environment.chosen().map(|device| shown(&device.name)).unwrap_or_default();
    format!(
        "{device}, driver {}; {}; {}. gpu-vmm {}, {}",
        shown(&environment.driver.to_string()),
        shown(&environment.machine.to_string()),
        shown(&environment.system.to_string()),
        shown(&environment.gpu_vmm),
        shown(&environment.time),
    )
}

fn table(pair: &Measured) -> String {
    let mut table = format!("\n## `{}`: {}\n\n", shown(&pair.name), shown(&pair.what));
    if !pair.rows.is_empty() {
        table.push_str(
            "| what | compared with | gpu-vmm | baseline | ratio | interquartile range |\n|---|---|--:|--:|--:|--:|\n",
        );
    }
    for row in &pair.rows {
        table.push_str(&cells(&[
            &row.what,
            &row.baseline.name,
            &figure(row.ours.took.median, row.unit),
            &figure(row.baseline.took.median, row.unit),
            &ratio(row.ratio.median),
            &half(&row.ratio),
        ]));
    }
    for (how, why) in [("Skipped", &pair.skipped), ("Failed", &pair.failed)] {
        if let Some(why) = why {
            table.push_str(&format!("\n{how}: {}\n", shown(why)));
        }
    }
    table
}

/// Formats a row of a table.
pub(super) fn cells(cells: &[impl AsRef<str>]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| shown(cell.as_ref()).replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::report;
    use super::*;

    #[test]
    fn page_has_a_table_for_each_pair() {
        let mut report = report();
        report.pairs[0].rows.truncate(2);
        report.pairs[0].rows[1].what = "a | b".to_owned();
        report.environment.gpu_vmm = "9.8.7\u{1b}".to_owned();
        let page = page(&report);
        let lines: Vec<&str> = page.lines().collect();
        let time = &report.environment.time;
        assert!(lines[0].starts_with("Simulated GPU, driver 7.2.53211 (number 70253211), "), "{page}");
        assert!(
            lines[0]
                .ends_with(&format!("; Linux 6.18.44, Debian GNU/Linux 13 (trixie). gpu-vmm 9.8.7, {time}.")),
            "{page}"
        );
        let expected = [
            "",
            "## `calls`: what calls is",
            "",
            "| what | compared with | gpu-vmm | baseline | ratio | interquartile range |",
            "|---|---|--:|--:|--:|--:|",
            "| create | one call | 500.0 ns | 2.0 µs | 0.250 | 0.125–0.500 |",
            "| a \\| b | one call | 500.0 ns | 2.0 µs | 0.750 | 0.375–1.500 |",
            "",
            "## `peer`: what peer is",
            "",
            "",
            "Skipped: there is no room",
            "",
            "Failed: a call failed",
        ];
        assert_eq!(lines[1..], expected);
    }
}
