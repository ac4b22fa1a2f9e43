//! Files that are not snapshots, or are damaged.

use super::*;
use crate::SnapshotError;
use gpu_vmm_core::Detail;
use std::os::unix::fs::FileExt;

#[track_caller]
fn assert_bad(path: &Path, part: &str) {
    let error = SnapshotFile::open(path).map(drop).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
    assert_says(&error, &[part, &path.display().to_string(), "open snapshot"]);
}

/// As a file system may leave them after a power loss.
#[test]
fn zeros_at_the_end_are_noticed() {
    let folder = Folder::new("zeros");
    let path = folder.file("a");
    let size = write(&path, &contents(1), small()).unwrap().file.0;
    let whole = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for length in (0..size).rev() {
        file.set_len(length).unwrap();
        file.set_len(size).unwrap();
        // If the data was zero, the file is unchanged.
        if whole[length as usize..].iter().all(|byte| *byte == 0) {
            continue;
        }
        let error = SnapshotFile::open(&path).map(drop).unwrap_err();
        assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{length}: {error}");
    }
}

#[test]
fn several_changed_bytes_are_noticed() {
    let folder = Folder::new("flips");
    let path = folder.file("a");
    write(&path, &contents(1), small()).unwrap();
    let good = fs::read(&path).unwrap();
    let mut random = Random(5);
    for _ in 0..10_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        assert!(bytes == good || crate::fuzz::read_all(&bytes).is_err());
    }
}

#[test]
fn other_files_are_refused() {
    let folder = Folder::new("other");
    let path = folder.file("a");
    let error = SnapshotFile::open(&path).map(drop).unwrap_err();
    assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
    assert_says(&error, &["open answered", "No such file", &path.display().to_string()]);
    fs::write(&path, b"").unwrap();
    assert_bad(&path, "it has 0 bytes, fewer than a header");
    fs::write(&path, b"gpu-vmm snap").unwrap();
    assert_bad(&path, "it has 12 bytes");
    fs::write(&path, vec![7; 1000]).unwrap();
    assert_bad(&path, "it does not begin like a snapshot");
    assert_bad(&folder.0, "it is not a regular file");
    let pipe = folder.file("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    assert_bad(&pipe, "it is not a regular file");
}

#[test]
fn another_version_is_refused() {
    let folder = Folder::new("version");
    let path = folder.file("a");
    write(&path, &contents(1), small()).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&(VERSION + 1).to_le_bytes(), 12).unwrap();
    let error = SnapshotFile::open(&path).map(drop).unwrap_err();
    let expected = (VERSION + 1, VERSION);
    let Some(SnapshotError::Newer { version, newest, .. }) = error.extension() else { panic!("{error}") };
    assert_eq!((*version, *newest), expected);
    // A newer version may have any bytes after the version.
    file.set_len(64).unwrap();
    let error = SnapshotFile::open(&path).map(drop).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Newer { .. })), "{error}");
}

#[test]
fn shrinking_file_gives_no_bytes() {
    let folder = Folder::new("shrink");
    let path = folder.file("a");
    write(&path, &contents(1), plain()).unwrap();
    let opened = SnapshotFile::open(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = read_all(&opened).unwrap_err();
    assert_says(&error, &["it ends before the 4096 bytes"]);
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
}

/// A source whose reads fail from an offset on.
struct Broken(Vec<u8>, u64);

impl crate::disk::ReadAt for Broken {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if end as u64 > self.1 {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        bytes.copy_from_slice(&self.0[start..end]);
        Ok(())
    }
}

#[test]
fn unreadable_disk_is_no_damaged_file() {
    let folder = Folder::new("disk");
    let path = folder.file("a");
    write(&path, &contents(1), small()).unwrap();
    let whole = fs::read(&path).unwrap();
    let size = whole.len() as u64;
    let parts = |readable| {
        let source = Broken(whole.clone(), readable);
        let header = crate::parts::read_header(&source, size)?;
        crate::parts::Parts::read(&source, header, size)
    };
    parts(size).map(drop).unwrap();
    for readable in [0, size / 2, size - 1] {
        let error =
            parts(readable).map(drop).unwrap_err().error(gpu_vmm_core::Operation::OpenSnapshot, &path);
        assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
        let begin = format!("open snapshot: {}: read answered EIO (5)", path.display());
        assert!(error.to_string().starts_with(&begin), "{error}");
    }
}
