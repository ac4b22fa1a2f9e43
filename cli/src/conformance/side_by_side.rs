//! Several reports in one table, for people or as Markdown.

use crate::args::{ConformanceArguments, Format};
use crate::output::{Output, wrapped};
use crate::{CliResult, input};
use gpu_vmm_conformance::report::{Comparison, Report, Seen, Table};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The width of the gap between two columns.
const GAP: usize = 2;

/// The minimum width of a report's column, so that most words fit.
const MIN: usize = 10;

pub(super) fn run(options: &ConformanceArguments) -> CliResult {
    let file = super::destination(options)?;
    let Contents { mut reports, left_out } = read(&options.compare)?;
    if let Some(filter) = &options.filter {
        for (_, report) in &mut reports {
            report.cases.retain(|case| format!("{}::{}", case.layer, case.name).contains(filter));
        }
    }
    let mut comparison = Comparison::of(&reports, options.verbose);
    comparison.opening.extend(left_out);
    let mut output = Output::to(file);
    match options.format {
        Format::Markdown => output.line(comparison.markdown()),
        _ => print(&comparison, &mut output),
    }?;
    output.complete()
}

/// The content of a file: one report, an array of them, or none, if the suite of `gpu-vmm check` ended without a report.
enum Content {
    One(Box<Report>),
    Several(Vec<Report>),
    None,
}

/// The contents of all files.
struct Contents {
    /// The reports. Each is named after its file, and after the backend if a file has several.
    reports: Vec<(String, Report)>,
    /// A line about each file without a report.
    left_out: Vec<String>,
}

fn read(files: &[PathBuf]) -> CliResult<Contents> {
    const NO_REPORT: &str = "the check ended without a report of the conformance suite";
    let (mut reports, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        let text = input::read(file)?;
        let name = name(file, files);
        match content(&text).map_err(|why| format!("{} is not a report: {why}", file.display()))? {
            Content::One(report) => reports.push((name, *report)),
            Content::Several(several) => reports.extend(
                several.into_iter().map(|report| (format!("{name} {}", report.environment.target), report)),
            ),
            Content::None => left_out.push(format!("{name} is left out: {NO_REPORT}.")),
        }
    }
    if reports.is_empty() && !left_out.is_empty() {
        return Err(format!("nothing to compare: {NO_REPORT}, in each file").into());
    }
    Ok(Contents { reports, left_out })
}

/// The member that a file of `gpu-vmm check` has and a report has not.
#[derive(Deserialize)]
struct Form {
    check: Option<u32>,
}

/// The report in a file of `gpu-vmm check`.
#[derive(Deserialize)]
struct Checked {
    conformance: Option<Report>,
}

/// Parses a file. The first character and a member decide between the forms, so that errors are about the right one.
fn content(text: &[u8]) -> Result<Content, String> {
    let said = |error: serde_json::Error| error.to_string();
    if text.trim_ascii_start().starts_with(b"[") {
        return serde_json::from_slice(text).map(Content::Several).map_err(said);
    }
    let form: Form = serde_json::from_slice(text).map_err(said)?;
    if form.check.is_none() {
        return serde_json::from_slice(text).map(|report| Content::One(Box::new(report))).map_err(said);
    }
    let checked: Checked = serde_json::from_slice(text).map_err(said)?;
    Ok(checked.conformance.map_or(Content::None, |report| Content::One(Box::new(report))))
}

/// Returns a file's name without its extension, or its whole path if another file has the same name.
fn name(file: &Path, files: &[PathBuf]) -> String {
    let is_alone = files.iter().filter(|other| other.file_stem() == file.file_stem()).count() == 1;
    let name = if is_alone { file.file_stem() } else { None };
    name.unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

fn print(comparison: &Comparison, output: &mut Output) -> CliResult {
    comparison.opening.iter().try_for_each(|line| output.paragraph("", line))?;
    comparison.tables.iter().try_for_each(|one| table(&comparison.names, one, output))?;
    if comparison.seen.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line("What was seen")?;
    comparison.seen.iter().try_for_each(|one| seen(one, output))
}

fn table(names: &[String], table: &Table, output: &mut Output) -> CliResult {
    output.line("")?;
    output.line(table.title)?;
    if !table.about.is_empty() {
        output.paragraph("  ", table.about)?;
    }
    if table.rows.is_empty() {
        return output.line("  none");
    }
    let heading: Vec<&str> = [""].into_iter().chain(names.iter().map(String::as_str)).collect();
    let cells = |label, cells: &'_ [String]| -> Vec<String> {
        [label].into_iter().chain(cells.iter().cloned()).collect()
    };
    let mut rows = vec![heading.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>()];
    rows.extend(table.rows.iter().map(|row| cells(row.label.clone(), &row.cells)));
    let widths = widths(&rows, output.width());
    rows.iter().try_for_each(|row| line(row, &widths, output))
}

