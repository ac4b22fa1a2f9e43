//! Snapshot files: omitted blocks, corruption that is detected on reading, and concurrent writers. Descriptions and contents
//! are made up; no region is involved.

use crate::case::cases;
use crate::library::folder::Folder;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{AccessMap, Address, Alignment, Bytes, Detail, Error, Granularity, Result};
use gpu_vmm_snapshot::SnapshotError;
use gpu_vmm_snapshot::{
    Description, MappingRecord, MemoryRecord, RegionRecord, SnapshotFile, SnapshotStats, SnapshotWriter,
    WriteOptions,
};
use gpu_vmm_testkit::TestKit;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

cases! { "snapshot_file":
    /// Written blocks are read back, compressed or not, and so is the description, which names the driver and its devices.
    what_is_written_is_read,
    /// Blocks of zeros and blocks of an earlier snapshot are not in the file, and are still read correctly.
    blocks_are_left_out,
    /// A missing or replaced earlier snapshot is an error; no other block is returned.
    another_earlier_snapshot,
    /// Any changed byte of a file is detected.
    every_byte_is_proved,
    /// A file that is truncated at any length, or extended, is detected.
    every_length_is_proved,
    /// A snapshot that is not finished leaves the previous file unchanged, and no other file.
    what_is_not_finished_never_was,
    /// A snapshot has one writer at a time; the partial file of a dead writer is overwritten.
    one_writer_at_a_time,
    /// A snapshot can be written under a relative file name, in the current folder.
    a_name_alone with writes_by_a_name_alone,
    /// A snapshot that replaces another file keeps that file's permissions.
    permissions_stay,
    /// If a hard link to another file has the writer's temporary name, that file is not overwritten.
    another_file_too,
    /// A symbolic link under the snapshot's name and its target are not overwritten; a folder is refused as a snapshot.
    what_is_no_file,
    /// Block sizes are powers of two from 4 KiB to 64 MiB.
    sizes_of_blocks,
    /// Overlapping regions are refused; adjacent regions are accepted.
    regions_that_overlap,
    /// A check of a file reports each block of zeros as progress too, wherever it is.
    progress_of_zeros,
    /// A file names an earlier snapshot only if it was written since that one, whatever its description says.
    no_parent_but_the_given_one,
    /// A snapshot is refused if its temporary file would have the name of an earlier snapshot that it needs.
    an_earlier_snapshot_is_no_temporary_file,
}

const BLOCK: Bytes = Bytes::kib(4);

/// The blocks of one piece of memory: incompressible, zeros, compressible, incompressible.
const BLOCKS: [fn(u64) -> Vec<u8>; 4] = [rough, |_| vec![0; 4096], smooth, |_| rough(7)];

/// A block that cannot be compressed.
fn rough(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..BLOCK.0).map(|_| next()).collect()
}

/// A block that can be compressed in several ways: the second run of equal bytes can refer to any position of the first.
fn smooth(seed: u64) -> Vec<u8> {
    let run = vec![seed as u8; 1798];
    [&run, &rough(seed)[..500], &run].concat()
}

/// A description with one region with one piece of memory, of this backend's chosen device.
fn description<B: TestKit>(subject: &Subject<B>) -> Description {
    let mut description = Description::of(&subject.backend).unwrap();
    let (granularity, properties) = (Granularity::new(BLOCK).unwrap(), subject.properties());
    let size = Bytes(BLOCKS.len() as u64 * BLOCK.0);
    description.memories = vec![MemoryRecord { size, granularity, properties }];
    description.regions = vec![RegionRecord {
        tag: "one".to_owned(),
        address: Address(1 << 40),
        reservations: vec![size],
        granularity,
        alignment: Alignment::from(granularity),
        memory: properties,
        access: AccessMap::NONE,
        extend_by: Bytes(0),
        guard: Bytes(0),
        portable: false,
        below: None,
        mappings: vec![MappingRecord { offset: Bytes(0), memory: 0, access: AccessMap::NONE }],
    }];
    description
}

fn write_blocks(writer: &SnapshotWriter, seed: u64, blocks: usize) -> Result<()> {
    let mut places = (0..).zip(BLOCKS).take(blocks);
    places.try_for_each(|(place, block)| writer.write_block(0, place, &block(seed)))
}

