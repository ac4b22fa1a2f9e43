//! Work in flight: queued on a stream, and done after its call has returned.
//!
//! A GPU kernel that accesses memory that is not mapped, or that its device may not access, ends the device's work. The same
//! happens here: each piece of the work is first checked against the table of mappings, which cannot change meanwhile, so the
//! process does not crash.
#![allow(unsafe_code)]

use crate::mappings::{Mappings, Refusal};
use gpu_vmm_core::{Access, Address, AddressRange, Bytes, DeviceId};
use std::time::{Duration, Instant};

/// The bytes of a word of the pattern.
const WORD: u64 = size_of::<u64>() as u64;

/// The amount written between two checks of the table of mappings.
const PIECE: Bytes = Bytes::kib(64);

/// The minimum time of a round. On a GPU few threads do this work, so that the device stays free for other work.
const ROUND: Duration = Duration::from_micros(200);

/// A position in a stream: after the first `count` pieces of work ever queued on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The name of the stream.
    pub(crate) stream: usize,
    pub(crate) count: u64,
}

/// A piece of work on a stream.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Pattern(Pattern),
    /// Delays the work after it until all work before this place is done.
    Hold(Position),
}

/// The pattern, written once per round.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) device: DeviceId,
    pub(crate) range: AddressRange,
    /// One seed per round.
    pub(crate) seeds: Vec<u64>,
    /// Writes a seed's pattern, beginning with the word of this number.
    pub(crate) write: fn(&mut [u64], u64, u64),
}

impl Pattern {
    /// Writes all rounds, or stops early if asked to. Returns the reason if the device has no access.
    pub(crate) fn write(&self, mappings: &Mappings, is_to_stop: impl Fn() -> bool) -> Result<(), String> {
        for seed in &self.seeds {
            let began = Instant::now();
            let mut first = Bytes::ZERO;
            while first < self.range.size {
                if is_to_stop() {
                    return Ok(());
                }
                let length = PIECE.min(self.range.size - first);
                self.write_piece(mappings, *seed, first, length)?;
                first += length;
            }
            std::thread::sleep(ROUND.saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    fn write_piece(&self, mappings: &Mappings, seed: u64, first: Bytes, length: Bytes) -> Result<(), String> {
        let at: Address = self.range.base + first;
        let range = AddressRange { base: at, size: length };
        let write = || {
            let count = (length.0 / WORD) as usize;
            // SAFETY: the words are aligned, mapped and may be written while this runs, according to the table; the caller that
            // started the work keeps other code from using them meanwhile, and any bytes are a `u64`.
            let words = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), count) };
            (self.write)(words, seed, first.0 / WORD);
        };
        mappings.while_allowed(range, self.device, Access::ReadWrite, write).map_err(
            |refusal| match refusal {
                Refusal::NotMapped { at } => format!("work in flight wrote to {at}, where nothing is mapped"),
                Refusal::Denied { at, have } => {
                    format!("work of {} in flight wrote to {at}, where it has {have}", self.device)
                }
            },
        )
    }
}
