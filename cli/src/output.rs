//! Writing to standard output or a file: lines, JSON, and text that is wrapped to a width.

use crate::CliResult;
use crate::destination::{Destination, unwritable};
use gpu_vmm::Bytes;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// The maximum width of text for people.
pub(crate) const WIDTH: usize = 100;

/// The minimum width that text is wrapped to.
const MIN_WIDTH: usize = 20;

/// The minimum width of text after a label; narrower text goes below the label.
const MIN_PARAGRAPH: usize = 24;

/// Standard output, or a file instead. If the reader closes the pipe (`| head -1`), nothing more is written and the
/// work continues.
#[derive(Debug)]
pub(crate) struct Output {
    to: Option<Destination>,
    width: usize,
    closed: bool,
}

impl Default for Output {
    /// Returns standard output, with the width of the terminal if it is one.
    fn default() -> Self {
        let stdout = std::io::stdout();
        let columns = if stdout.is_terminal() { terminal_size::terminal_size_of(stdout) } else { None };
        Self { to: None, width: columns.map_or(WIDTH, |(width, _)| fitting(width.0)), closed: false }
    }
}

/// Returns the width of text for people on a terminal.
fn fitting(columns: u16) -> usize {
    // A terminal that does not know its width reports 0.
    if columns == 0 { WIDTH } else { usize::from(columns).clamp(MIN_WIDTH, WIDTH) }
}

impl Output {
    /// Returns the file if there is one, else standard output.
    pub(crate) fn to(file: Option<Destination>) -> Self {
        match file {
            Some(file) => Self { to: Some(file), width: WIDTH, closed: false },
            None => Self::default(),
        }
    }

    /// Returns the maximum width of lines.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> CliResult {
        if self.closed {
            return Ok(());
        }
        let line = format!("{}\n", text.as_ref().trim_end());
        if let Some(file) = &mut self.to {
            return file.add(&line);
        }
        match std::io::stdout().write_all(line.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => return Err(unwritable(&"standard output", &error)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Writes text after a label or after spaces: later lines begin in the column of the first. If that is too far to
    /// the right, the text goes below the label.
    pub(crate) fn paragraph(&mut self, label: &str, text: &str) -> CliResult {
        if text.trim().is_empty() {
            return self.label(label);
        }
        let column = label.chars().count();
        let room = self.width.saturating_sub(column);
        if room < MIN_PARAGRAPH && room < text.chars().count() && !label.trim().is_empty() {
            self.label(label)?;
            let indent = label.chars().take_while(|char| *char == ' ').count();
            return self.paragraph(&" ".repeat((indent + 4).min(self.width / 4)), text);
        }
        let mut label = label.to_owned();
        for line in wrapped(text, room) {
            self.line(format!("{label}{line}"))?;
            label = " ".repeat(column);
        }
        Ok(())
    }

    /// Writes a label without text.
    fn label(&mut self, label: &str) -> CliResult {
        let label = label.trim_end();
        if label.chars().count() <= self.width {
            return self.line(label);
        }
        wrapped(label, self.width).iter().try_for_each(|line| self.line(line))
    }

    /// Writes one JSON object.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> CliResult {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// Completes the text: a file replaces the old one.
    pub(crate) fn complete(&mut self) -> CliResult {
        self.to.as_mut().map_or(Ok(()), Destination::complete)
    }
}

/// Removes control characters, which a terminal would obey: the content of a file is untrusted.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

/// Breaks a text into lines of at most `width` characters if its words allow it. Continuations of an indented line are
/// indented further.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut current = " ".repeat(indent);
        let mut empty = true;
        for word in line.split_whitespace() {
            if !empty && current.chars().count() + 1 + word.chars().count() > width {
                let next = " ".repeat(if indent > 0 { indent + 2 } else { 0 });
                lines.push(std::mem::replace(&mut current, next));
                empty = true;
            }
            if !empty {
                current.push(' ');
            }
            current.push_str(word);
            empty = false;
        }
        lines.push(current);
    }
    lines
}