fn begin<B: TestKit>(
    subject: &Subject<B>,
    path: &Path,
    since: Option<&SnapshotFile>,
) -> Result<SnapshotWriter> {
    let options = WriteOptions { compress: true, block: Some(BLOCK), since };
    SnapshotWriter::create(path, &description(subject), options)
}

fn write<B: TestKit>(
    subject: &Subject<B>,
    path: &Path,
    seed: u64,
    since: Option<&SnapshotFile>,
) -> SnapshotStats {
    let writer = begin(subject, path, since).unwrap();
    write_blocks(&writer, seed, BLOCKS.len()).unwrap();
    writer.finish().unwrap()
}

/// Opens a file and compares its contents with the blocks that were written.
fn read(path: &Path, seed: u64) -> Result<SnapshotFile> {
    let file = SnapshotFile::open(path)?;
    for (place, block) in (0..).zip(BLOCKS) {
        let mut found = vec![0xaa; BLOCK.0 as usize];
        file.read_block(0, place, &mut found)?;
        assert!(found == block(seed), "block {place} of {} differs", path.display());
    }
    Ok(file)
}

/// Verifies a file, and then reads it.
fn check(path: &Path, seed: u64) -> Result<()> {
    SnapshotFile::open(path)?.verify(&|_| {})?;
    read(path, seed).map(drop)
}

#[track_caller]
fn is_bad(answer: Result<()>, what: &str) {
    let Err(Some(SnapshotError::Invalid { what: said, .. })) = answer.as_ref().map_err(Error::extension)
    else {
        panic!("{what}: {answer:?}")
    };
    assert!(said.contains(what), "{what:?} is not in {said:?}");
}

fn what_is_written_is_read<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    let description = description(subject);
    let (vendor, driver) = (subject.backend.vendor().name(), subject.backend.driver().version);
    assert_eq!((description.vendor.as_str(), &description.driver), (vendor, &driver));
    for (record, device) in description.devices.iter().zip(subject.backend.devices()) {
        let known = (device.id, &device.name, device.uuid, device.granularity, device.total_memory);
        assert_eq!((record.id, &record.name, record.uuid, record.granularity, record.total_memory), known);
    }
    assert_eq!(description.devices.len(), subject.backend.devices().len());
    for compress in [false, true] {
        let options = WriteOptions { compress, block: Some(BLOCK), since: None };
        let writer = SnapshotWriter::create(&path, &description, options).unwrap();
        write_blocks(&writer, 1, BLOCKS.len()).unwrap();
        let stats = writer.finish().unwrap();
        assert_eq!((stats.stored, stats.compressed), (3, u64::from(compress)));
        let file = SnapshotFile::open(&path).unwrap();
        assert_eq!((file.description(), file.stats()), (&description, stats));
        check(&path, 1).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(file.description().created) < 600, "{} at {now}", file.description().created);
        let verified = AtomicU64::new(0);
        let count = |bytes: Bytes| {
            verified.fetch_add(bytes.0, Ordering::Relaxed);
        };
        let all = file.verify(&count).unwrap();
        assert_eq!((all, Bytes(verified.into_inner())), (stats, stats.contents));
    }
}

fn blocks_are_left_out<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let [first, second, third] = ["a", "b", "c"].map(|name| folder.file(name));
    let counts = |stats: SnapshotStats| (stats.zero, stats.unchanged, stats.stored);
    assert_eq!(counts(write(subject, &first, 1, None)), (1, 0, 3));
    let since = SnapshotFile::open(&first).unwrap();
    assert_eq!(counts(write(subject, &second, 2, Some(&since))), (1, 1, 2));
    // The last block is two files back; the other unchanged blocks are in the previous file.
    let since = SnapshotFile::open(&second).unwrap();
    let stats = write(subject, &third, 2, Some(&since));
    assert_eq!(counts(stats), (1, 3, 0));
    assert!(stats.file < BLOCK, "{stats:?}");
    // By default, blocks have the size of the earlier snapshot's blocks, so that they can match.
    let options = WriteOptions { since: Some(&since), ..WriteOptions::default() };
    let writer = SnapshotWriter::create(folder.file("d"), &description(subject), options).unwrap();
    assert_eq!(writer.block_size(), BLOCK);
    for (path, seed) in [(&first, 1), (&second, 2), (&third, 2)] {
        check(path, seed).unwrap();
    }
}

