//! Writing to standard output or a file: lines, JSON, and text that keeps to a width.

use crate::Answer;
use gpu_vmm::Bytes;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How wide the text for people is at most.
pub(crate) const WIDTH: usize = 100;

/// Standard output, or a file in its place. Where its reader has gone (`| head -1`), nothing more is written and the
/// work goes on.
#[derive(Debug, Default)]
pub(crate) struct Output {
    file: Option<(File, PathBuf)>,
    closed: bool,
}

impl Output {
    /// A file, made anew where one is named, else standard output.
    pub(crate) fn to(file: Option<&Path>) -> Answer<Self> {
        let Some(path) = file else { return Ok(Self::default()) };
        let created = File::create(path).map_err(|error| unwritable(&path.display(), &error))?;
        Ok(Self { file: Some((created, path.to_owned())), closed: false })
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Answer {
        if self.closed {
            return Ok(());
        }
        let line = format!("{}\n", text.as_ref().trim_end());
        let written = match &mut self.file {
            Some((file, _)) => file.write_all(line.as_bytes()),
            None => std::io::stdout().write_all(line.as_bytes()),
        };
        match (written, &self.file) {
            (Err(error), None) if error.kind() == ErrorKind::BrokenPipe => self.closed = true,
            (Err(error), None) => return Err(unwritable(&"standard output", &error)),
            (Err(error), Some((_, path))) => return Err(unwritable(&path.display(), &error)),
            (Ok(()), _) => {}
        }
        Ok(())
    }

    /// Text behind a label, or behind spaces alone: later lines begin where the first one does.
    pub(crate) fn paragraph(&mut self, label: &str, text: &str) -> Answer {
        if text.trim().is_empty() {
            return self.line(label);
        }
        let column = label.chars().count();
        let mut label = label.to_owned();
        for line in wrapped(text, WIDTH.saturating_sub(column)) {
            self.line(format!("{label}{line}"))?;
            label = " ".repeat(column);
        }
        Ok(())
    }

    /// One JSON object.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> Answer {
        self.line(serde_json::to_string_pretty(value)?)
    }
}

/// Why something could not be written.
pub(crate) fn unwritable(what: &dyn Display, error: &std::io::Error) -> Box<dyn std::error::Error> {
    format!("{what} cannot be written: {error}").into()
}

/// Writes a file that is whole or stays as it was. What is there and no file, such as a pipe, is written to as it is.
pub(crate) fn write_whole(path: &Path, text: &str) -> Answer {
    let answer = match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => std::fs::write(path, text),
        Ok(_) => std::fs::canonicalize(path).and_then(|path| replace(&path, text)),
        Err(_) => replace(path, text),
    };
    answer.map_err(|error| unwritable(&path.display(), &error))
}

/// Writes beside a file, and gives that its name.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let Some(name) = path.file_name() else { return Err(ErrorKind::InvalidInput.into()) };
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    let mut file = File::create_new(&partial)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // What went wrong before is what is told.
        let _ = std::fs::remove_file(&partial);
    }
    written
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

/// An amount for people: exact where that is short, else to one decimal.
pub(crate) fn about(size: Bytes) -> String {
    let exact = size.to_string();
    if exact.len() <= "1023 MiB".len() {
        return exact;
    }
    let (unit, name) = if size < Bytes::gib(1) { (Bytes::mib(1), "MiB") } else { (Bytes::gib(1), "GiB") };
    format!("{:.1} {name}", size.0 as f64 / unit.0 as f64)
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
    fn amounts_and_times_are_short() {
        assert_eq!(about(Bytes::gib(64)), "64 GiB");
        assert_eq!(about(Bytes(25_250_000_896)), "23.5 GiB");
        assert_eq!(about(Bytes(1_000_001)), "1.0 MiB");
        assert_eq!(duration(12.34), "12.3 µs");
        assert_eq!(duration(12_340.0), "12.34 ms");
        assert_eq!(duration(12_340_000.0), "12.34 s");
    }
}
