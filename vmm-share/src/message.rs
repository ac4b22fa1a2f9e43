//! What two processes say to each other about memory.
//!
//! The exporter describes a region, or a change of it, in a row of messages that each stay below a limit: `Begin`, as many
//! of `Removed`, `Pieces` and `Mappings` as it takes, `End`. Descriptors travel with the `Pieces` that they are of, one
//! each. The importer answers `Applied` or `Refused`.

use crate::manifest::{Origin, SharedMapping, SharedPiece};
use serde::{Deserialize, Serialize};

/// The most bytes of one message, its header included.
pub(crate) const MAX_BYTES: usize = 32 << 10;

/// The most descriptors beside one message; the kernel takes 253.
pub(crate) const MAX_DESCRIPTORS: usize = 128;

/// The most offsets or mappings in one message: at 15 bytes each, they stay below the limit.
pub(crate) const MAX_ENTRIES: usize = 2000;

/// One message of the exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The first one in each direction: what the sender wants to be addressed by.
    Hello {
        /// Of this exchange and no other: a message that was sent in another one is not taken.
        nonce: [u8; 16],
    },
    /// One piece of memory, with its descriptor.
    Memory { origin: Origin, piece: SharedPiece },
    /// A region's state, or a change of it, begins.
    Begin(Begin),
    /// Offsets of mappings that are gone.
    Removed(Vec<u64>),
    /// Pieces that are new, with a descriptor for each.
    Pieces(Vec<SharedPiece>),
    /// Mappings that are new.
    Mappings(Vec<SharedMapping>),
    /// All of it was said.
    End,
    /// The importer has what was described under this number.
    Applied { revision: u64 },
    /// The importer has not, for this reason; it may try again.
    Refused { revision: u64, why: String },
    /// The exporter asks the importer to release the memory.
    ReleaseRequested,
    /// The importer has released the memory.
    Released,
    /// The importer goes on with the memory that it has, and takes part no more.
    Kept,
}

impl Message {
    /// How many descriptors are beside it.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Memory { .. } => 1,
            Self::Pieces(pieces) => pieces.len(),
            _ => 0,
        }
    }

    /// What it is, for errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "a greeting",
            Self::Memory { .. } => "a piece of memory",
            Self::Begin(_) => "the beginning of a description",
            Self::Removed(_) | Self::Pieces(_) | Self::Mappings(_) => "some of a description",
            Self::End => "the end of a description",
            Self::Applied { .. } | Self::Refused { .. } => "an answer to a description",
            Self::ReleaseRequested => "a request to release the memory",
            Self::Released | Self::Kept => "a farewell",
        }
    }
}

/// How much of what is to come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) origin: Origin,
    /// 0 for the region as it is first shared, one more for each change.
    pub(crate) revision: u64,
    /// Where the exporter has it.
    pub(crate) base: u64,
    /// Where its last mapping ends, in bytes.
    pub(crate) end: u64,
    /// How many mappings are gone.
    pub(crate) removed: u32,
    /// How many pieces are new.
    pub(crate) pieces: u32,
    /// How many mappings are new.
    pub(crate) mappings: u32,
}