fn another_earlier_snapshot<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let [first, second] = ["a", "b"].map(|name| folder.file(name));
    write(subject, &first, 1, None);
    let since = SnapshotFile::open(&first).unwrap();
    write(subject, &second, 2, Some(&since));
    let id = since.description().id.to_string();
    // Even with the same contents it is a different snapshot: its blocks can be at other offsets.
    write(subject, &first, 1, None);
    is_bad(check(&second, 2), &format!("it needs the earlier snapshot {id}, but a is now another snapshot"));
    fs::remove_file(&first).unwrap();
    is_bad(check(&second, 2), &format!("it needs the earlier snapshot {id} in a"));
    // A snapshot cannot replace the file that it needs.
    write(subject, &first, 1, None);
    let since = SnapshotFile::open(&first).unwrap();
    is_bad(begin(subject, &first, Some(&since)).map(drop), "it would replace a, which it needs");
}

fn every_byte_is_proved<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    write(subject, &path, 1, None);
    let bytes = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    // A sample of the incompressible blocks, which are most of the file; the compressed block is between them.
    let rough = |at: &usize| (64..4160).contains(at) || (5160..8256).contains(at);
    for at in (0..bytes.len()).filter(|at| !rough(at) || at % 211 == 0) {
        for bit in [0, at % 7 + 1] {
            file.write_all_at(&[bytes[at] ^ 1 << bit], at as u64).unwrap();
            match read(&path, 1).map(drop) {
                Err(error) if matches!(error.extension(), Some(SnapshotError::Invalid { .. })) => {}
                Err(error)
                    if matches!(error.extension(), Some(SnapshotError::Newer { .. }))
                        && (12..16).contains(&at) => {}
                answer => panic!("byte {at} of {} was changed, and {answer:?}", bytes.len()),
            }
        }
        file.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    check(&path, 1).unwrap();
}

fn every_length_is_proved<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    let size = write(subject, &path, 1, None).file.0;
    let file = fs::File::options().write(true).open(&path).unwrap();
    for length in (size + 1..size + 100).chain((0..size).rev().filter(|at| at % 13 == 0 || size - at < 600)) {
        file.set_len(length).unwrap();
        is_bad(read(&path, 1).map(drop), "");
    }
}

fn what_is_not_finished_never_was<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    write(subject, &path, 1, None);
    for blocks in 0..BLOCKS.len() {
        let writer = begin(subject, &path, None).unwrap();
        write_blocks(&writer, 2, blocks).unwrap();
        let missing = format!("block {blocks} of memory 0 has not been written");
        is_bad(writer.finish().map(drop), &missing);
        let writer = begin(subject, &path, None).unwrap();
        write_blocks(&writer, 2, blocks).unwrap();
        drop(writer);
        check(&path, 1).unwrap();
        assert_eq!(folder.names(), ["a"]);
    }
}

fn one_writer_at_a_time<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    fs::write(folder.file(".a.partial"), vec![9; 100_000]).unwrap();
    let first = begin(subject, &path, None).unwrap();
    let second = begin(subject, &path, None);
    assert!(matches!(second.as_ref().map_err(Error::detail), Err(Detail::File { .. })), "{second:?}");
    write_blocks(&first, 1, BLOCKS.len()).unwrap();
    first.finish().unwrap();
    check(&path, 1).unwrap();
    write(subject, &path, 2, None);
    check(&path, 2).unwrap();
    assert_eq!(folder.names(), ["a"]);
}

fn a_name_alone<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut child = subject.child();
    child.send(folder.file("."));
    child.finish();
    assert_eq!(folder.names(), ["a", "b"]);
    check(&folder.file("a"), 1).unwrap();
    check(&folder.file("b"), 2).unwrap();
}

/// In a process of its own, since the current folder belongs to the whole process.
fn writes_by_a_name_alone<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    std::env::set_current_dir(peer.receive::<PathBuf>()).unwrap();
    let [first, second] = ["a", "b"].map(Path::new);
    write(subject, first, 1, None);
    write(subject, second, 2, Some(&SnapshotFile::open(first).unwrap()));
    check(second, 2).unwrap();
}

fn permissions_stay<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    write(subject, &path, 1, None);
    for (mode, seed) in (2..).zip([0o440, 0o600, 0o644]).map(|(seed, mode)| (mode, seed)) {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        // While it is written, no user reads it who may not read the earlier one. Its owner can write it.
        let writer = begin(subject, &path, None).unwrap();
        let partial = fs::metadata(folder.file(".a.partial")).unwrap();
        assert_eq!(partial.permissions().mode() & 0o777, mode | 0o600);
        drop(writer);
        write(subject, &path, seed, None);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        check(&path, seed).unwrap();
    }
}

