//! The table of a pool's blocks, in snapshots of pools.

use gpu_vmm_core::{Bytes, DeviceId};
use serde::{Deserialize, Serialize};

/// The pool whose memory a snapshot contains: where its live blocks lie. Each region of the snapshot is a space of the pool, a range of
/// addresses of one tag, and each of its mappings is one page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolRecord {
    /// The device of the pool.
    pub device: DeviceId,
    /// The size of the pool's pages: the size of each mapping, and the unit of their offsets.
    pub page: Bytes,
    /// The spaces: one for each region of the description, in the same order.
    pub spaces: Vec<PoolSpaceRecord>,
}

/// A space of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSpaceRecord {
    /// The group of sizes that the space serves, as a number of the pool that wrote it.
    pub group: u8,
    /// The ranges with live blocks, in order of their offsets. Memory is mapped at each of their bytes.
    pub ranges: Vec<PoolRangeRecord>,
}

/// A range of a space with one block, or with slots for blocks of one size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolRangeRecord {
    /// The offset in the space.
    pub offset: Bytes,
    /// The size of the range.
    pub size: Bytes,
    /// The size of a slot; zero if the range is one block.
    pub slot: Bytes,
    /// The live blocks: of slots, in order of their numbers.
    pub blocks: Vec<PoolBlockRecord>,
}

/// A live block of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolBlockRecord {
    /// The number of its slot in the range; zero if the range is one block.
    pub slot: u32,
    /// The requested size, or the size that the block occupies if the pool did not know the requested one.
    pub size: Bytes,
}

impl PoolRecord {
    /// Returns the number of live blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.spaces.iter().flat_map(|space| &space.ranges).map(|range| range.blocks.len() as u64).sum()
    }
}

/// The table as bytes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Table {
    device: u32,
    page: u64,
    spaces: Vec<Space>,
}

#[derive(Serialize, Deserialize)]
struct Space {
    group: u8,
    ranges: Vec<Range>,
}

#[derive(Serialize, Deserialize)]
struct Range {
    offset: u64,
    size: u64,
    slot: u64,
    blocks: Vec<Block>,
}

#[derive(Serialize, Deserialize)]
struct Block {
    slot: u32,
    size: u64,
}

impl From<&PoolRecord> for Table {
    fn from(record: &PoolRecord) -> Self {
        let block = |block: &PoolBlockRecord| Block { slot: block.slot, size: block.size.0 };
        let range = |range: &PoolRangeRecord| Range {
            offset: range.offset.0,
            size: range.size.0,
            slot: range.slot.0,
            blocks: range.blocks.iter().map(block).collect(),
        };
        let space = |space: &PoolSpaceRecord| Space {
            group: space.group,
            ranges: space.ranges.iter().map(range).collect(),
        };
        Self {
            device: record.device.0,
            page: record.page.0,
            spaces: record.spaces.iter().map(space).collect(),
        }
    }
}

impl From<Table> for PoolRecord {
    fn from(table: Table) -> Self {
        let block = |block: Block| PoolBlockRecord { slot: block.slot, size: Bytes(block.size) };
        let range = |range: Range| PoolRangeRecord {
            offset: Bytes(range.offset),
            size: Bytes(range.size),
            slot: Bytes(range.slot),
            blocks: range.blocks.into_iter().map(block).collect(),
        };
        let space = |space: Space| PoolSpaceRecord {
            group: space.group,
            ranges: space.ranges.into_iter().map(range).collect(),
        };
        Self {
            device: DeviceId(table.device),
            page: Bytes(table.page),
            spaces: table.spaces.into_iter().map(space).collect(),
        }
    }
}
