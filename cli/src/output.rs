//! Writing to standard output or a file: lines, JSON, and text that keeps to a width.

use crate::Answer;
use crate::destination::{Destination, unwritable};
use gpu_vmm::Bytes;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// How wide the text for people is at most.
pub(crate) const WIDTH: usize = 100;

/// No text is made to fit into less.
const MIN_WIDTH: usize = 20;

/// Text behind a label has at least this width, or goes below the label.
const MIN_PARAGRAPH: usize = 24;

/// Standard output, or a file in its place. If its reader has gone (`| head -1`), nothing more is written and the work
/// goes on.
#[derive(Debug)]
pub(crate) struct Output {
    to: Option<Destination>,
    width: usize,
    closed: bool,
}

impl Default for Output {
    /// Standard output, as wide as the terminal if it is one.
    fn default() -> Self {
        let stdout = std::io::stdout();
        let columns = if stdout.is_terminal() { terminal_size::terminal_size_of(stdout) } else { None };
        Self { to: None, width: columns.map_or(WIDTH, |(width, _)| fitting(width.0)), closed: false }
    }
}

/// The width of text for people on a terminal.
fn fitting(columns: u16) -> usize {
    // A terminal that does not know its width says 0.
    if columns == 0 { WIDTH } else { usize::from(columns).clamp(MIN_WIDTH, WIDTH) }
}

impl Output {
    /// A file if there is one, else standard output.
    pub(crate) fn to(file: Option<Destination>) -> Self {
        match file {
            Some(file) => Self { to: Some(file), width: WIDTH, closed: false },
            None => Self::default(),
        }
    }

    /// How wide lines can be.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Answer {
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

    /// Text behind a label, or behind spaces alone: later lines begin where the first one does. If that is too far to
    /// the right, the text goes below the label.
    pub(crate) fn paragraph(&mut self, label: &str, text: &str) -> Answer {
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

    /// A label with nothing behind it.
    fn label(&mut self, label: &str) -> Answer {
        let label = label.trim_end();
        if label.chars().count() <= self.width {
            return self.line(label);
        }
        wrapped(label, self.width).iter().try_for_each(|line| self.line(line))
    }

    /// One JSON object.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> Answer {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// Ends the text: a file takes the place of the one that was there.
    pub(crate) fn complete(&mut self) -> Answer {
        self.to.as_mut().map_or(Ok(()), Destination::complete)
    }
}

/// Without control characters, which a terminal would obey: what is in a file may be anybody's.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

/// The lines of a text, broken between words so that none is longer than `width` where words allow it. What belongs
/// to an indented line stays behind it.
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

/// An amount for people: exact if that has up to four digits, else in the largest unit it fills, to one decimal.
pub(crate) fn about(size: Bytes) -> String {
    const UNITS: [(Bytes, &str); 4] =
        [(Bytes::gib(1024), "TiB"), (Bytes::gib(1), "GiB"), (Bytes::mib(1), "MiB"), (Bytes::kib(1), "KiB")];
    let exact = size.to_string();
    let digits = exact.chars().take_while(char::is_ascii_digit).count();
    match UNITS.iter().find(|(unit, _)| size >= *unit) {
        Some((unit, name)) if digits > 4 => format!("{:.1} {name}", size.0 as f64 / unit.0 as f64),
        _ => exact,
    }
}

/// A number of things: "1 case", "2 cases".
pub(crate) fn counted(count: impl Display, thing: &str) -> String {
    let count = count.to_string();
    let end = if count == "1" { "" } else { "s" };
    format!("{count} {thing}{end}")
}

/// A time for people, in the unit that suits it.
pub(crate) fn duration(micros: f64) -> String {
    match micros {
        small if small < 1e3 => format!("{small:.1} µs"),
        middle if middle < 1e6 => format!("{:.2} ms", middle / 1e3),
        large => format!("{:.2} s", large / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_keep_their_indentation() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("far-too-long-a-word x", 5), ["far-too-long-a-word", "x"]);
        assert_eq!(
            wrapped("looked for:\n  a: no such file", 11),
            ["looked for:", "  a: no", "    such", "    file"]
        );
        assert!(wrapped("", 10).is_empty());
    }

    #[test]
    fn no_terminal_obeys_what_is_in_a_file() {
        assert_eq!(shown("a\u{1b}[31mb\nc\u{9b}d"), "a[31mbcd");
    }

    #[test]
    fn things_are_one_or_several() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "case")), ["0 cases", "1 case", "2 cases"]);
    }

    #[test]
    fn text_fits_the_terminal_down_to_a_width() {
        assert_eq!([0, 1, 20, 79, 100, 300].map(fitting), [100, 20, 20, 79, 100, 100]);
    }

    #[test]
    fn amounts_and_times_are_short() {
        assert_eq!(about(Bytes::gib(64)), "64 GiB");
        assert_eq!(about(Bytes(25_250_000_896)), "23.5 GiB");
        assert_eq!(about(Bytes(1_000_001)), "976.6 KiB");
        assert_eq!(about(Bytes(50_171)), "49.0 KiB");
        assert_eq!(about(Bytes(1536)), "1536 B");
        assert_eq!(about(Bytes::mib(1536)), "1536 MiB");
        assert_eq!(about(Bytes(u64::MAX)), "16777216.0 TiB");
        assert_eq!(duration(12.34), "12.3 µs");
        assert_eq!(duration(12_340.0), "12.34 ms");
        assert_eq!(duration(12_340_000.0), "12.34 s");
    }
}
