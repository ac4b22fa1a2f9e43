//! Misuse by callers, and several writers of one snapshot.

use super::*;
use crate::format::MAX_HEAD;
use crate::records::Head;
use gpu_vmm_core::{Detail, Error};
use gpu_vmm_testkit::forked::alone;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

fn create(path: &Path) -> gpu_vmm_core::Result<SnapshotWriter> {
    SnapshotWriter::create(path, &description(), plain())
}

/// Memory, block and length that do not go together. The last one is behind the end of the memory, and has the bytes that are left there.
const WRONG: [(usize, u64, usize); 6] =
    [(2, 0, 4096), (0, 4, 4096), (0, u64::MAX, 4096), (0, 0, 4095), (1, 0, 0), (0, 4, 0)];

#[test]
fn wrong_blocks_are_refused_others_continue() {
    let folder = Folder::new("wrong");
    let path = folder.file("a");
    let writer = create(&path).unwrap();
    for (memory, block, length) in WRONG {
        let bytes = vec![1; length];
        let error = writer.write_block(memory, block, &bytes).unwrap_err();
        let size = [Bytes::kib(16), Bytes::kib(8), Bytes::ZERO][memory];
        let Detail::OutOfRange { range, limit } = error.detail() else { panic!("{error}") };
        let found = (range.offset, range.length, *limit);
        assert_eq!(found, (BLOCK * block, Bytes(length as u64), size), "{error}");
    }
    write_all(&writer, &contents(1)).unwrap();
    for (memory, block) in [(0, 0), (1, 1)] {
        let error = writer.write_block(memory, block, &[0; 4096]).unwrap_err();
        assert_says(&error, &[&format!("block {block} of memory {memory} has been written before")]);
    }
    writer.finish().unwrap();
    let file = SnapshotFile::open(&path).unwrap();
    for (memory, block, length) in WRONG {
        let error = file.read_block(memory, block, &mut vec![0; length]).unwrap_err();
        assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "{error}");
    }
    let error = file.read_block(0, 0, &mut vec![0; BLOCK.0 as usize + 1]).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "more than the block: {error}");
    assert_eq!(read_all(&file).unwrap(), contents(1));
}

#[test]
fn incomplete_snapshot_is_not_finished() {
    let folder = Folder::new("lacks");
    let path = folder.file("a");
    write(&path, &contents(1), plain()).unwrap();
    let writer = create(&path).unwrap();
    writer.write_block(0, 0, &[1; 4096]).unwrap();
    assert_eq!(folder.names(), [".a.partial", "a"]);
    let error = writer.finish().unwrap_err();
    assert_says(&error, &["block 1 of memory 0 has not been written"]);
    drop(create(&path).unwrap());
    assert_eq!((folder.names(), all_of(&path).unwrap()), (vec!["a".to_owned()], contents(1)));
}

#[test]
fn invalid_descriptions_and_options_are_refused() {
    let folder = Folder::new("sense");
    let path = folder.file("a");
    let mut bad = description();
    bad.memories[0].size = Bytes(5);
    let error = SnapshotWriter::create(&path, &bad, plain()).unwrap_err();
    assert_says(&error, &["write snapshot", "memory 0: a size of 5 B"]);
    for block in [Bytes(0), Bytes(5000), Bytes::kib(2), Bytes::mib(128)] {
        let options = WriteOptions { block: Some(block), ..plain() };
        let error = SnapshotWriter::create(&path, &description(), options).unwrap_err();
        assert_says(
            &error,
            &[&format!("blocks of {block}; the size must be a power of two from 4 KiB to 64 MiB")],
        );
    }
    let mut large = description();
    large.regions.clear();
    large.memories[0].size = Bytes::gib(1 << 30);
    let error = SnapshotWriter::create(&path, &large, plain()).unwrap_err();
    assert_says(&error, &["more than 16777216 blocks of 4 KiB; use larger blocks"]);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = Folder::new("replaced");
    fs::create_dir(folder.file("folder")).unwrap();
    fs::write(folder.file("victim"), b"kept").unwrap();
    symlink("victim", folder.file(".link.partial")).unwrap();
    symlink("victim", folder.file("link2")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.file(".pipe.partial"), rustix::fs::Mode::RWXU).unwrap();
    let missing = folder.file("missing").join("a");
    for (path, part) in [
        (folder.file("folder"), "is not a regular file, and is not replaced"),
        (folder.file("link2"), "is not a regular file, and is not replaced"),
        (folder.file("link"), "open answered"),
        (folder.file("pipe"), "the path is not a regular file"),
        (missing, "No such file"),
        (folder.file("victim").join("a"), "stat answered ENOTDIR"),
        (PathBuf::from("/"), "a snapshot needs a file name"),
        (PathBuf::new(), "a snapshot needs a file name"),
    ] {
        let error = create(&path).unwrap_err();
        assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
        assert_says(&error, &[part]);
    }
    assert_eq!(fs::read(folder.file("victim")).unwrap(), b"kept");
}

