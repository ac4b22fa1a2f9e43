//! Parses lines into a [`Trace`].

use crate::builder::Builder;
use crate::error::Wrong;
use crate::event::Trace;

type Answer<T = ()> = Result<T, Wrong>;

/// Parses one line after the other.
#[derive(Debug)]
pub(crate) struct Parser(Builder);

impl Parser {
    pub(crate) fn new() -> Self {
        Self(Builder::new())
    }

    /// Parses the line with this number.
    pub(crate) fn line(&mut self, number: u32, text: &[u8]) -> Answer {
        let text = text.trim_ascii();
        if text.is_empty() || text[0] == b'#' {
            return Ok(());
        }
        let no_event = |why: String| no_event(text, why);
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let event = words.next().unwrap_or_default();
        let mut value = |what: &str| {
            let word = words.next().ok_or_else(|| no_event(format!("it has no {what}")))?;
            number_of(word).ok_or_else(|| no_event(format!("{what} is not a number below 2^64")))
        };
        match event {
            b"a" => {
                let (id, bytes, stream) = (value("ID")?, value("BYTES")?, value("STREAM")?);
                self.ends(words.next(), no_event)?;
                self.0.allocate(number, id, bytes, stream)
            }
            b"f" => {
                let id = value("ID")?;
                self.ends(words.next(), no_event)?;
                self.0.free(number, id)
            }
            b"r" => {
                let id = value("ID")?;
                self.ends(words.next(), no_event)?;
                self.0.ready(number, id)
            }
            _ => Err(no_event("it does not begin with a, f or r".to_owned())),
        }
    }

    fn ends(&self, word: Option<&[u8]>, no_event: impl Fn(String) -> Wrong) -> Answer {
        word.map_or(Ok(()), |word| Err(no_event(format!("`{}` is one word too many", shown(word)))))
    }

    /// Returns the whole trace.
    pub(crate) fn finish(self) -> Trace {
        self.0.finish()
    }
}

/// Returns the error for an invalid line.
pub(crate) fn no_event(text: &[u8], why: String) -> Wrong {
    Wrong::NotAnEvent { text: shown(text), why }
}

fn number_of(word: &[u8]) -> Option<u64> {
    // `parse` would accept a sign.
    std::str::from_utf8(word).ok().filter(|word| word.as_bytes()[0].is_ascii_digit())?.parse().ok()
}

/// Returns the beginning of a line, without control characters for a terminal.
pub(crate) fn shown(text: &[u8]) -> String {
    const MAX: usize = 60;
    let lossy = String::from_utf8_lossy(text);
    let mut shown: String = lossy.chars().filter(|char| !char.is_control()).take(MAX).collect();
    if lossy.chars().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    fn parse(text: &str) -> Result<Trace, (u32, Wrong)> {
        let mut parser = Parser::new();
        for (line, text) in (1..).zip(text.lines()) {
            parser.line(line, text.as_bytes()).map_err(|wrong| (line, wrong))?;
        }
        Ok(parser.finish())
    }

    const fn allocate(slot: u32, stream: u16, bytes: u64) -> Event {
        Event::Allocate { slot, stream, bytes }
    }

    #[test]
    fn slots_are_reused_and_peaks_counted() {
        let trace = parse("# a comment\na 7 100 0\n\na 8 50 0\r\nf 7\nr 7\n  a 9 60 0 \nf 8\nr 8\n").unwrap();
        let free = |slot| Event::Free { slot };
        assert_eq!(
            trace.events,
            [allocate(0, 0, 100), allocate(1, 0, 50), free(0), allocate(0, 0, 60), free(1)]
        );
        assert_eq!((trace.slots, trace.fences, trace.peak), (2, 0, 150));
        assert_eq!((trace.allocations(), trace.frees(), trace.streams()), (3, 2, 1));
    }

    #[test]
    fn later_reuse_waits_for_a_fence() {
        let trace = parse("a 1 1 9\na 2 1 0\na 3 1 9\nf 1\nf 2\nr 2\nf 3\nr 1\n").unwrap();
        assert_eq!(trace.streams, [0, 9]);
        let expected = [
            allocate(0, 1, 1),
            allocate(1, 0, 1),
            allocate(2, 1, 1),
            Event::FreeAfter { slot: 0, fence: 0 },
            Event::Free { slot: 1 },
            // The trace does not release block 3, so its fence never completes.
            Event::FreeAfter { slot: 2, fence: 1 },
            Event::Done { fence: 0 },
        ];
        assert_eq!((trace.events, trace.fences), (expected.to_vec(), 2));
    }

    #[test]
    fn event_between_delays_the_reuse() {
        let trace = parse("a 1 1 0\na 2 1 0\nf 1\nf 2\nr 1\nr 2").unwrap();
        assert_eq!(trace.freed_for_later(), 2);
        let trace = parse("a 1 1 0\nf 1\n# nothing\n\nr 1").unwrap();
        assert_eq!(trace.freed_for_later(), 0);
    }

    #[test]
    fn trace_without_reuse_reuses_at_once() {
        let trace = parse("a 1 1 0\nf 1\na 2 1 0\nf 2").unwrap();
        assert_eq!((trace.freed_for_later(), trace.slots), (0, 1));
    }

    #[test]
    fn invalid_line_is_reported_with_its_number() {
        for (text, line, expected) in [
            (
                "a 1 1 0\nx 2",
                2,
                "`x 2` is not an event: it does not begin with a, f or r; a line is `a ID BYTES STREAM`",
            ),
            ("a 1 1", 1, "`a 1 1` is not an event: it has no STREAM; "),
            ("a 1 1 0 0", 1, "`0` is one word too many"),
            ("a 1 1k 0", 1, "BYTES is not a number below 2^64"),
            ("a +1 1 0", 1, "ID is not a number below 2^64"),
            ("a 1 18446744073709551616 0", 1, "BYTES is not a number"),
            ("f", 1, "it has no ID"),
            ("a 1 0 0", 1, "allocates 0 bytes"),
            ("a 1 1 0\n\na 1 1 0", 3, "`a 1`: block 1 was allocated at line 1 already"),
            ("a 1 1 0\nf 2", 2, "`f 2`: no block 2 was allocated before"),
            ("r 2", 1, "`r 2`: no block 2 was allocated before"),
            ("a 1 1 0\nf 1\nf 1", 3, "block 1 was freed at line 2 already"),
            ("a 1 1 0\nf 1\nr 1\nf 1", 4, "block 1 was freed at line 3 already"),
            ("a 1 1 0\nr 1\nf 1", 2, "`r 1`: block 1 of line 1 is not freed yet; `f 1` comes before `r 1`"),
            ("a 1 1 0\nf 1\nr 1\nr 1", 4, "was released for reuse at line 3 already"),
            ("a 1 18446744073709551615 0\na 2 1 0", 2, "more than 2^64 - 1 bytes together"),
        ] {
            let (at, wrong) = parse(text).unwrap_err();
            assert!(at == line && wrong.to_string().contains(expected), "{text:?}: {at}: {wrong}");
        }
    }

    #[test]
    fn line_is_shown_without_control_characters() {
        let (_, wrong) = parse(&format!("\u{1b}[2J{}", "x".repeat(500))).unwrap_err();
        let text = wrong.to_string();
        assert!(
            text.starts_with("`[2Jxxx") && text.contains("x…` is not an event") && text.len() < 250,
            "{text}"
        );
    }
}
