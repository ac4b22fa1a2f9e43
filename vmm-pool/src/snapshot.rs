//! What a pool looks like at a moment: what is written as JSON and drawn by `gpu-vmm report`.

use crate::PoolStats;
use serde::{Deserialize, Serialize};

/// A pool at a moment. All sizes and offsets are bytes, all times seconds since the pool was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolSnapshot {
    /// The version of this form: [`VERSION`](Self::VERSION).
    pub version: u32,
    /// The backend, its driver and the device, for people.
    pub device: String,
    /// When it was taken.
    pub at: f64,
    /// The size of one piece of physical memory.
    pub page: u64,
    /// Where the memory is, in numbers.
    #[serde(alias = "account")]
    pub stats: PoolStats,
    /// The address ranges.
    pub spaces: Vec<SpaceSnapshot>,
    /// Physical memory that is held and lies behind no address, by its number.
    #[serde(default)]
    pub unmapped: Vec<FramesSnapshot>,
    /// How it came to be, oldest first.
    pub timeline: Vec<Moment>,
}

impl PoolSnapshot {
    /// The version of the form that is written.
    pub const VERSION: u32 = 1;
}

/// One range of addresses: all of one tag.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceSnapshot {
    /// The tag; empty where nothing was said.
    pub tag: String,
    /// The first address.
    pub base: u64,
    /// How many addresses are reserved.
    pub reserved: u64,
    /// True where the memory is elsewhere until it is resumed.
    pub suspended: bool,
    /// The blocks, by their offset.
    pub blocks: Vec<BlockSnapshot>,
    /// What is mapped, by its offset: pages that follow each other and are alike.
    pub pages: Vec<PagesSnapshot>,
}

/// A part of a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSnapshot {
    /// Where it begins in the range.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
    /// What it is.
    pub state: BlockState,
    /// The stream whose it is, by the vendor's pointer.
    pub stream: u64,
}

/// What a part of a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Somebody has it.
    Live,
    /// It lies in front of a thread, for the next request of its size.
    Cached,
    /// It was freed and waits for a stream or a fence.
    Pending,
    /// Blocks of one small size lie in it, some of them free.
    Bins,
    /// It is free.
    Free,
}

/// Pages that follow each other and are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesSnapshot {
    /// Where they begin in the range.
    pub offset: u64,
    /// How many there are.
    pub count: u64,
    /// The number of the first one's physical memory; the following have the following ones.
    pub frame: u32,
    /// True where a block lies in them; false where the memory is free, and may be behind other addresses too.
    pub used: bool,
}

/// Pieces of physical memory, one page each, whose numbers follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramesSnapshot {
    /// The first one's number.
    pub frame: u32,
    /// How many there are.
    pub count: u64,
}

/// A point of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// When.
    pub at: f64,
    /// What blocks took, rounded as they are.
    pub live: u64,
    /// What was freed and waited.
    pub pending: u64,
    /// All physical memory.
    pub held: u64,
}
