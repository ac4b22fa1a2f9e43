//! Physical memory, and copies of its contents to the host and back.

mod address_info;
mod adopt;
mod backing;
mod chunks;
mod common;
mod direct_file;
pub mod files;
mod free_handles;
mod page_list;
mod physical;
mod plain;
mod poison;
mod registry;
mod segment;
mod split;
mod staging_ring;
mod supported;
mod threads;

pub use address_info::{AddressInfo, BlockAt, MappingAt};
pub(crate) use backing::SavedContents;
pub use backing::{BackingKind, BackingStore};
pub(crate) use chunks::Batch;
pub use page_list::{PageList, PageListStats};
pub(crate) use physical::or_again;
pub use physical::{MemoryId, PhysicalMemory, create_now, free_deferred, rounded_size};
pub use poison::POISON;
pub(crate) use poison::poison;
pub use registry::{BlockOwner, at};
pub(crate) use registry::{Record, Recorded, Registered};
pub use segment::Segment;
pub(crate) use split::create_split;
pub use staging_ring::{ChunkContents, StagingRing};
pub use supported::{SupportedMemory, first_supported};

/// Memory that suspended regions have in common with others.
pub(crate) type CommonMemory<B> = common::Common<B, PhysicalMemory<B>>;
