//! Snapshots that omit the blocks of earlier ones.

use super::*;
use crate::SnapshotError;

fn since<'a>(file: &'a SnapshotFile, options: WriteOptions<'a>) -> WriteOptions<'a> {
    WriteOptions { since: Some(file), block: None, ..options }
}

/// Returns the contents of three snapshots, each with one more block changed.
fn three(folder: &Folder) -> [Contents; 3] {
    let one = contents(1);
    let mut two = one.clone();
    two[0][..4096].copy_from_slice(&contents(2)[0][..4096]);
    let mut three = two.clone();
    three[1][4096..].copy_from_slice(&contents(3)[0][..4096]);
    write(&folder.file("one"), &one, plain()).unwrap();
    let first = SnapshotFile::open(folder.file("one")).unwrap();
    let stats = write(&folder.file("two"), &two, since(&first, small())).unwrap();
    assert_eq!((stats.stored, stats.unchanged, stats.zero), (1, 3, 2));
    let second = SnapshotFile::open(folder.file("two")).unwrap();
    let stats = write(&folder.file("three"), &three, since(&second, small())).unwrap();
    assert_eq!((stats.stored, stats.unchanged, stats.zero), (1, 4, 1));
    assert_eq!(second.stats().unchanged, 3);
    [one, two, three]
}

fn open(folder: &Folder, name: &str) -> SnapshotFile {
    SnapshotFile::open(folder.file(name)).unwrap()
}

#[test]
fn each_of_three_snapshots_is_complete() {
    let folder = Folder::new("three");
    let contents = three(&folder);
    for (name, contents) in ["one", "two", "three"].iter().zip(&contents) {
        assert_eq!(all_of(&folder.file(name)).unwrap(), *contents, "{name}");
    }
    let ids = ["one", "two", "three"].map(|name| open(&folder, name).description().id);
    let earlier = |at: usize, file: &str| EarlierSnapshot { id: ids[at], file: file.to_owned() };
    let third = open(&folder, "three");
    assert_eq!(third.description().parent, Some(earlier(1, "two")));
    assert_eq!(third.needed(), [earlier(1, "two"), earlier(0, "one")]);
    assert_eq!(open(&folder, "one").description().parent, None);
    // All of them together can be moved.
    let moved = Folder::new("moved");
    for name in folder.names() {
        fs::rename(folder.file(&name), moved.file(&name)).unwrap();
    }
    assert_eq!(all_of(&moved.file("three")).unwrap(), contents[2]);
}

#[test]
fn unused_earlier_files_are_not_needed() {
    let folder = Folder::new("unneeded");
    let [one, _, _] = three(&folder);
    let third = open(&folder, "three");
    // No block of the first two, and one block of the third.
    let mut last = contents(9);
    last[1][4096..].copy_from_slice(&contents(3)[0][..4096]);
    let unique = |bytes: &mut [u8]| bytes[4095] ^= 0x55;
    unique(&mut last[0][12 << 10..]);
    let stats = write(&folder.file("four"), &last, since(&third, plain())).unwrap();
    assert_eq!((stats.unchanged, stats.stored), (1, 4));
    assert_eq!(
        open(&folder, "four").needed(),
        [EarlierSnapshot { id: third.description().id, file: "three".into() }]
    );
    // One block of the first only.
    let mut alone = contents(8);
    unique(&mut alone[0][12 << 10..]);
    alone[0][..4096].copy_from_slice(&one[1][..4096]);
    write(&folder.file("five"), &alone, since(&third, plain())).unwrap();
    let first = open(&folder, "one").description().id;
    assert_eq!(open(&folder, "five").needed(), [EarlierSnapshot { id: first, file: "one".into() }]);
    // None of them.
    let mut none = contents(7);
    unique(&mut none[0][12 << 10..]);
    write(&folder.file("six"), &none, since(&third, plain())).unwrap();
    assert_eq!(open(&folder, "six").needed(), []);
    for name in ["one", "two", "three"] {
        let whole = [("four", &last), ("five", &alone), ("six", &none)]
            .map(|(name, contents)| all_of(&folder.file(name)).is_ok_and(|found| found == *contents));
        let expected = match name {
            "one" => [true, true, true],
            _ => [true, false, true],
        };
        assert_eq!(whole, expected, "{name}");
        fs::remove_file(folder.file(name)).unwrap();
    }
    assert!(all_of(&folder.file("four")).is_err() && all_of(&folder.file("six")).is_ok());
}

#[test]
fn missing_earlier_snapshot_is_named() {
    let folder = Folder::new("missing");
    let contents = three(&folder);
    let one = open(&folder, "one").description().id.to_string();
    fs::rename(folder.file("one"), folder.file("gone")).unwrap();
    let third = open(&folder, "three");
    let error = third.verify(&|_| {}).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
    assert_says(&error, &["needs the earlier snapshot", &one, "one", "No such file"]);
    // Its own blocks are still readable.
    let mut block = vec![0; 4096];
    third.read_block(0, 0, &mut block).unwrap();
    assert_eq!(block, contents[2][0][..4096]);
    assert!(third.read_block(0, 2, &mut block).is_err());

    write(&folder.file("one"), &contents[0], plain()).unwrap();
    let error = all_of(&folder.file("three")).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { at: 0, .. })), "{error}");
    let other = open(&folder, "one").description().id.to_string();
    assert_says(&error, &[&one, &other, "one is now another snapshot"]);
    for other in [&b"no snapshot"[..], b""] {
        fs::write(folder.file("one"), other).unwrap();
        let error = all_of(&folder.file("three")).unwrap_err();
        assert_says(&error, &["needs the earlier snapshot", &one, "bytes, fewer than a header"]);
    }
    fs::rename(folder.file("gone"), folder.file("one")).unwrap();
    assert_eq!(all_of(&folder.file("three")).unwrap(), contents[2]);
}

