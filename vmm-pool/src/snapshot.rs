//! Snapshots: the state of a pool at a moment, for JSON files and `gpu-vmm report`.

use crate::PoolStats;
use serde::{Deserialize, Serialize};

/// The state of a pool at a moment. All sizes and offsets are bytes, all times are seconds since the pool was created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolSnapshot {
    /// The version of this format: [`VERSION`](Self::VERSION).
    pub version: u32,
    /// The backend, its driver and the device, as text for people.
    pub device: String,
    /// The time of the snapshot.
    pub at: f64,
    /// The size of one frame of physical memory.
    pub page: u64,
    /// The pool's statistics.
    #[serde(alias = "account")]
    pub stats: PoolStats,
    /// The address ranges.
    pub spaces: Vec<SpaceSnapshot>,
    /// Frames that are mapped at no address, by their number.
    #[serde(default)]
    pub unmapped: Vec<FramesSnapshot>,
    /// The pool's history, oldest first.
    pub timeline: Vec<Moment>,
}

impl PoolSnapshot {
    /// The version of the format that this crate writes.
    pub const VERSION: u32 = 1;
}

/// One address range of a tag.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceSnapshot {
    /// The tag; empty for blocks without a tag.
    pub tag: String,
    /// The first address.
    pub base: u64,
    /// The number of reserved bytes of addresses.
    pub reserved: u64,
    /// True if the memory is suspended.
    pub suspended: bool,
    /// The blocks and free parts of the range, by offset.
    pub blocks: Vec<BlockSnapshot>,
    /// The mapped pages, by offset, in runs of consecutive pages that are alike.
    pub pages: Vec<PagesSnapshot>,
}

/// A part of an address range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSnapshot {
    /// The offset in the range.
    pub offset: u64,
    /// The size.
    pub size: u64,
    /// The state.
    pub state: BlockState,
    /// The stream that owns the part, as the vendor's pointer.
    pub stream: u64,
}

/// The state of a part of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// A caller holds the block.
    Live,
    /// The block is in a thread cache, for the next request of its size.
    Cached,
    /// The block was freed and waits for a stream or a fence.
    Pending,
    /// The part is a slab: it contains blocks of one small size, some of which may be free.
    Bins,
    /// The part is free.
    Free,
}

/// A run of consecutive mapped pages that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesSnapshot {
    /// The offset of the first page in the range.
    pub offset: u64,
    /// The number of pages.
    pub count: u64,
    /// The frame number of the first page. The numbers of the following pages are consecutive.
    pub frame: u32,
    /// True if blocks lie in the pages. False if the memory is free; it may be mapped at other addresses too.
    pub used: bool,
}

/// A run of frames with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramesSnapshot {
    /// The number of the first frame.
    pub frame: u32,
    /// The number of frames.
    pub count: u64,
}

/// A point of a pool's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// The time.
    pub at: f64,
    /// The size of all taken ranges: blocks, rounded up, including slabs, cached blocks and pending blocks.
    pub live: u64,
    /// The memory that was freed and waited for a stream or a fence.
    pub pending: u64,
    /// All physical memory.
    pub held: u64,
}
