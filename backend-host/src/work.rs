//! Work that goes on when its call has returned: what is queued on a stream, and doing it.
//!
//! A kernel of a GPU that reaches memory which is not mapped, or not for its device, ends the device's work. So does this:
//! each piece of the work is held against the table of mappings first, which cannot change meanwhile, and the process does
//! not crash.
#![allow(unsafe_code)]

use crate::mappings::{Mappings, Refusal};
use gpu_vmm_core::{Access, Address, AddressRange, Bytes, DeviceId};
use std::time::{Duration, Instant};

/// The bytes of a word of the pattern.
const WORD: u64 = size_of::<u64>() as u64;

/// As much as is written between two looks at the table of mappings.
const PIECE: Bytes = Bytes::kib(64);

/// The least time that a round takes: few threads of a GPU do this work, so that it leaves the device free for other work.
const ROUND: Duration = Duration::from_micros(200);

/// A place in a stream: so many of what was ever queued on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The name of the stream.
    pub(crate) stream: usize,
    pub(crate) count: u64,
}

/// What is queued on a stream.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Pattern(Pattern),
    /// Begins what is behind it when all before this place is done.
    Hold(Place),
}

/// The pattern, written several times.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) device: DeviceId,
    pub(crate) range: AddressRange,
    /// One for each round.
    pub(crate) seeds: Vec<u64>,
    /// Writes the pattern of a seed, from the word with this number on.
    pub(crate) write: fn(&mut [u64], u64, u64),
}

impl Pattern {
    /// Does all of it, unless it is to stop. Says why the device may not.
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
            // SAFETY: the words are aligned, mapped and may be written as long as this runs, as the table says; who started
            // the work lets no other use them meanwhile, and any bytes are a `u64`.
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
