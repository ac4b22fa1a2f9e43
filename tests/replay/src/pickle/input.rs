//! The bytes of a pickle, counted.

use super::PickleError;
use std::io::{ErrorKind, Read};

type Result<T> = std::result::Result<T, PickleError>;

/// A longer argument of an opcode is read in parts, so that a wrong length takes no memory.
const PART: usize = 512;

/// A reader that knows how many bytes it has read.
pub(super) struct Input<R> {
    from: R,
    pub(super) at: u64,
}

impl<R: Read> Input<R> {
    pub(super) const fn new(from: R) -> Self {
        Self { from, at: 0 }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.from.read(&mut buffer[filled..]) {
                Ok(0) => return Err(PickleError::Truncated { length: self.at }),
                Ok(length) => {
                    filled += length;
                    self.at += length as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(PickleError::Io(error)),
            }
        }
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes::<1>()?[0])
    }

    /// Reads `length` bytes and returns the first `most` of them.
    pub(super) fn first(&mut self, length: u64, most: usize) -> Result<Vec<u8>> {
        let mut kept = Vec::new();
        let mut part = [0; PART];
        let mut left = length;
        while left > 0 {
            let next = left.min(PART as u64) as usize;
            self.fill(&mut part[..next])?;
            let room = most.saturating_sub(kept.len()).min(next);
            kept.extend_from_slice(&part[..room]);
            left -= next as u64;
        }
        Ok(kept)
    }

    /// Reads the rest of a line of at most `most` bytes, without its end.
    pub(super) fn line(&mut self, most: usize) -> Result<Vec<u8>> {
        let (start, mut line) = (self.at, Vec::new());
        loop {
            match self.byte()? {
                b'\n' => return Ok(line),
                _ if line.len() == most => {
                    return Err(PickleError::Wrong {
                        at: start,
                        why: format!("a line is longer than {most} bytes"),
                    });
                }
                byte => line.push(byte),
            }
        }
    }
}
