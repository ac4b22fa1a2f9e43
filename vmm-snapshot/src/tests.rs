//! Writing and reading snapshots, and damage to their files.

mod bad;
mod chain;
mod documented;
mod faults;
mod killed;
mod lies;
mod misuse;
mod pools;

use crate::*;
use gpu_vmm_core::{
    Access, AccessMap, Address, Alignment, Bytes, DeviceId, DeviceUuid, Error, Granularity, HandleTypes,
    Location, Properties,
};
use gpu_vmm_testkit::Random;
use std::fs;
use std::path::{Path, PathBuf};

const BLOCK: Bytes = Bytes::kib(4);

/// A folder for one test's files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        Self::beneath(&std::env::temp_dir(), test)
    }

    /// Below `parent` if that exists, else in the temporary folder.
    fn beneath(parent: &Path, test: &str) -> Self {
        let parent = if parent.is_dir() { parent.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(format!("gpu-vmm-snapshot-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names of all entries.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two regions on two devices; the second memory is mapped twice.
fn description() -> Description {
    let unit = Granularity::new(BLOCK).unwrap();
    let device = |id, name: &str| DeviceRecord {
        id: DeviceId(id),
        name: name.to_owned(),
        uuid: Some(DeviceUuid([id as u8; 16])),
        granularity: unit,
        total_memory: Bytes::mib(1),
    };
    let memory = |size, properties| MemoryRecord { size, granularity: unit, properties };
    let both = AccessMap::NONE.with(DeviceId(0), Access::ReadWrite).with(DeviceId(2), Access::Read);
    let mapping = |offset, memory, access| MappingRecord { offset, memory, access };
    let region = |address, tag: &str, mappings| RegionRecord {
        tag: tag.to_owned(),
        address: Address(address),
        reservations: vec![Bytes::kib(64), Bytes::kib(16)],
        granularity: unit,
        alignment: Alignment::new(Bytes::kib(64)).unwrap(),
        memory: Properties::on(DeviceId(2)).exported_as(HandleTypes::FILE_DESCRIPTOR),
        access: AccessMap::NONE.with(DeviceId::HOST, Access::Read),
        extend_by: BLOCK,
        guard: BLOCK,
        portable: true,
        below: None,
        mappings,
    };
    Description {
        id: SnapshotId::new().unwrap(),
        parent: None,
        created: 1_700_000_000,
        library: "0.1.0".to_owned(),
        vendor: "host".to_owned(),
        driver: "1.2".to_owned(),
        devices: vec![device(0, "one"), device(2, "two")],
        regions: vec![
            region(
                0x7000_0000_0000,
                "weights",
                vec![mapping(BLOCK, 1, both), mapping(Bytes::kib(32), 0, both)],
            ),
            region(0x7100_0000_0000, "", vec![mapping(Bytes::ZERO, 1, AccessMap::NONE)]),
        ],
        memories: vec![
            memory(Bytes::kib(16), Properties::on(DeviceId(0)).compressible()),
            memory(Bytes::kib(8), Properties::on(DeviceId(2)).located(Location::HostNode(1)).remote_dma()),
        ],
        pool: None,
    }
}

type Contents = Vec<Vec<u8>>;

/// Contents for the description: blocks of zeros, compressible blocks, and incompressible ones.
fn contents(seed: u64) -> Contents {
    let mut random = Random(seed);
    let block = BLOCK.0 as usize;
    let mut rough = || (0..block).map(|_| random.next() as u8).collect::<Vec<u8>>();
    let mut last = vec![0; block];
    last[block - 1] = 1;
    let smooth = vec![seed as u8 | 1; block];
    vec![[rough(), vec![0; block], smooth, last].concat(), [rough(), vec![0; block]].concat()]
}

fn write_all(writer: &SnapshotWriter, contents: &Contents) -> gpu_vmm_core::Result<()> {
    let size = writer.block_size().0 as usize;
    for (memory, bytes) in contents.iter().enumerate() {
        for (block, bytes) in bytes.chunks(size).enumerate() {
            writer.write_block(memory, block as u64, bytes)?;
        }
    }
    Ok(())
}

fn write(path: &Path, contents: &Contents, options: WriteOptions<'_>) -> gpu_vmm_core::Result<SnapshotStats> {
    let writer = SnapshotWriter::create(path, &description(), options)?;
    write_all(&writer, contents)?;
    writer.finish()
}

fn plain() -> WriteOptions<'static> {
    WriteOptions { block: Some(BLOCK), ..WriteOptions::default() }
}

fn small() -> WriteOptions<'static> {
    WriteOptions { compress: true, ..plain() }
}

fn read_all(file: &SnapshotFile) -> gpu_vmm_core::Result<Contents> {
    let size = file.block_size().0 as usize;
    let mut all = Vec::new();
    for (memory, record) in file.description().memories.iter().enumerate() {
        let mut bytes = vec![0xaa; record.size.0 as usize];
        for (block, bytes) in bytes.chunks_mut(size).enumerate() {
            file.read_block(memory, block as u64, bytes)?;
        }
        all.push(bytes);
    }
    Ok(all)
}

/// Opens, verifies and reads.
fn all_of(path: &Path) -> gpu_vmm_core::Result<Contents> {
    let file = SnapshotFile::open(path)?;
    file.verify(&|_| {})?;
    read_all(&file)
}

#[track_caller]
fn assert_says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[test]
fn last_block_can_be_shorter() {
    let folder = Folder::new("short");
    let path = folder.file("a");
    for (block, blocks) in [(None, [1, 1]), (Some(Bytes::kib(8)), [2, 1])] {
        write(&path, &contents(2), WriteOptions { block, ..WriteOptions::default() }).unwrap();
        let file = SnapshotFile::open(&path).unwrap();
        assert_eq!(file.block_size(), block.unwrap_or(Bytes::mib(1)));
        assert_eq!([file.blocks(0), file.blocks(1)], blocks);
        assert_eq!(read_all(&file).unwrap(), contents(2));
    }
    let mut odd = description();
    odd.memories[0].size = Bytes::kib(12);
    let options = WriteOptions { block: Some(Bytes::kib(8)), ..small() };
    let writer = SnapshotWriter::create(&path, &odd, options).unwrap();
    let mut contents = contents(2);
    contents[0].truncate(12 << 10);
    write_all(&writer, &contents).unwrap();
    writer.finish().unwrap();
    assert_eq!(all_of(&path).unwrap(), contents);
}

/// The index is read in groups of 1024 entries.
#[test]
fn later_blocks_are_in_their_places() {
    const BLOCKS: usize = 1100;
    let folder = Folder::new("thousand");
    let path = folder.file("a");
    let mut description = description();
    description.memories[0].size = Bytes(BLOCKS as u64 * BLOCK.0);
    description.regions[0].reservations[0] = Bytes::mib(16);
    let mut contents = contents(4);
    contents[0] = vec![0; BLOCKS << 12];
    for block in [3, 1023, 1024, 1030, BLOCKS - 1] {
        contents[0][block << 12..(block + 1) << 12].fill((block % 255) as u8 + 1);
    }
    let writer = SnapshotWriter::create(&path, &description, small()).unwrap();
    write_all(&writer, &contents).unwrap();
    writer.finish().unwrap();
    assert!(read_all(&SnapshotFile::open(&path).unwrap()).unwrap() == contents);
}

#[test]
fn several_threads_write_and_read_at_once() {
    let folder = Folder::new("threads");
    let path = folder.file("a");
    let contents = contents(3);
    let places: Vec<(usize, u64)> = [(0, 4), (1, 2)]
        .into_iter()
        .flat_map(|(memory, blocks)| (0..blocks).map(move |block| (memory, block)))
        .collect();
    let bytes = |(memory, block): (usize, u64)| &contents[memory][block as usize * 4096..][..4096];
    let writer = SnapshotWriter::create(&path, &description(), small()).unwrap();
    std::thread::scope(|scope| {
        for place in &places {
            scope.spawn(|| writer.write_block(place.0, place.1, bytes(*place)).unwrap());
        }
    });
    writer.finish().unwrap();
    let file = SnapshotFile::open(&path).unwrap();
    std::thread::scope(|scope| {
        for place in places.iter().cycle().take(50) {
            scope.spawn(|| {
                let mut found = [0; 4096];
                file.read_block(place.0, place.1, &mut found).unwrap();
                assert_eq!(found, bytes(*place));
            });
        }
    });
}

/// Only a block whose every byte is zero is left out.
#[test]
fn block_beginning_with_zeros_is_kept() {
    let folder = Folder::new("begins");
    let path = folder.file("a");
    let mut contents = contents(5);
    contents[1].fill(0);
    contents[1][8191] = 1;
    let options = WriteOptions { block: Some(Bytes::kib(8)), ..WriteOptions::default() };
    assert_eq!(write(&path, &contents, options).unwrap().zero, 0);
    assert_eq!(all_of(&path).unwrap(), contents);
}

#[test]
fn identifier_is_printed_with_all_digits() {
    let id = SnapshotId(std::array::from_fn(|place| place as u8));
    assert_eq!(format!("{id}, {id:?}"), "000102030405060708090a0b0c0d0e0f, 000102030405060708090a0b0c0d0e0f");
    assert_eq!(format!("{id:>34}"), format!("  {id}"), "in a column");
    assert_ne!(SnapshotId::new().unwrap(), SnapshotId::new().unwrap());
}

#[test]
fn largest_size_and_count_are_allowed() {
    use crate::format::{Cut, MAX_BLOCK, MAX_BLOCKS, MIN_BLOCK};
    assert!(Cut::allows(MAX_BLOCK) && !Cut::allows(MAX_BLOCK * 2));
    let blocks = |count| Cut::new(MIN_BLOCK, [MIN_BLOCK * count].into_iter()).map(|cut| cut.blocks);
    assert_eq!([MAX_BLOCKS, MAX_BLOCKS + 1].map(blocks), [Some(MAX_BLOCKS), None]);
}

#[test]
fn an_empty_snapshot_is_one() {
    let folder = Folder::new("nothing");
    let path = folder.file("a");
    let empty = Description { regions: Vec::new(), memories: Vec::new(), ..description() };
    SnapshotWriter::create(&path, &empty, plain()).unwrap().finish().unwrap();
    assert_eq!(*SnapshotFile::open(&path).unwrap().description(), empty);
    assert_eq!(all_of(&path).unwrap(), Contents::new());
}
