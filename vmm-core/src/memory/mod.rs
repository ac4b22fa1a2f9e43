//! Physical memory without an address, and the ways of its contents to the host and back.

mod backing;
pub(crate) mod files;
mod physical;
mod poison;
mod segment;
mod staging_ring;

pub(crate) use backing::{Batch, Kept};
pub use backing::{Stash, StashKind};
pub use physical::Physical;
pub(crate) use physical::{Identity, rounded_size};
pub use poison::POISON;
pub(crate) use poison::poison;
pub(crate) use segment::Segment;
pub use staging_ring::Ring;
pub(crate) use staging_ring::{Given, join, start_thread};