#[test]
fn file_name_can_have_any_bytes() {
    let folder = Folder::new("any-bytes");
    let path = folder.0.join(std::ffi::OsStr::from_bytes(b"\xff"));
    write(&path, &contents(1), plain()).unwrap();
    assert_eq!(all_of(&path).unwrap(), contents(1));
    let names = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), [path.file_name().unwrap()]);
}

#[test]
fn second_writer_is_refused_until_finish() {
    let folder = Folder::new("second");
    let path = folder.file("a");
    let first = create(&path).unwrap();
    let refused = |error: Error| assert_says(&error, &["lock answered", "another process", ".a.partial"]);
    refused(create(&path).map(drop).unwrap_err());
    alone(|| refused(create(&path).map(drop).unwrap_err()));
    write_all(&first, &contents(1)).unwrap();
    first.finish().unwrap();
    assert_eq!(all_of(&path).unwrap(), contents(1));
    write(&path, &contents(2), plain()).unwrap();
    assert_eq!((all_of(&path).unwrap(), folder.names()), (contents(2), vec!["a".to_owned()]));
}

#[test]
fn many_writers_leave_whole_snapshot() {
    let folder = Folder::new("many");
    let path = folder.file("a");
    const EACH: u64 = 5;
    let work = |seed: u64| {
        for turn in 0..EACH {
            while let Err(error) = write(&path, &contents(seed * EACH + turn), small()) {
                assert_says(&error, &["lock answered"]);
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| (1..5).for_each(|seed| drop(scope.spawn(move || work(seed)))));
    let found = all_of(&path).unwrap();
    assert!((1..5).any(|seed| found == contents(seed * EACH + EACH - 1)));
    assert_eq!(folder.names(), ["a"]);
}

#[test]
fn forked_child_touches_no_snapshot() {
    let folder = Folder::new("forked");
    let path = folder.file("a");
    let writer = create(&path).unwrap();
    let mut other = Some(create(&folder.file("b")).unwrap());
    write(&folder.file("c"), &contents(1), plain()).unwrap();
    let opened = SnapshotFile::open(folder.file("c")).unwrap();
    fs::remove_file(folder.file("c")).unwrap();
    alone(|| {
        assert!(matches!(read_all(&opened).as_ref().map_err(Error::detail), Err(Detail::Forked)));
        assert!(matches!(
            writer.write_block(0, 0, &[1; 4096]).as_ref().map_err(Error::detail),
            Err(Detail::Forked)
        ));
        // The child's copy; the parent keeps its own.
        drop(other.take());
        assert_eq!(folder.names(), [".a.partial", ".b.partial"]);
    });
    drop(other);
    assert_eq!(folder.names(), [".a.partial"]);
    write_all(&writer, &contents(1)).unwrap();
    writer.finish().unwrap();
    assert_eq!(all_of(&path).unwrap(), contents(1));
}

/// The limit is the reader's: a head of exactly that size is written and read, and a longer one is refused before a file is
/// created.
#[test]
fn unreadable_description_is_not_written() {
    let folder = Folder::new("head");
    let path = folder.file("a");
    let with_tag = |length: u64| {
        let mut long = description();
        long.regions[0].tag = "x".repeat(length as usize);
        long
    };
    let length_of = |description: &Description| {
        let head = Head { block: BLOCK, description: description.clone(), needed: Vec::new() };
        head.write().unwrap().len() as u64
    };
    // A tag of this length has its own length in as many bytes as the one that just fits.
    let shorter = MAX_HEAD - Bytes::mib(1).0;
    let most = shorter + MAX_HEAD - length_of(&with_tag(shorter));
    let error = SnapshotWriter::create(&path, &with_tag(most + 1), plain()).unwrap_err();
    assert_says(&error, &["write snapshot", "33554433 bytes exceeds the limit of 33554432"]);
    assert_eq!(folder.names(), [""; 0]);
    let fits = with_tag(most);
    assert_eq!(length_of(&fits), MAX_HEAD);
    let writer = SnapshotWriter::create(&path, &fits, plain()).unwrap();
    write_all(&writer, &contents(1)).unwrap();
    writer.finish().unwrap();
    let file = SnapshotFile::open(&path).unwrap();
    assert_eq!(file.description().regions[0].tag.len() as u64, most);
}
