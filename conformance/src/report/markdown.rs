//! A comparison as Markdown.

use super::compare::{Comparison, Row, Table};
use std::fmt::{self, Write};

impl Comparison {
    /// Formats the comparison as Markdown, with headings of the second level.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, to: &mut String) -> fmt::Result {
        for line in &self.opening {
            writeln!(to, "- {}", plain(line))?;
        }
        self.tables.iter().try_for_each(|table| self.write_table(table, to))?;
        if self.seen.is_empty() {
            return Ok(());
        }
        writeln!(to, "\n## What was seen\n")?;
        for seen in &self.seen {
            writeln!(to, "- `{}`", seen.name)?;
            for (note, names) in &seen.notes {
                writeln!(to, "  - {}: {}", plain(&names.join(", ")), plain(note))?;
            }
        }
        Ok(())
    }

    fn write_table(&self, table: &Table, to: &mut String) -> fmt::Result {
        writeln!(to, "\n## {}\n", table.title)?;
        if !table.about.is_empty() {
            writeln!(to, "{}\n", plain(table.about))?;
        }
        if table.rows.is_empty() {
            return writeln!(to, "None.");
        }
        writeln!(to, "| | {} |", self.names.iter().map(|name| plain(name)).collect::<Vec<_>>().join(" | "))?;
        writeln!(to, "|---|{}", "---|".repeat(self.names.len()))?;
        table.rows.iter().try_for_each(|row| write_row(row, to))
    }
}

fn write_row(row: &Row, to: &mut String) -> fmt::Result {
    let label = match row.rule.is_empty() {
        true => plain(&row.label),
        false => format!("`{}`<br>{}", row.label, plain(&row.rule)),
    };
    let cells: Vec<String> = row.cells.iter().map(|cell| plain(cell)).collect();
    writeln!(to, "| {label} | {} |", cells.join(" | "))
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
    use crate::report::sample;

    #[test]
    fn every_row_has_each_reports_cell() {
        let reports = [("a".to_owned(), sample::report("hip")), ("b".to_owned(), sample::report("host"))];
        let text = Comparison::of(&reports, true).markdown();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert!(rows.len() > 20, "{text}");
        assert!(rows.iter().all(|row| row.replace("\\|", "").matches('|').count() == 4), "{text}");
        assert!(text.contains("| `map::offset`<br>"), "{text}");
        assert!(text.contains("a \\| b \\<c\\>"), "{text}");
    }
}
