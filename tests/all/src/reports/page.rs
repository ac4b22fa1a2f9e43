//! The page of a folder of reports: a line of totals for each machine, and the deviations.

use super::recorded::{Case, Report};
use serde_json::Value;
use std::fmt::{self, Write};

/// The columns of the totals that are counts, and the members of a report's summary.
const COUNTS: [(&str, &str); 7] = [
    ("passed", "passed"),
    ("FAILED", "failed"),
    ("skipped", "skipped"),
    ("as documented", "as_documented"),
    ("more lenient", "more_lenient"),
    ("deviates", "deviations"),
    ("NEW", "new_deviations"),
];

/// Returns the generated part of the page, from reports with their names.
pub(super) fn page(reports: &[(String, Report)]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(reports, &mut text);
    text
}

fn write(reports: &[(String, Report)], to: &mut String) -> fmt::Result {
    let heads = COUNTS.map(|(head, _)| head).join(" | ");
    writeln!(to, "## Totals\n\n| report | ran on | devices | driver | {heads} | gpu-vmm | run at |")?;
    writeln!(to, "|---|---|---|---|{}---|---|", "--:|".repeat(COUNTS.len()))?;
    reports.iter().try_for_each(|(name, report)| totals(name, report, to))?;
    for (names, cases) in &same(reports) {
        writeln!(to, "\n## {}\n", plain(&names.join(", ")))?;
        if cases.is_empty() {
            writeln!(to, "No deviation.")?;
            continue;
        }
        writeln!(to, "| case | verdict | rule | what the driver did |\n|---|---|---|---|")?;
        cases.iter().try_for_each(|case| deviation(case, to))?;
    }
    Ok(())
}

/// Returns the remarkable cases of each report. Reports with the same ones are together.
fn same(reports: &[(String, Report)]) -> Vec<(Vec<&str>, Vec<&Case>)> {
    let mut all: Vec<(Vec<&str>, Vec<&Case>)> = Vec::new();
    for (name, report) in reports {
        let cases: Vec<&Case> = report.cases.iter().filter(|case| case.is_remarkable()).collect();
        match all.iter_mut().find(|(_, known)| *known == cases) {
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], cases)),
        }
    }
    all
}

fn totals(name: &str, Report { environment, summary, .. }: &Report, to: &mut String) -> fmt::Result {
    let ran_on = match text(&environment["ran_on"]) {
        "hardware" => "hardware",
        "simulated-devices" => "SIMULATED, no GPU",
        "fake-driver" => "FAKE DRIVER, no GPU",
        _ => "host memory, no GPU",
    };
    let devices = environment["devices"].as_array().map_or(&[][..], Vec::as_slice);
    let chosen = devices.iter().find(|device| device["device"] == environment["device"]);
    let device = text(chosen.map_or(&Value::Null, |device| &device["name"]));
    let driver = &environment["driver"];
    let module = match text(&driver["kernel_module"]) {
        "" => String::new(),
        version => format!(", kernel module {version}"),
    };
    write!(
        to,
        "| [{}]({name}.json) | {ran_on} | {} × {} | {}, {}{} |",
        plain(name),
        devices.len(),
        plain(device),
        plain(text(&driver["version"])),
        plain(text(&driver["library"])),
        plain(&module)
    )?;
    COUNTS.iter().try_for_each(|(_, member)| write!(to, " {} |", summary[*member]))?;
    writeln!(to, " {} | {} |", plain(text(&environment["gpu_vmm"])), plain(text(&environment["time"])))
}

fn deviation(case: &Case, to: &mut String) -> fmt::Result {
    let verdict = match (case.verdict.as_str(), &case.quirk) {
        ("deviates", None) => "**NEW**".to_owned(),
        ("as-documented", _) => {
            format!("not seen: {}", plain(&case.unseen_quirks().collect::<Vec<_>>().join(", ")))
        }
        (verdict, Some(quirk)) => format!("{}: {}", plain(&verdict.replace('-', " ")), plain(quirk)),
        (verdict, None) => plain(&verdict.replace('-', " ")),
    };
    writeln!(to, "| `{}` | {verdict} | {} | {} |", case.name, plain(&case.rule), plain(&case.note))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Escapes text for Markdown.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for character in text.chars() {
        if "\\`*_[]<>|".contains(character) {
            plain.push('\\');
        }
        plain.push(if character == '\n' { ' ' } else { character });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdict: &str, quirk: Option<&str>) -> Report {
        let cases = serde_json::json!([
            {"layer": "driver", "name": "map::twice", "verdict": verdict, "quirk": quirk,
             "rule": "A | rule.", "note": "it\ndid <that>"},
        ]);
        let environment = serde_json::json!({
            "ran_on": "hardware", "device": 1, "devices": [{"device": 0, "name": "a"}, {"device": 1, "name": "b_c"}],
            "driver": {"version": "1.0", "library": "lib.so"}, "gpu_vmm": "0.1.0", "time": "now",
        });
        let summary = serde_json::json!({"passed": 5, "failed": 0, "skipped": 2, "as_documented": 3,
            "more_lenient": 0, "deviations": 1, "new_deviations": 1});
        Report { environment, summary, cases: serde_json::from_value(cases).unwrap() }
    }

    #[test]
    fn same_deviations_share_one_list() {
        let reports = [
            ("one".to_owned(), report("deviates", Some("a-quirk"))),
            ("other".to_owned(), report("passed", None)),
            ("two".to_owned(), report("deviates", Some("a-quirk"))),
            ("new".to_owned(), report("deviates", None)),
        ];
        let text = page(&reports);
        for part in [
            "| [one](one.json) | hardware | 2 × b\\_c | 1.0, lib.so | 5 | 0 | 2 | 3 | 0 | 1 | 1 | 0.1.0 | now |\n",
            "\n## one, two\n\n| case",
            "| `map::twice` | deviates: a-quirk | A \\| rule. | it did \\<that\\> |\n",
            "\n## other\n\nNo deviation.\n",
            "\n## new\n\n",
            "| `map::twice` | **NEW** |",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert_eq!(text.matches("a-quirk").count(), 1);
    }

    #[test]
    fn rows_have_a_cell_for_each_column() {
        let text = page(&[("one".to_owned(), report("more-lenient", None))]);
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.iter().map(|row| cells(row)).collect::<Vec<_>>(), [14, 14, 14, 5, 5, 5], "{text}");
    }
}
