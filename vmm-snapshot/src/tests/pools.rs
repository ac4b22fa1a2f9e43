//! Snapshots of pools: the table of blocks, and tables that lie.

use super::*;
use crate::format::{LIMITS, POOLS, REGIONS};
use crate::fuzz;

const PAGE: Bytes = Bytes::kib(8);

/// One space: pages 1 and 2 of a region of 80 KiB, with a block and a slab.
fn pool() -> Description {
    let mut description = description();
    let (properties, granularity) = (Properties::on(DeviceId(2)), Granularity::new(BLOCK).unwrap());
    description.memories = vec![MemoryRecord { size: PAGE, granularity, properties }; 2];
    description.regions.truncate(1);
    let mapping = |memory: usize| MappingRecord {
        offset: Bytes((memory as u64 + 1) * PAGE.0),
        memory,
        access: AccessMap::NONE,
    };
    description.regions[0].mappings = vec![mapping(0), mapping(1)];
    let block = |slot, size| PoolBlockRecord { slot, size: Bytes(size) };
    let range = |offset, size, slot, blocks| PoolRangeRecord {
        offset: Bytes(offset),
        size: Bytes(size),
        slot: Bytes(slot),
        blocks,
    };
    let ranges = vec![
        range(PAGE.0 + 512, 8192, 0, vec![block(0, 8000)]),
        range(2 * PAGE.0 + 2048, 2048, 700, vec![block(0, 1), block(1, 700)]),
    ];
    let spaces = vec![PoolSpaceRecord { group: 1, ranges }];
    description.pool = Some(PoolRecord { device: DeviceId(2), page: PAGE, spaces });
    description
}

fn write_pool(path: &Path, description: &Description) -> gpu_vmm_core::Result<SnapshotStats> {
    let writer = SnapshotWriter::create(path, description, plain())?;
    write_all(&writer, &vec![vec![7; PAGE.0 as usize], vec![8; PAGE.0 as usize]])?;
    writer.finish()
}

/// A file has the lowest version that can describe its regions, with and without a pool.
#[test]
fn limits_are_read_back() {
    let folder = Folder::new("limits");
    let limit = Some(Address(0x8000_0000_0000));
    let with_pool = pool();
    let without = Description { pool: None, ..pool() };
    for (name, mut description) in [("pool", with_pool), ("regions", without)] {
        let path = folder.file(name);
        let last = description.regions.last_mut().unwrap();
        last.below = limit;
        write_pool(&path, &description).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[12..16], LIMITS.to_le_bytes());
        fuzz::read_all(&bytes).unwrap();
        let file = SnapshotFile::open(&path).unwrap();
        let found = file.description();
        assert_eq!((&found.regions, &found.pool), (&description.regions, &description.pool));
        // A region that is not below its limit is refused before it is written.
        description.regions.last_mut().unwrap().below = Some(Address(0x1000));
        let error = write_pool(&path, &description).unwrap_err().to_string();
        assert!(error.contains("not below its limit 0x1000"), "{error}");
    }
}

#[test]
fn tables_of_blocks_are_read_back() {
    let folder = Folder::new("pools");
    let path = folder.file("pool");
    write_pool(&path, &pool()).unwrap();
    let file = SnapshotFile::open(&path).unwrap();
    let found = file.description().pool.as_ref().unwrap();
    assert_eq!((Some(found), found.blocks()), (pool().pool.as_ref(), 3));
    file.verify(&|_| ()).unwrap();
    let bytes = fs::read(&path).unwrap();
    fuzz::read_all(&bytes).unwrap();
    // A library that knows version 1 refuses it; a file without a pool has that version.
    assert_eq!(bytes[12..16], POOLS.to_le_bytes());
    write(&folder.file("regions"), &contents(1), plain()).unwrap();
    assert_eq!(fs::read(folder.file("regions")).unwrap()[12..16], REGIONS.to_le_bytes());
    // Files of both kinds form a chain.
    let options = WriteOptions { since: Some(&file), ..plain() };
    write(&folder.file("later"), &contents(1), options).unwrap();
    SnapshotFile::open(folder.file("later")).unwrap().verify(&|_| ()).unwrap();
}

#[test]
fn tables_that_lie_are_refused() {
    let folder = Folder::new("pool-lies");
    let path = folder.file("pool");
    let refused = |change: &dyn Fn(&mut Description, &mut Vec<PoolRangeRecord>), what: &str| {
        let mut description = pool();
        let mut ranges = std::mem::take(&mut description.pool.as_mut().unwrap().spaces[0].ranges);
        change(&mut description, &mut ranges);
        if let Some(space) = description.pool.as_mut().and_then(|pool| pool.spaces.first_mut()) {
            space.ranges = ranges;
        }
        let text = write_pool(&path, &description).unwrap_err().to_string();
        assert!(text.contains(what), "{what}: {text}");
    };
    refused(&|all, _| all.pool.as_mut().unwrap().device = DeviceId(1), "the pool of device 1");
    refused(&|all, _| all.pool.as_mut().unwrap().page = Bytes(3), "pages of 3 B");
    refused(&|all, _| all.pool.as_mut().unwrap().spaces.clear(), "a pool of 0 spaces in 1 regions");
    refused(&|all, _| all.pool.as_mut().unwrap().page = Bytes::kib(4), "not a page of the pool");
    refused(&|all, _| all.regions[0].mappings[0].offset = BLOCK, "a mapping at 4 KiB that is not a page");
    refused(&|all, _| all.memories[1].properties.device = DeviceId(0), "that is not a page of the pool");
    refused(&|_, ranges| ranges[0].offset = Bytes(0), "no memory is mapped in a part of the range at 0 B");
    refused(&|_, ranges| ranges[1].offset = Bytes(u64::MAX), "exceeds the space");
    refused(&|_, ranges| ranges[1].size = Bytes::kib(64), "exceeds the space");
    refused(&|_, ranges| ranges[1].size = Bytes::kib(12), "no memory is mapped in a part");
    refused(&|_, ranges| ranges[1].offset = ranges[0].offset, "overlaps the one before");
    refused(&|_, ranges| ranges[0].size = Bytes::ZERO, "1 blocks in 0 B");
    refused(&|_, ranges| ranges[0].blocks.clear(), "0 blocks in 8 KiB");
    refused(&|_, ranges| ranges[0].blocks[0].size = Bytes(8193), "in slot 0 of 1");
    refused(&|_, ranges| ranges[0].blocks[0].slot = 1, "in slot 1 of 1");
    refused(&|_, ranges| ranges[1].blocks[0].slot = 1, "slots that are not in order");
    refused(&|_, ranges| ranges[1].blocks[1].slot = 2, "in slot 2 of 2");
    refused(&|_, ranges| ranges[1].blocks[1].size = Bytes(701), "a block of 701 B in slot 1");
    refused(&|_, ranges| ranges[1].blocks[1].size = Bytes::ZERO, "a block of 0 B in slot 1");
}
