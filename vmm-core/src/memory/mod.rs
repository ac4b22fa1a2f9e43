//! Physical memory, and copies of its contents to the host and back.
//!
//! | file | subject |
//! |---|---|
//! | `backing` | backing stores for the contents of suspended regions |
//! | `chunks` | the chunks of a stream of bytes, which several threads take |
//! | `direct_file` | a file whose bytes bypass the page cache |
//! | `files` | reads and writes at file offsets, and their errors |
//! | `free_handles` | the handles of a page list, and their number |
//! | `page_list` | free physical memory in pages of one size, with a budget |
//! | `physical` | shared ownership of physical memory |
//! | `plain` | allocations of devices without virtual memory management |
//! | `poison` | overwriting of freed memory |
//! | `segment` | mapped memory that one driver call may use |
//! | `split` | memory in smaller handles if the driver refuses a large one |
//! | `staging_ring` | pinned buffers for copies through the host |
//! | `threads` | threads that work at the same time as the calling thread |

mod backing;
mod chunks;
mod direct_file;
pub mod files;
mod free_handles;
mod page_list;
mod physical;
mod plain;
mod poison;
mod segment;
mod split;
mod staging_ring;
mod threads;

pub(crate) use backing::SavedContents;
pub use backing::{BackingKind, BackingStore};
pub(crate) use chunks::Batch;
pub use page_list::{PageList, PageListStats};
pub use physical::{MemoryId, PhysicalMemory, create_now, free_deferred, rounded_size};
pub use poison::POISON;
pub(crate) use poison::poison;
pub use segment::Segment;
pub(crate) use split::create_split;
pub use staging_ring::{ChunkContents, StagingRing};
