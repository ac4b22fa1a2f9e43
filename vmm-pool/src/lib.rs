//! The memory pool of [gpu-vmm](https://docs.rs/gpu-vmm): allocations of all sizes, from many threads and streams, that hold
//! hardly more physical memory than callers request.
//!
//! # How it works
//!
//! The pool creates physical memory in frames of one page (2 MiB, or 8 MiB on large GPUs). Each tag has its own addresses.
//! The pool cuts blocks from them by best fit. A frame that contains no block is free, whether it is mapped or not. One frame may be
//! mapped at several addresses, and the first request that needs memory takes it.
//!
//! If the addresses of a new block have no free frame behind them, the pool maps free frames from other addresses there
//! before it creates new ones. So free memory does not fragment: any free page serves any request. A program that repeats the
//! same allocations finds its memory already mapped at all addresses that it uses in alternation, and makes no driver calls.
//!
//! # What bounds it
//!
//! Each free range of addresses has its own order: the work after which any stream may use it. It is ready, or waits for one stream.
//! The addresses of a tag are divided by the size and the alignment of their ranges:
//!
//! | group | ranges | h, the largest size or alignment |
//! |---|---|---|
//! | small | up to 1 MiB, with an alignment up to 2 MiB | 1 MiB, or the largest alignment if that is more |
//! | mixed | all others, up to 4 L of the whole pool, 64 pages and an alignment | |
//! | above 1 MiB, above 16 MiB, and so on (the module `space::group`) | the ranges for which mixed has no room | 16 MiB, 256 MiB, and so on |
//!
//! Let L be the most bytes that the taken and waiting ranges of a group ever occupied at one time. Slabs, and blocks in thread caches,
//! are taken. A range counts with an alignment above 512 bytes, and as at least h / 16; as at least h / 8 if the group has such
//! alignments. A page that waits for work at other addresses of its frame counts as a whole. Work of a capture, and work that is queued
//! while a capture forbids questions, counts as unfinished until an event after it was recorded and is done.
//!
//! - Blocks of up to 64 KiB are slots of slabs, ranges of 58 to 512 KiB, except those of a capture or with an alignment above 512 bytes.
//!   Each free slot has its own order, as a free range. A slab is added only if, after the streams were asked, each slot of its tag and
//!   size is taken or waits for another stream. So the slabs of a tag and size occupy at most the largest sum of its taken, cached and
//!   waiting slots, and one slab.
//! - Events are recorded at least once for each sixteenth of L that is freed on a stream, so that the pool knows of almost all work that
//!   is done.
//! - Before memory is mapped while more than a sixteenth of L waits for default streams of other threads without an event, the devices are
//!   waited for. So are they when a thread comes and 16 threads that have ended may have work. While a stream captures, this memory waits.
//! - The addresses of a group are extended only if, after the streams were asked, no ready range fits. So each ready range is below
//!   h (2 h with alignments above 512 bytes). In each reservation there is at most one more of them than of taken and waiting ranges, of
//!   which L has at most 16 L / h (8 L / h). So the extent is at most 17 L + 2 h, and 2 h more for each further reservation.
//! - Mapped memory is at most the extents in whole pages. The first reservation of a group is for 16 blocks of the size h, at most the
//!   device's memory; mixed takes h from its first request. Without a tag, it is as large as the device's memory. A new one is as large
//!   as all that the group has, or as the block that needs it. So reservations are at most four times the extents, and the first ones.
//! - Records of ranges and bins are at most proportional to the blocks that are alive or wait, and to the streams. A stream has at most
//!   64 unfinished events. A space, a tag and a bin of a thread cache that nothing uses any more serve others under the same number.
//! - New memory is created only while the pool holds less than was ever needed and a small part more, suspended memory included, or if
//!   no frame is free that serves the stream. So the physical memory is at most the pages of taken and waiting ranges, and that part.
//! - A request fails only after a round of waits during which nothing was freed, or after 64 rounds.
//!
//! Pages that a failed driver call has lost count as taken. So do the free addresses before a block at an address that the
//! caller has chosen, in the spaces above. A reservation for chosen addresses is as large as its first block in units of a page and of
//! the driver, and all but the last one of a tag have blocks or memory that waits.
//!
//! # Kinds of memory
//!
//! A pool can have several kinds of memory ([`Pool::with_memory`]): device memory, host memory, memory that can be exported, and so on.
//! Each kind has addresses, frames, tags, streams and thread caches of its own, and the bounds above hold for each by itself. The budget
//! bounds what all kinds hold together: a kind claims a part of it before it creates memory, and returns it when the driver has the memory
//! back, so that kinds that create memory at the same time do not exceed it either. A request that finds too little memory tries, in this
//! order:
//!
//! 1. free memory of its own kind;
//! 2. free memory of other kinds, which returns to the driver: of the kind that was added last first, and of the pool's own kind last. If
//!    the budget has room and the driver has no memory, only kinds in the same place give way: on the device, or on the host;
//! 3. waits for the work on freed memory of its own kind, and then of the other kinds in the same order;
//! 4. the program's out-of-memory callback;
//! 5. if a [source](Pool::set_budget_source) grants the budget, what it gets back from others for this pool. Before the first step, it
//!    has granted what is free;
//! 6. an error, which has the numbers of each kind.
//!
//! # Small blocks
//!
//! Small blocks are slots of slabs, which serve all streams of a tag. Freed small and medium blocks stay in thread caches for the next
//! request of the same stream.
//!
//! # Thread safety
//!
//! All types are [`Send`] and [`Sync`]. [`Pool`], [`Block`], [`BlockRequest`], [`PoolBuilder`], [`PoolStream`] and [`Fence`] say which
//! calls may run at the same time. All other types are plain values, which do not change with the pool.
//!
//! # Tracing
//!
//! With the feature `tracing` of gpu-vmm-core, the pool reports to the crate `tracing` under the target `gpu_vmm_pool`. The
//! spans are `allocate` (only of allocations for which the pool maps memory), `trim`, `suspend`, `resume` and `move to device`, and
//! contain the spans of the pool's regions. The events are `mapped` (with the number of pages that were free at other addresses and
//! the number of new ones), `given back` and `out of memory`. The pool calls subscribers under its locks: they must not call the
//! pool.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod away;
mod block;
mod block_memory;
mod budget;
mod budget_source;
mod builder;
mod chosen;
mod chunk;
mod classes;
mod collect;
mod core;
mod data;
mod ended_threads;
mod error;
mod fence;
mod frames;
mod granted;
mod history;
mod kept_blocks;
mod kinds;
mod last_freed;
mod ledger;
mod lend;
mod lost;
mod mapping;
mod missing_pages;
mod move_device;
mod obstacle;
mod ongoing;
mod owner;
mod pending;
mod per_thread;
mod plain;
mod pool;
mod pool_stream;
mod premap;
mod prometheus;
mod queries;
mod raw;
mod request;
#[cfg(feature = "snapshot")]
mod restore;
#[cfg(feature = "snapshot")]
mod save;
mod settings;
mod shared;
mod slabs;
mod snapshot;
mod space;
mod stats;
mod stream_order;
mod streams;
mod suspend;
mod tag_spaces;
mod tags;
mod thread_cache;
mod tracking;
mod trim;
mod usage;
mod uses;
mod waits;
mod with_memory;

pub use block::{Block, BlockInfo};
pub use budget_source::{BudgetEffort, BudgetSource};
pub use builder::PoolBuilder;
pub use error::{ExhaustedResource, Occupant, PoolError};
pub use fence::Fence;
pub use granted::WeakPool;
pub use pool::Pool;
pub use pool_stream::PoolStream;
pub use prometheus::prometheus;
pub use request::BlockRequest;
#[cfg(feature = "snapshot")]
#[cfg_attr(docsrs, doc(cfg(feature = "snapshot")))]
pub use restore::RestoredPool;
#[cfg(feature = "snapshot")]
#[cfg_attr(docsrs, doc(cfg(feature = "snapshot")))]
pub use save::PoolSave;
pub use snapshot::{
    BlockSnapshot, BlockState, FramesSnapshot, Moment, PagesSnapshot, PoolSnapshot, SpaceSnapshot,
};
pub use stats::{BinStats, DriverCalls, PoolStats};
pub use tags::TagId;
pub use tracking::Unfreed;
pub use usage::{MemoryRun, PoolLayout, PoolUsage, WaitingBlocks};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