/// Returns the width of each column: the width of its cells, and less if that is too much, the reports' columns first.
fn widths(rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let column = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or_default();
    let mut widths: Vec<usize> = (0..rows[0].len()).map(column).collect();
    let room = width.saturating_sub(GAP * widths.len());
    while widths.iter().sum::<usize>() > room {
        let (labels, cells) = widths.split_at_mut(1);
        let widest = cells.iter_mut().max().filter(|width| **width > MIN);
        match widest {
            Some(width) => *width -= 1,
            None if labels[0] > MIN => labels[0] -= 1,
            // The reports do not fit the width.
            None => break,
        }
    }
    widths
}

/// Prints a row on as many lines as its longest cell needs.
fn line(row: &[String], widths: &[usize], output: &mut Output) -> CliResult {
    let cells: Vec<Vec<String>> = row.iter().zip(widths).map(|(cell, width)| fitted(cell, *width)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or_default();
    for index in 0..height {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let part = cell.get(index).map(String::as_str).unwrap_or_default();
            text.push_str(&format!("{:GAP$}{part:<width$}", ""));
        }
        output.line(text)?;
    }
    Ok(())
}

/// Breaks a cell into lines; a word wider than the column is cut.
fn fitted(cell: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in wrapped(cell, width) {
        let characters: Vec<char> = line.chars().collect();
        lines.extend(characters.chunks(width.max(1)).map(|part| part.iter().collect::<String>()));
    }
    lines
}

fn seen(seen: &Seen, output: &mut Output) -> CliResult {
    output.line(format!("  {}", seen.name))?;
    for (note, names) in &seen.notes {
        output.paragraph(&format!("    {}: ", names.join(", ")), note)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::WIDTH;

    #[test]
    fn columns_share_width_labels_keep_theirs() {
        let wide = "w".repeat(60);
        let rows = vec![vec!["a label".to_owned(), wide.clone(), wide, "narrow".to_owned()]];
        let widths = widths(&rows, WIDTH);
        assert_eq!(widths.iter().sum::<usize>() + GAP * widths.len(), WIDTH);
        assert_eq!((widths[0], widths[3]), (7, 6));
        assert!(widths[1].abs_diff(widths[2]) <= 1, "{widths:?}");
    }

    #[test]
    fn labels_shrink_after_the_cells() {
        let widths = |labels: usize, cells: &[usize], width| {
            let row = [labels].iter().chain(cells).map(|width| "w".repeat(*width)).collect::<Vec<_>>();
            super::widths(&[vec![String::new(); row.len()], row], width)
        };
        assert_eq!(widths(30, &[20, 20], 80), [30, 20, 20], "they fit");
        assert_eq!(widths(30, &[20, 20], 56), [30, 10, 10]);
        assert_eq!(widths(30, &[20, 20], 46), [20, 10, 10]);
        assert_eq!(widths(30, &[20, 20], 10), [10, 10, 10], "they do not fit");
        assert_eq!(widths(30, &[3, 20], 45), [26, 3, 10], "a narrow one stays");
    }

    #[test]
    fn cells_continue_in_their_column() {
        let row = ["a label", "as documented", ""].map(str::to_owned);
        let lines = crate::output::lines_of(WIDTH, |output| line(&row, &[8, 10, 4], output));
        assert_eq!(lines, ["  a label   as", "            documented"]);
    }

    #[test]
    fn check_file_has_at_most_one_report() {
        let content = |text: &str| super::content(text.as_bytes());
        assert!(matches!(content("{\"check\": 1}"), Ok(Content::None)));
        assert!(matches!(content(" \n[]"), Ok(Content::Several(reports)) if reports.is_empty()));
        let sample = serde_json::to_string(&crate::conformance::text::sample()).unwrap();
        let is_whole = |content| matches!(content, Ok(Content::One(report)) if report.cases.len() == 13);
        assert!(is_whole(content(&sample)));
        assert!(is_whole(content(&format!("{{\"check\": 1, \"conformance\": {sample}}}"))));
        for wrong in ["{}", "[{}]", "{\"check\": 1, \"conformance\": {}}", "{\"check\": \"one\"}"] {
            assert!(content(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cells_break_between_words_if_possible() {
        assert_eq!(fitted("as documented", 10), ["as", "documented"]);
        assert_eq!(fitted("libamdhip64.so.7", 10), ["libamdhip6", "4.so.7"]);
        assert!(fitted("", 10).is_empty());
        assert_eq!(fitted("ab", 0), ["a", "b"], "no width is one of one character");
    }

    #[test]
    fn reports_are_called_after_their_files() {
        let files = ["a/host.json", "b/host.json", "b/hip-7.2.4.json"].map(PathBuf::from);
        let names: Vec<String> = files.iter().map(|file| name(file, &files)).collect();
        assert_eq!(names, ["a/host.json", "b/host.json", "hip-7.2.4"]);
    }
}
