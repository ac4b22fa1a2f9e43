//! The pool of [gpu-vmm](https://docs.rs/gpu-vmm): many allocations of all sizes, from many threads and streams, that
//! hold hardly more memory than is asked for.
//!
//! # How it works
//!
//! Physical memory is created in frames of one page (the granularity; 2 MiB on GPUs). A tag has addresses of its own,
//! several times as many as the device has memory, and blocks are cut from them by best fit. A frame in which no block lies
//! is free, wherever it is mapped; it may be mapped at several addresses, and whoever needs memory first has it. Where a
//! block is to be whose addresses have no free frame behind them, free frames from elsewhere are mapped there, before any
//! is created. So free memory does not fragment, since any free page serves any request; and a program that does the same
//! again and again finds its memory mapped at all the addresses at which it is used by turns, and makes no driver calls.
//!
//! Small requests are slots of slabs; small and medium ones that were freed lie in front of threads for the next.
//!
//! | file | subject |
//! |---|---|
//! | `pool`, `request`, `block`, `data`, `lend`, `pool_stream`, `raw`, `kept_blocks` | what a user has |
//! | `builder`, `settings` | what a pool is told |
//! | `error` | an allocation that failed, with the pool's numbers |
//! | `owner`, `shared` | what ends with the pool, and what lives as long as a block |
//! | `thread_cache`, `classes`, `piece` | what lies in front of threads |
//! | `last_freed` | the large piece that was freed last, beside the books |
//! | `core` | the common books under one lock |
//! | `supply`, `trim`, `suspend`, `premap` | memory that comes and goes, also before it is needed |
//! | `space` | addresses: which are taken, what is behind them |
//! | `frames` | physical memory |
//! | `slabs` | slots of small sizes |
//! | `stream_order`, `streams`, `pending`, `collect`, `fence` | after which work memory is free |
//! | `waits` | waiting for that, without a lock |
//! | `tags`, `tag_spaces` | tags, and their addresses |
//! | `queries`, `stats`, `snapshot`, `history`, `tracking`, `trace` | what a pool tells of itself |
//!
//! # Tracing
//!
//! With the feature `tracing` the pool tells that crate, under the target `gpu_vmm_pool`, of `supply`, `trim`, `suspend` and
//! `resume` as spans, and as events of memory that is `mapped` (with how much of it was free elsewhere and how much is new),
//! `given back`, and of being `out of memory`. Subscribers are called under the pool's lock: they must not call the pool.

mod block;
mod builder;
mod classes;
mod collect;
mod core;
mod data;
mod error;
mod fence;
mod frames;
mod history;
mod kept_blocks;
mod last_freed;
mod lend;
mod owner;
mod pending;
mod piece;
mod pool;
mod pool_stream;
mod premap;
mod queries;
mod raw;
mod request;
mod settings;
mod shared;
mod slabs;
mod snapshot;
mod space;
mod stats;
mod stream_order;
mod streams;
mod supply;
mod suspend;
mod tag_spaces;
mod tags;
mod thread_cache;
mod trace;
mod tracking;
mod trim;
mod waits;

pub use block::{Block, BlockInfo};
pub use builder::PoolBuilder;
pub use error::{OutOf, PoolError};
pub use fence::Fence;
pub use pool::Pool;
pub use pool_stream::PoolStream;
pub use request::BlockRequest;
pub use snapshot::{
    BlockSnapshot, BlockState, FramesSnapshot, Moment, PagesSnapshot, PoolSnapshot, SpaceSnapshot,
};
pub use stats::{BinStats, DriverCalls, PoolStats};
pub use tracking::Unfreed;