fn another_file_too<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    fs::write(folder.file("other"), b"of another program").unwrap();
    fs::hard_link(folder.file("other"), folder.file(".a.partial")).unwrap();
    let answer = begin(subject, &folder.file("a"), None);
    assert!(matches!(answer.as_ref().map_err(Error::detail), Err(Detail::File { .. })), "{answer:?}");
    assert_eq!(fs::read(folder.file("other")).unwrap(), b"of another program");
    fs::remove_file(folder.file(".a.partial")).unwrap();
    write(subject, &folder.file("a"), 1, None);
}

fn what_is_no_file<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    fs::write(folder.file("other"), b"of another program").unwrap();
    symlink("other", folder.file("a")).unwrap();
    let answer = begin(subject, &folder.file("a"), None);
    assert!(matches!(answer.as_ref().map_err(Error::detail), Err(Detail::File { .. })), "{answer:?}");
    assert_eq!(fs::read(folder.file("other")).unwrap(), b"of another program");
    assert!(folder.file("a").is_symlink());
    is_bad(SnapshotFile::open(folder.file(".")).map(drop), "not a regular file");
}

fn sizes_of_blocks<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let description = description(subject);
    for (block, is_right) in [
        (Bytes::ZERO, false),
        (Bytes::kib(2), false),
        (Bytes::kib(4), true),
        (Bytes::kib(12), false),
        (Bytes::mib(64), true),
        (Bytes::mib(128), false),
    ] {
        let options = WriteOptions { block: Some(block), ..WriteOptions::default() };
        let answer = SnapshotWriter::create(folder.file("a"), &description, options);
        match answer.as_ref().map_err(Error::detail) {
            Ok(writer) => assert!(is_right && writer.block_size() == block, "{block}"),
            Err(Detail::Unsupported { .. }) => assert!(!is_right, "{block}"),
            Err(other) => panic!("{block}: {other}"),
        }
    }
}

fn regions_that_overlap<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut description = description(subject);
    let one = description.regions[0].clone();
    let end = one.address + one.reservations[0];
    let mut create = |address: Address| {
        description.regions = vec![RegionRecord { address, ..one.clone() }, one.clone()];
        let options = WriteOptions { compress: false, block: Some(BLOCK), since: None };
        SnapshotWriter::create(folder.file("a"), &description, options).map(drop)
    };
    is_bad(create(Address(end.0 - BLOCK.0)), "overlap");
    create(end).unwrap();
}

fn progress_of_zeros<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("a");
    let writer = begin(subject, &path, None).unwrap();
    for place in 0..BLOCKS.len() as u64 {
        writer.write_block(0, place, &[0; BLOCK.0 as usize]).unwrap();
    }
    let contents = writer.finish().unwrap().contents;
    let verified = AtomicU64::new(0);
    let count = |bytes: Bytes| {
        verified.fetch_add(bytes.0, Ordering::Relaxed);
    };
    SnapshotFile::open(&path).unwrap().verify(&count).unwrap();
    assert_eq!(Bytes(verified.into_inner()), contents);
}

fn no_parent_but_the_given_one<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let [first, second, third] = ["a", "b", "c"].map(|name| folder.file(name));
    write(subject, &first, 1, None);
    write(subject, &second, 1, Some(&SnapshotFile::open(&first).unwrap()));
    let described = SnapshotFile::open(&second).unwrap().description().clone();
    assert!(described.parent.is_some());
    let options = WriteOptions { compress: false, block: Some(BLOCK), since: None };
    let writer = SnapshotWriter::create(&third, &described, options).unwrap();
    write_blocks(&writer, 1, BLOCKS.len()).unwrap();
    writer.finish().unwrap();
    assert_eq!(SnapshotFile::open(&third).unwrap().description().parent, None);
}

fn an_earlier_snapshot_is_no_temporary_file<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let earlier = folder.file(".a.partial");
    write(subject, &earlier, 1, None);
    let since = SnapshotFile::open(&earlier).unwrap();
    is_bad(begin(subject, &folder.file("a"), Some(&since)).map(drop), "which it needs");
    check(&earlier, 1).unwrap();
}