#[test]
fn changed_earlier_file_is_noticed() {
    use std::os::unix::fs::FileExt;
    let folder = Folder::new("earlier");
    three(&folder);
    let file = fs::File::options().write(true).read(true).open(folder.file("one")).unwrap();
    let mut byte = [0];
    // In its third block; the first one is no longer used.
    file.read_exact_at(&mut byte, 64 + 4096 + 7).unwrap();
    file.write_all_at(&[!byte[0]], 64 + 4096 + 7).unwrap();
    let error = all_of(&folder.file("three")).unwrap_err();
    assert_says(&error, &["block 2 of memory 0 is not what was written", "one", &format!("{}", 64 + 4096)]);
    file.write_all_at(&byte, 64 + 4096 + 7).unwrap();
    file.write_all_at(&[1], 64 + 7).unwrap();
    all_of(&folder.file("one")).unwrap_err();
    all_of(&folder.file("three")).unwrap();
}

#[test]
fn earlier_snapshot_must_stay_beside() {
    let folder = Folder::new("beside");
    let [one, ..] = three(&folder);
    let third = open(&folder, "three");
    let elsewhere = Folder::new("elsewhere");
    let error = write(&elsewhere.file("four"), &one, since(&third, plain())).unwrap_err();
    assert_says(&error, &["needs the earlier snapshot", " in three of the same folder: ", "No such file"]);
    for name in ["one", "two", "three"] {
        let error = write(&folder.file(name), &one, since(&third, plain())).unwrap_err();
        assert_says(&error, &[&format!("it would replace {name}, which it needs")]);
    }
    assert_eq!((folder.names().len(), elsewhere.names().len()), (3, 0));
    // A snapshot that needs no other can replace any of them; those that need it then report an error.
    write(&folder.file("one"), &one, plain()).unwrap();
    let error = write(&folder.file("four"), &one, since(&third, plain())).unwrap_err();
    assert_says(&error, &["is now another snapshot"]);
}

#[test]
fn earlier_snapshot_is_never_overwritten() {
    let folder = Folder::new("names");
    let one = contents(1);
    write(&folder.file("one"), &one, plain()).unwrap();
    std::os::unix::fs::symlink("one", folder.file("latest")).unwrap();
    let latest = open(&folder, "latest");
    let error = write(&folder.file("one"), &one, since(&latest, plain())).unwrap_err();
    assert_says(&error, &["it would replace latest, which it needs"]);
    // The name of the new snapshot's temporary file.
    fs::rename(folder.file("one"), folder.file(".two.partial")).unwrap();
    let partial = open(&folder, ".two.partial");
    let error = write(&folder.file("two"), &one, since(&partial, plain())).unwrap_err();
    assert_says(&error, &["it would replace .two.partial, which it needs"]);
    fs::rename(folder.file(".two.partial"), folder.file("one")).unwrap();
    // A hard link with that name.
    fs::hard_link(folder.file("one"), folder.file(".two.partial")).unwrap();
    for since in [Some(&open(&folder, "one")), None] {
        let error = write(&folder.file("two"), &one, WriteOptions { since, ..plain() }).unwrap_err();
        assert_says(&error, &[".two.partial", "the file has other names"]);
    }
    assert_eq!(folder.names(), [".two.partial", "latest", "one"]);
    assert_eq!(all_of(&folder.file("one")).unwrap(), one);
}

#[test]
fn blocks_of_other_size_always_differ() {
    let folder = Folder::new("size");
    let one = contents(1);
    write(&folder.file("one"), &one, plain()).unwrap();
    let first = open(&folder, "one");
    let other = WriteOptions { block: Some(Bytes::kib(8)), ..since(&first, plain()) };
    assert_eq!(write(&folder.file("two"), &one, other).unwrap().unchanged, 0);
    assert_eq!(write(&folder.file("two"), &one, since(&first, plain())).unwrap().unchanged, 4);
    assert_eq!(all_of(&folder.file("two")).unwrap(), one);
}

/// The name would lead to another file on a system where it means something else.
#[test]
fn unstorable_name_is_no_earlier_snapshot() {
    let folder = Folder::new("colon");
    let one = contents(1);
    write(&folder.file("c:one"), &one, plain()).unwrap();
    let error = write(&folder.file("two"), &one, since(&open(&folder, "c:one"), plain())).unwrap_err();
    assert_says(&error, &["write snapshot", "c:one", "its file name cannot be stored in a later snapshot"]);
    assert_eq!(folder.names(), ["c:one"]);
}