/// Formats a size for people.
pub(crate) fn about(size: Bytes) -> String {
    format!("{size:#}")
}

/// Formats a count: "1 case", "2 cases".
pub(crate) fn counted(count: impl Display, thing: &str) -> String {
    let count = count.to_string();
    let end = if count == "1" { "" } else { "s" };
    format!("{count} {thing}{end}")
}

/// Formats a time for people, in a suitable unit.
pub(crate) fn duration(micros: f64) -> String {
    match micros {
        small if small < 1e3 => format!("{small:.1} µs"),
        middle if middle < 1e6 => format!("{:.2} ms", middle / 1e3),
        large => format!("{:.2} s", large / 1e6),
    }
}

/// Returns the lines that are written to an output of this width.
#[cfg(test)]
pub(crate) fn lines_of(width: usize, write: impl FnOnce(&mut Output) -> CliResult) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    let mut output = Output { to: Some(Destination::check(&file).unwrap()), width, closed: false };
    write(&mut output).unwrap();
    output.complete().unwrap();
    std::fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_label_has_its_own_line() {
        let label = "  first  second  third  ";
        let paragraph =
            |width, label: &str, text: &str| lines_of(width, |output| output.paragraph(label, text));
        // There is room for 16 characters behind the label.
        assert_eq!(paragraph(40, label, "sixteen letters."), [format!("{label}sixteen letters.")]);
        let text = "some words that need to lie on several lines";
        let apart = ["  first  second  third", "      some words that need to lie on", "      several lines"];
        assert_eq!(paragraph(40, label, text), apart);
        assert_eq!(
            paragraph(48, label, text),
            [format!("{label}some words that need to"), format!("{:24}lie on several lines", "")],
            "24 characters are enough"
        );
        assert_eq!(paragraph(40, &" ".repeat(24), text).len(), 3, "spaces are no label");
        // An indentation takes at most a quarter of the line.
        let deep = format!("{:14}label  ", "");
        assert_eq!(paragraph(20, &deep, "a word"), [format!("{:14}label", ""), format!("{:5}a word", "")]);
        assert_eq!(paragraph(12, "a long label  ", " "), ["a long label"]);
        assert_eq!(paragraph(8, "a long label  ", ""), ["a long", "label"]);
    }

    #[test]
    fn amounts_have_one_digit_from_five_on() {
        assert_eq!([9999, 10_240, 12_345].map(|size| about(Bytes(size))), ["9999 B", "10 KiB", "12.1 KiB"]);
        assert_eq!(about(Bytes(104_857_601)), "100.0 MiB");
        assert_eq!(
            [999.94, 1e3, 999_994.0, 1e6].map(duration),
            ["999.9 µs", "1.00 ms", "999.99 ms", "1.00 s"]
        );
    }

    #[test]
    fn lines_break_between_words_with_indentation() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("far-too-long-a-word x", 5), ["far-too-long-a-word", "x"]);
        assert_eq!(
            wrapped("looked for:\n  a: no such file", 11),
            ["looked for:", "  a: no", "    such", "    file"]
        );
        assert!(wrapped("", 10).is_empty());
    }

    #[test]
    fn file_text_has_no_terminal_commands() {
        assert_eq!(shown("a\u{1b}[31mb\nc\u{9b}d"), "a[31mbcd");
    }

    #[test]
    fn things_are_one_or_several() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "case")), ["0 cases", "1 case", "2 cases"]);
    }

    #[test]
    fn text_fits_narrow_terminals() {
        assert_eq!([0, 1, 20, 79, 100, 300].map(fitting), [100, 20, 20, 79, 100, 100]);
    }

    #[test]
    fn amounts_and_times_are_short() {
        assert_eq!(about(Bytes(25_250_000_896)), "23.5 GiB");
        assert_eq!(duration(12.34), "12.3 µs");
        assert_eq!(duration(12_340.0), "12.34 ms");
        assert_eq!(duration(12_340_000.0), "12.34 s");
    }
}
