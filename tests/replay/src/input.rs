//! A trace from a file or a stream, compressed or not.

use crate::error::{TraceError, Wrong};
use crate::event::Trace;
use crate::parse::Parser;
use crate::pickle::{self, PickleError};
use crate::pytorch;
use crate::rmm::{HEADER, Log};
use flate2::bufread::MultiGzDecoder;
use gpu_vmm_core::Bytes;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// Longer lines are refused. Without a limit, a file of another format could be one line.
const LONGEST_LINE: u64 = 4096;

/// The first bytes of a file that gzip has compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// UTF-8 of U+FEFF.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Trace {
    /// Reads a file, and reports each part of it to `progress`. `device` chooses one of the recorded program's devices, if the file has
    /// several.
    ///
    /// # Errors
    ///
    /// [`TraceError`]; for an invalid line, with its number and what would be right.
    pub fn open(path: &Path, device: Option<u32>, progress: &dyn Fn(Bytes)) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::read(&name, device, Counted { from: file, progress }),
            Err(source) => Err(TraceError::Unreadable { name, line: 0, source }),
        }
    }

    /// Reads a stream. Errors call it `name`.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Trace::open).
    pub fn read(name: &str, device: Option<u32>, from: impl Read) -> Result<Self, TraceError> {
        let mut line = 0;
        read(from, device, &mut line).map_err(|failure| {
            let name = name.to_owned();
            match failure {
                Failure::Io(source) => TraceError::Unreadable { name, line, source },
                Failure::Line(line, wrong) => TraceError::Line { name, line, wrong },
                Failure::Pickle(PickleError::Io(source)) => TraceError::Unreadable { name, line: 0, source },
                Failure::Pickle(PickleError::Truncated { length }) => {
                    let why = "the file ends in the middle of the pickle".to_owned();
                    TraceError::Byte { name, byte: length, why }
                }
                Failure::Pickle(PickleError::Wrong { at, why }) => TraceError::Byte { name, byte: at, why },
                Failure::Snapshot(wrong) => TraceError::Snapshot { name, wrong },
                Failure::Format(found) => TraceError::Format { name, found },
                Failure::NoDevices => TraceError::NoDevices(name),
                Failure::Empty => TraceError::Empty(name),
            }
        })
    }
}

enum Failure {
    Io(std::io::Error),
    Line(u32, Wrong),
    Pickle(PickleError),
    Snapshot(Wrong),
    Format(&'static str),
    NoDevices,
    Empty,
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

fn read(mut from: impl Read, device: Option<u32>, line: &mut u32) -> Result<Trace, Failure> {
    let mut start = Vec::new();
    from.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
    let compressed = start == GZIP;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(from));
    let trace = if compressed {
        content(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(whole)), device, line)
    } else {
        content(whole, device, line)
    }?;
    if trace.allocations == 0 { Err(Failure::Empty) } else { Ok(trace) }
}

/// Reads a trace of the format that its beginning has.
fn content(mut from: impl BufRead, device: Option<u32>, line: &mut u32) -> Result<Trace, Failure> {
    let mut start = Vec::new();
    from.by_ref().take(HEADER.len() as u64).read_to_end(&mut start)?;
    let format = Format::of(&start);
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(from));
    match (format, device) {
        (Format::Pickle, device) => {
            let values = pickle::read(whole).map_err(Failure::Pickle)?;
            pytorch::trace(&values, device).map_err(Failure::Snapshot)
        }
        (Format::Other(found), _) => Err(Failure::Format(found)),
        (_, Some(_)) => Err(Failure::NoDevices),
        (Format::Rmm, None) => {
            let mut log = Log::new();
            lines(whole, line, |number, text| log.line(number, text))?;
            log.finish().map_err(|(line, wrong)| Failure::Line(line, wrong))
        }
        (Format::Text, None) => {
            let mut parser = Parser::new();
            lines(whole, line, |number, text| parser.line(number, text))?;
            Ok(parser.finish())
        }
    }
}

