//! Physical memory without an address, and the ways of its contents to the host and back.

mod backing;
pub mod files;
mod physical;
mod poison;
mod segment;
mod staging_ring;

pub use backing::{BackingKind, BackingStore};
pub(crate) use backing::{Batch, SavedContents};
pub use physical::{MemoryId, PhysicalMemory, rounded_size};
pub use poison::POISON;
pub(crate) use poison::poison;
pub use segment::Segment;
pub use staging_ring::{ChunkContents, StagingRing};
pub(crate) use staging_ring::{join, start_thread};
