//! Reads a pickle of Python as data: numbers, texts, lists, tuples and dicts.
//!
//! Opcodes that name a class or call a function are refused, so that no file can make anything run. Memory is proportional to the file
//! and has a limit, and no depth of nesting overflows the stack: the crates for pickles recurse in nested values, and copy values that
//! occur several times.

mod input;
mod machine;
mod opcode;
mod values;

use std::io::Read;

pub(crate) use values::{Value, Values};

/// Why a pickle cannot be read. Places are bytes, counted from 0, of the decompressed file.
#[derive(Debug)]
pub(crate) enum PickleError {
    Io(std::io::Error),
    /// The end of the file comes before the end of the pickle.
    Truncated {
        length: u64,
    },
    Wrong {
        at: u64,
        why: String,
    },
}

/// The first byte of a pickle of protocol 2 and later; the second one is the protocol.
pub(crate) const PROTOCOL: u8 = 0x80;

/// Reads a pickle up to its end; what follows is ignored, as Python does.
pub(crate) fn read(from: impl Read) -> Result<Values, PickleError> {
    machine::Machine::new(from).run()
}

#[cfg(test)]
mod tests;
