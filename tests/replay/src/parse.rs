//! Parses lines into a [`Trace`].

use crate::error::Wrong;
use crate::event::{Event, Trace};
use std::collections::HashMap;

type Answer<T = ()> = Result<T, Wrong>;

/// The state of a block at the current line.
#[derive(Clone, Copy, Debug)]
enum Block {
    Live {
        slot: u32,
        bytes: u64,
        line: u32,
    },
    /// `event` is the position of its free.
    Freed {
        event: u32,
        line: u32,
    },
    Ready {
        line: u32,
    },
}

/// Parses one line after the other.
#[derive(Debug)]
pub(crate) struct Parser {
    trace: Trace,
    blocks: HashMap<u64, Block>,
    streams: HashMap<u64, u16>,
    free_slots: Vec<u32>,
    live: u64,
    /// The block that the previous line freed.
    just_freed: Option<u64>,
    any_ready: bool,
}

impl Parser {
    pub(crate) fn new() -> Self {
        let trace = Trace {
            events: Vec::new(),
            slots: 0,
            fences: 0,
            streams: vec![0],
            allocations: 0,
            frees: 0,
            peak: 0,
        };
        Self {
            trace,
            blocks: HashMap::new(),
            streams: HashMap::from([(0, 0)]),
            free_slots: Vec::new(),
            live: 0,
            just_freed: None,
            any_ready: false,
        }
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
                self.allocate(number, id, bytes, stream)
            }
            b"f" => {
                let id = value("ID")?;
                self.ends(words.next(), no_event)?;
                self.free(number, id)
            }
            b"r" => {
                let id = value("ID")?;
                self.ends(words.next(), no_event)?;
                self.ready(number, id)
            }
            _ => Err(no_event("it does not begin with a, f or r".to_owned())),
        }
    }

    fn ends(&self, word: Option<&[u8]>, no_event: impl Fn(String) -> Wrong) -> Answer {
        word.map_or(Ok(()), |word| Err(no_event(format!("`{}` is one word too many", shown(word)))))
    }

    /// Returns the whole trace.
    pub(crate) fn finish(mut self) -> Trace {
        if self.any_ready {
            let never = self.blocks.values().filter_map(|block| match block {
                Block::Freed { event, .. } => Some(*event),
                _ => None,
            });
            let mut never: Vec<u32> = never.collect();
            never.sort_unstable();
            for event in never {
                self.fence(event);
            }
        }
        self.trace.events.shrink_to_fit();
        self.trace
    }

    fn allocate(&mut self, line: u32, id: u64, bytes: u64, stream: u64) -> Answer {
        match self.blocks.get(&id) {
            _ if bytes == 0 => return Err(Wrong::Nothing { id }),
            Some(Block::Live { line, .. } | Block::Freed { line, .. } | Block::Ready { line }) => {
                return Err(Wrong::AllocatedTwice { id, before: *line });
            }
            None => {}
        }
        self.live = self.live.checked_add(bytes).ok_or(Wrong::TooMuch)?;
        self.trace.peak = self.trace.peak.max(self.live);
        let stream = self.stream(stream)?;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.trace.slots += 1; // never more than lines
                self.trace.slots - 1
            }
        };
        self.blocks.insert(id, Block::Live { slot, bytes, line });
        self.trace.allocations += 1;
        self.push(Event::Allocate { slot, stream, bytes });
        self.just_freed = None;
        Ok(())
    }

    fn free(&mut self, line: u32, id: u64) -> Answer {
        let (slot, bytes) = match self.blocks.get(&id) {
            Some(Block::Live { slot, bytes, .. }) => (*slot, *bytes),
            Some(Block::Freed { line: before, .. } | Block::Ready { line: before }) => {
                return Err(Wrong::FreedTwice { id, before: *before });
            }
            None => return Err(Wrong::Unknown { event: 'f', id }),
        };
        self.live -= bytes;
        self.free_slots.push(slot);
        self.trace.frees += 1;
        let event = self.push(Event::Free { slot });
        self.blocks.insert(id, Block::Freed { event, line });
        self.just_freed = Some(id);
        Ok(())
    }

    fn ready(&mut self, line: u32, id: u64) -> Answer {
        let event = match self.blocks.get(&id) {
            Some(Block::Freed { event, .. }) => *event,
            Some(Block::Live { line: allocated, .. }) => {
                return Err(Wrong::InUse { id, allocated: *allocated });
            }
            Some(Block::Ready { line: before }) => return Err(Wrong::ReadyTwice { id, before: *before }),
            None => return Err(Wrong::Unknown { event: 'r', id }),
        };
        self.any_ready = true;
        self.blocks.insert(id, Block::Ready { line });
        if self.just_freed.take() != Some(id) {
            let fence = self.fence(event);
            self.push(Event::Done { fence });
        }
        Ok(())
    }

    /// Makes the block that an event frees wait for a fence.
    fn fence(&mut self, event: u32) -> u32 {
        let fence = self.trace.fences;
        self.trace.fences += 1; // never more than lines
        if let Some(event) = self.trace.events.get_mut(event as usize)
            && let Event::Free { slot } = *event
        {
            *event = Event::FreeAfter { slot, fence };
        }
        fence
    }

    fn push(&mut self, event: Event) -> u32 {
        self.trace.events.push(event);
        self.trace.events.len() as u32 - 1 // never more than lines
    }

    /// Returns the index of a stream among all of them.
    fn stream(&mut self, number: u64) -> Answer<u16> {
        if let Some(stream) = self.streams.get(&number) {
            return Ok(*stream);
        }
        let limit = u64::from(u16::MAX);
        let place = u16::try_from(self.trace.streams.len())
            .map_err(|_| Wrong::TooMany { limit, what: "streams besides the default one" })?;
        self.trace.streams.push(number);
        self.streams.insert(number, place);
        Ok(place)
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
fn shown(text: &[u8]) -> String {
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
