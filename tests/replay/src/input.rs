//! A trace from a file or a stream, compressed or not.

use crate::error::{TraceError, Wrong};
use crate::event::Trace;
use crate::parse::Parser;
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
    /// Reads a file, and reports each part of it to `progress`.
    ///
    /// # Errors
    ///
    /// [`TraceError`]; for an invalid line, with its number and what would be right.
    pub fn open(path: &Path, progress: &dyn Fn(Bytes)) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::read(&name, Counted { from: file, progress }),
            Err(source) => Err(TraceError::Unreadable { name, line: 0, source }),
        }
    }

    /// Reads a stream. Errors call it `name`.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Trace::open).
    pub fn read(name: &str, from: impl Read) -> Result<Self, TraceError> {
        let mut line = 0;
        read(from, &mut line).map_err(|failure| match failure {
            Failure::Io(source) => TraceError::Unreadable { name: name.to_owned(), line, source },
            Failure::Wrong(wrong) => TraceError::Line { name: name.to_owned(), line, wrong },
            Failure::Empty => TraceError::Empty(name.to_owned()),
        })
    }
}

enum Failure {
    Io(std::io::Error),
    Wrong(Wrong),
    Empty,
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

fn read(mut from: impl Read, line: &mut u32) -> Result<Trace, Failure> {
    let mut start = Vec::new();
    from.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
    let compressed = start == GZIP;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(from));
    if compressed {
        lines(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(whole)), line)
    } else {
        lines(whole, line)
    }
}

/// Sets `line` to the line of an error, or, for an error of reading, to the last complete line.
fn lines(mut from: impl BufRead, line: &mut u32) -> Result<Trace, Failure> {
    let mut parser = Parser::new();
    let mut text = Vec::new();
    loop {
        text.clear();
        let length = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)?;
        if length == 0 {
            break;
        }
        let limit = u32::MAX;
        *line = line
            .checked_add(1)
            .ok_or(Failure::Wrong(Wrong::TooMany { limit: limit.into(), what: "lines" }))?;
        if length as u64 == LONGEST_LINE && !text.ends_with(b"\n") {
            let why = format!("it is longer than {LONGEST_LINE} bytes");
            return Err(Failure::Wrong(crate::parse::no_event(&text, why)));
        }
        // Editors of Windows begin a file with a byte-order mark.
        let event = text.strip_prefix(BYTE_ORDER_MARK).filter(|_| *line == 1).unwrap_or(&text);
        parser.line(*line, event).map_err(Failure::Wrong)?;
    }
    let trace = parser.finish();
    if trace.allocations == 0 { Err(Failure::Empty) } else { Ok(trace) }
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
        Trace::read("it", bytes).unwrap_err().to_string()
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
        let plain = Trace::read("it", TEXT.as_bytes()).unwrap();
        assert_eq!((plain.allocations(), plain.frees(), plain.peak_asked()), (2, 1, 150));
        assert_eq!(Trace::read("it", &compressed(TEXT)[..]).unwrap(), plain);
        assert_eq!(Trace::read("it", Slow(&compressed(TEXT))).unwrap(), plain);
        assert_eq!(Trace::read("it", Slow(TEXT.as_bytes())).unwrap(), plain);
        // Compressed in two parts, as by `cat a.gz b.gz`.
        let (one, other) = TEXT.split_at(20);
        let both = [compressed(one), compressed(other)].concat();
        assert_eq!(Trace::read("it", &both[..]).unwrap(), plain);
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
        let missing = Trace::open(Path::new("/no/such/file"), &|_| {}).unwrap_err().to_string();
        assert!(missing.starts_with("the trace /no/such/file cannot be read: "), "{missing}");
    }

    #[test]
    fn byte_order_mark_is_accepted_first() {
        let plain = Trace::read("it", TEXT.as_bytes()).unwrap();
        let marked = format!("\u{feff}{TEXT}");
        assert_eq!(Trace::read("it", marked.as_bytes()).unwrap(), plain);
        assert_eq!(Trace::read("it", &compressed(&marked)[..]).unwrap(), plain);
        let first = Trace::read("it", "\u{feff}a 1 1 0\n".as_bytes()).unwrap();
        assert_eq!(first.allocations, 1);
        assert!(error("a 1 1 0\n\u{feff}f 1".as_bytes()).contains("line 2"));
    }

    #[test]
    fn line_may_have_the_maximum_length() {
        let comment = format!("#{}\na 1 1 0", "x".repeat(LONGEST_LINE as usize - 2));
        assert!(Trace::read("it", comment.as_bytes()).is_ok());
        let comment = format!("#{}\na 1 1 0", "x".repeat(LONGEST_LINE as usize - 1));
        assert!(Trace::read("it", comment.as_bytes()).is_err());
    }
}
