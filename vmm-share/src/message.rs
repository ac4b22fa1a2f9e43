//! The messages of the protocol.
//!
//! The exporter describes a region, or a change of it, in a sequence of messages of limited size: `Begin`, the necessary
//! number of `Removed`, `Pieces` and `Mappings`, `End`. `Pieces` carries one descriptor for each piece. The importer replies
//! with `Applied` or `Refused`. postcard encodes a variant as its index: the order of the variants is part of the protocol,
//! their names are not.

use crate::manifest::{Origin, SharedMapping, SharedPiece};
use serde::{Deserialize, Serialize};

/// The limit of one message in bytes, including its header.
pub(crate) const MAX_BYTES: usize = 32 << 10;

/// The limit of descriptors with one message. The kernel's is 253.
pub const MAX_DESCRIPTORS: usize = 128;

/// The limit of offsets or mappings in one message: at 15 bytes each, they fit.
pub(crate) const MAX_ENTRIES: usize = 2000;

/// One message of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The first message in each direction.
    Hello {
        /// The nonce by which the sender is addressed in this exchange.
        nonce: [u8; 16],
    },
    /// One piece of memory, with its descriptor.
    Memory { origin: Origin, piece: SharedPiece },
    /// Starts the description of a region, or of a change.
    Begin(Begin),
    /// Offsets of mappings that were removed.
    Removed(Vec<u64>),
    /// New pieces, with a descriptor for each.
    Pieces(Vec<SharedPiece>),
    /// New mappings.
    Mappings(Vec<SharedMapping>),
    /// Ends the description.
    End,
    /// The importer has applied this revision.
    Applied { revision: u64 },
    /// The importer could not apply it, for this reason. It may try again.
    Refused { revision: u64, why: String },
    /// The exporter asks the importer to release the memory.
    ReleaseRequested,
    /// The importer has released the memory.
    Released,
    /// The importer keeps the memory that it has and ends the exchange.
    Kept,
}

impl Message {
    /// Returns the number of its descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Memory { .. } => 1,
            Self::Pieces(pieces) => pieces.len(),
            _ => 0,
        }
    }

    /// Returns its name in errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "a greeting",
            Self::Memory { .. } => "a piece of memory",
            Self::Begin(_) => "the beginning of a description",
            Self::Removed(_) | Self::Pieces(_) | Self::Mappings(_) => "a part of a description",
            Self::End => "the end of a description",
            Self::Applied { .. } | Self::Refused { .. } => "an answer to a description",
            Self::ReleaseRequested => "a request to release the memory",
            Self::Released | Self::Kept => "the end of the exchange",
        }
    }
}

/// The start of a description, with the counts that follow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) origin: Origin,
    /// 0 for the region as first shared, then one more for each change.
    pub(crate) revision: u64,
    /// The region's address in the exporter.
    pub(crate) base: u64,
    /// The end of its last mapping, in bytes.
    pub(crate) end: u64,
    /// The number of removed mappings.
    pub(crate) removed: u32,
    /// The number of new pieces.
    pub(crate) pieces: u32,
    /// The number of new mappings.
    pub(crate) mappings: u32,
}
