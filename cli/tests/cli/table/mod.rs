//! The behaviour of each subcommand if its files, its terminal or its numbers are wrong. Every cell comes from a run.
//!
//! `table.md` has the expected results. The test rewrites it if `GPU_VMM_WRITE_TABLE` is set.

mod files;
mod places;
mod rows;
mod run;
mod terminal;

use crate::rig::{command, stdout};
use rows::{REASONS, ROWS, Row};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

const OPENING: &str = "\
# Behaviour of the command if something is wrong

Each row is a run of `gpu-vmm` in a folder with some files: its exit status, its error line, and the files that have \
changed. `GPU_VMM_WRITE_TABLE=1 cargo test -p gpu-vmm-cli --test cli table` rewrites this page.
";

#[test]
fn every_cell_is_as_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/table/table.md");
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let made = table(&kept);
    if std::env::var_os("GPU_VMM_WRITE_TABLE").is_some() {
        return std::fs::write(&path, &made).unwrap();
    }
    let (made, kept): (Vec<&str>, Vec<&str>) = (made.lines().collect(), kept.lines().collect());
    let differ: Vec<String> = made
        .iter()
        .zip(&kept)
        .filter(|(made, kept)| made != kept)
        .map(|(made, kept)| format!("  was: {kept}\n  now: {made}"))
        .collect();
    assert!(differ.is_empty(), "{} rows differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!(made.len(), kept.len(), "rows are missing in the table");
}

#[test]
fn every_subcommand_meets_every_condition() {
    let conditions: BTreeSet<&str> = ROWS.iter().map(|row| row.condition).collect();
    for condition in &conditions {
        for subcommand in subcommands() {
            let runs = ROWS.iter().any(|row| row.condition == *condition && row.subcommand() == subcommand);
            let reasons = REASONS
                .iter()
                .filter(|reason| reason.condition == *condition && reason.subcommands.contains(&&*subcommand))
                .count();
            assert_eq!(usize::from(runs) + reasons, 1, "{condition}, {subcommand}: a run or a reason");
        }
    }
    assert_eq!(conditions.len(), 10);
}

/// Returns the subcommands that the help lists, and `--help`.
fn subcommands() -> Vec<String> {
    let help = stdout(&command(&["--help"]).output().unwrap());
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let mut names: Vec<String> = list
        .lines()
        // The lines of a description are indented further.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect();
    names.retain(|name| name != "help");
    assert!(names.len() >= 7, "{names:?}");
    names.push("--help".to_owned());
    names
}

/// Returns the whole table, from runs. A row that cannot run here keeps its old text, if that is allowed.
fn table(kept: &str) -> String {
    let mut text = OPENING.to_owned();
    let mut condition = "";
    for row in ROWS {
        if row.condition != condition {
            condition = row.condition;
            write!(text, "\n## {condition}\n\n| run | status | error | files |\n|---|---|---|---|\n")
                .unwrap();
            for reason in REASONS.iter().filter(|reason| reason.condition == condition) {
                for subcommand in reason.subcommands {
                    writeln!(text, "| `{subcommand}` | | no run: {} | |", reason.why).unwrap();
                }
            }
        }
        text.push_str(&line(row, kept));
    }
    text
}

fn line(row: &Row, kept: &str) -> String {
    let begin = format!("| `{}` |", row.shown().replace('|', "\\|"));
    match run::run(row) {
        Ok(cell) => {
            let cells = [cell.status, cell.error, cell.files].map(|cell| cell.replace('|', "\\|"));
            format!("{begin} {} |\n", cells.join(" | "))
        }
        Err(reason) => {
            let allowed = std::env::var_os("GPU_VMM_TABLE_WITHOUT_MOUNTS").is_some();
            assert!(allowed, "{begin} not run: {reason}; GPU_VMM_TABLE_WITHOUT_MOUNTS=1 leaves it out");
            eprintln!("{begin} not run: {reason}");
            kept.lines().filter(|line| line.starts_with(&begin)).map(|line| format!("{line}\n")).collect()
        }
    }
}