enum Format {
    Text,
    Pickle,
    Rmm,
    /// No trace, but a format by which a user may have meant one.
    Other(&'static str),
}

impl Format {
    /// Returns the format of a file that begins with `start`.
    fn of(start: &[u8]) -> Self {
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
        match start {
            [pickle::PROTOCOL, protocol, ..] if *protocol < 0x20 => Self::Pickle,
            [b'P', b'K', 3, 4, ..] => Self::Other("a ZIP file, as torch.save writes"),
            [b'(' | b'}' | b']', ..] => Self::Other("a pickle of protocol 0 or 1, or another text"),
            [b'{' | b'[', ..] => Self::Other("JSON"),
            // The mark takes three bytes of what was read.
            _ if text.len() > 10 && HEADER.as_bytes().starts_with(text) => Self::Rmm,
            _ => Self::Text,
        }
    }
}

/// Calls a function with each line, and sets `line` to the line of an error, or, for an error of reading, to the last complete line.
fn lines(
    mut from: impl BufRead,
    line: &mut u32,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), Wrong>,
) -> Result<(), Failure> {
    let mut text = Vec::new();
    loop {
        text.clear();
        let length = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)?;
        if length == 0 {
            return Ok(());
        }
        let limit = u32::MAX;
        *line = line
            .checked_add(1)
            .ok_or(Failure::Line(*line, Wrong::TooMany { limit: limit.into(), what: "lines" }))?;
        if length as u64 == LONGEST_LINE && !text.ends_with(b"\n") {
            let why = format!("it is longer than {LONGEST_LINE} bytes");
            return Err(Failure::Line(*line, crate::parse::no_event(&text, why)));
        }
        // Editors of Windows begin a file with a byte-order mark.
        let event = text.strip_prefix(BYTE_ORDER_MARK).filter(|_| *line == 1).unwrap_or(&text);
        each(*line, event).map_err(|wrong| Failure::Line(*line, wrong))?;
    }
}

/// A reader that reports the number of bytes read.
struct Counted<'a, R> {
    from: R,
    progress: &'a dyn Fn(Bytes),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.from.read(buffer)?;
        (self.progress)(Bytes(length as u64));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    const TEXT: &str = "# all of it\na 1 100 0\na 2 50 0\nf 1\nr 1";

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn error(bytes: &[u8]) -> String {
        Trace::read("it", None, bytes).unwrap_err().to_string()
    }

    /// A reader that returns one byte at a time, as a pipe may.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    #[test]
    fn compressed_or_not_it_is_the_same() {
        let plain = Trace::read("it", None, TEXT.as_bytes()).unwrap();
        assert_eq!((plain.allocations(), plain.frees(), plain.peak_asked()), (2, 1, 150));
        assert_eq!(Trace::read("it", None, &compressed(TEXT)[..]).unwrap(), plain);
        assert_eq!(Trace::read("it", None, Slow(&compressed(TEXT))).unwrap(), plain);
        assert_eq!(Trace::read("it", None, Slow(TEXT.as_bytes())).unwrap(), plain);
        // Compressed in two parts, as by `cat a.gz b.gz`.
        let (one, other) = TEXT.split_at(20);
        let both = [compressed(one), compressed(other)].concat();
        assert_eq!(Trace::read("it", None, &both[..]).unwrap(), plain);
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let whole = compressed(TEXT);
        for cut in [3, 12, whole.len() / 2, whole.len() - 1] {
            let text = error(&whole[..cut]);
            assert!(text.starts_with("the trace it cannot be read"), "{cut}: {text}");
            assert!(text.ends_with(": it ends in the middle of its compressed data"), "{cut}: {text}");
        }
        let mut damaged = whole;
        let checksum = damaged.len() - 8;
        damaged[checksum] ^= 0xff;
        let text = error(&damaged);
        assert!(text.starts_with("the trace it cannot be read after line 4: "), "{text}");
        assert_eq!(error(b""), error(b"# nothing\n"));
        assert!(error(b"").starts_with("the trace it has no allocation; a line is `a ID BYTES STREAM`"));
        assert!(error(&[0; 10_000]).contains("line 1: `…` is not an event: it is longer than 4096 bytes"));
        assert!(error(b"a 1 1 0\nf 3").starts_with("the trace it, line 2: `f 3`: no block 3"));
        let missing = Trace::open(Path::new("/no/such/file"), None, &|_| {}).unwrap_err().to_string();
        assert!(missing.starts_with("the trace /no/such/file cannot be read: "), "{missing}");
    }

    #[test]
    fn byte_order_mark_is_accepted_first() {
        let plain = Trace::read("it", None, TEXT.as_bytes()).unwrap();
        let marked = format!("\u{feff}{TEXT}");
        assert_eq!(Trace::read("it", None, marked.as_bytes()).unwrap(), plain);
        assert_eq!(Trace::read("it", None, &compressed(&marked)[..]).unwrap(), plain);
        let first = Trace::read("it", None, "\u{feff}a 1 1 0\n".as_bytes()).unwrap();
        assert_eq!(first.allocations, 1);
        assert!(error("a 1 1 0\n\u{feff}f 1".as_bytes()).contains("line 2"));
    }

    #[test]
    fn line_may_have_the_maximum_length() {
        let comment = format!("#{}\na 1 1 0", "x".repeat(LONGEST_LINE as usize - 2));
        assert!(Trace::read("it", None, comment.as_bytes()).is_ok());
        let comment = format!("#{}\na 1 1 0", "x".repeat(LONGEST_LINE as usize - 1));
        assert!(Trace::read("it", None, comment.as_bytes()).is_err());
    }
}
