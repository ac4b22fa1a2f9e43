//! Failed writes: each system call fails in turn, and the disk is full.

use super::*;
use crate::disk::{Destination, Temporary};
use gpu_vmm_core::{Detail, Operation};
use gpu_vmm_testkit::Random;
use gpu_vmm_testkit::forked::alone;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

/// A destination where one of the calls fails, and all after it.
#[derive(Debug)]
struct Failing {
    inner: Temporary,
    left: Arc<AtomicUsize>,
    published: AtomicBool,
}

impl Failing {
    fn may(&self) -> io::Result<()> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| io::ErrorKind::StorageFull.into())
    }
}

impl Destination for Failing {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.may().or_else(|error| self.inner.write_at(&bytes[..bytes.len() / 2], offset).and(Err(error)))?;
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.may().and_then(|()| self.inner.sync())
    }

    fn publish(&self) -> io::Result<()> {
        self.may().and_then(|()| self.inner.publish())?;
        self.published.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.may().and_then(|()| self.inner.sync_folder())
    }

    fn discard(&self) {
        assert!(!self.published.load(Ordering::Relaxed), "another writer may have the name by now");
        self.inner.discard();
    }
}

/// Writes a snapshot with a limited number of successful calls.
fn write_some(
    path: &Path,
    calls: usize,
    contents: &Contents,
) -> (gpu_vmm_core::Result<SnapshotStats>, usize) {
    let left = Arc::new(AtomicUsize::new(calls));
    let place = |target: &Path| {
        let inner = Temporary::create(Operation::Allocate, target)?;
        Ok(Box::new(Failing { inner, left: Arc::clone(&left), published: AtomicBool::new(false) })
            as Box<dyn Destination>)
    };
    let writer = SnapshotWriter::create_in(path, &description(), small(), place);
    let answer = writer.and_then(|writer| {
        let answer = write_all(&writer, contents);
        if let Err(first) = &answer {
            // From then on every call returns the same error.
            let same = |error: Error| assert_eq!(error.to_string(), first.to_string());
            same(write_all(&writer, contents).unwrap_err());
            same(writer.finish().unwrap_err());
            return Err(first.clone());
        }
        writer.finish()
    });
    (answer, left.load(Ordering::Relaxed))
}

#[test]
fn failed_call_keeps_the_old_snapshot() {
    let folder = Folder::new("sweep");
    let path = folder.file("a");
    let (old, new) = (contents(1), contents(2));
    let mut calls = Vec::new();
    for count in 0.. {
        write(&path, &old, plain()).unwrap();
        let (answer, left) = write_some(&path, count, &new);
        assert_eq!(folder.names(), ["a"], "{count}");
        let Err(error) = answer else {
            assert_eq!((left, all_of(&path).unwrap()), (0, new));
            break;
        };
        let Detail::File { source, .. } = error.detail() else { panic!("{count}: {error}") };
        assert_says(&error, &["write snapshot", &path.display().to_string()]);
        calls.push(source.call);
        let expected = if source.call == "fsync of the folder" { &new } else { &old };
        assert_eq!(all_of(&path).unwrap(), *expected, "{count}: {error}");
    }
    // The header, four blocks, the index; two of the six blocks are zeros.
    let expected = [&["write"; 6][..], &["fsync", "rename", "fsync of the folder"]].concat();
    assert_eq!(calls, expected);
}

/// A destination where two writes are refused at the same time, each for another reason.
#[derive(Debug)]
struct Refusing {
    both: Barrier,
    reasons: Mutex<Vec<io::ErrorKind>>,
}

impl Destination for Refusing {
    fn write_at(&self, _: &[u8], offset: u64) -> io::Result<()> {
        if offset == 0 {
            return Ok(());
        }
        let reason = self.reasons.lock().unwrap().pop().unwrap();
        self.both.wait();
        Err(reason.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn publish(&self) -> io::Result<()> {
        panic!("the snapshot is not complete");
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self) {}
}

#[test]
fn first_failure_is_returned_by_all() {
    let contents = contents(1);
    let reasons = Mutex::new(vec![io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied]);
    let place = |_: &Path| Ok(Box::new(Refusing { both: Barrier::new(2), reasons }) as Box<dyn Destination>);
    let writer = SnapshotWriter::create_in(Path::new("a"), &description(), plain(), place).unwrap();
    let fails = |block: u64| {
        let bytes = &contents[0][(block * BLOCK.0) as usize..][..BLOCK.0 as usize];
        writer.write_block(0, block, bytes).unwrap_err().to_string()
    };
    let answers = std::thread::scope(|scope| {
        [0, 2].map(|block| scope.spawn(move || fails(block))).map(|thread| thread.join().unwrap())
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(writer.finish().unwrap_err().to_string(), answers[0]);
}

#[test]
fn failed_first_snapshot_leaves_nothing() {
    let folder = Folder::new("first");
    for count in 0..8 {
        assert!(write_some(&folder.file("a"), count, &contents(1)).0.is_err());
        assert_eq!(folder.names(), [""; 0], "{count}");
    }
}

#[test]
fn file_size_limit_is_ordinary_error() {
    let folder = Folder::new("limit");
    let path = folder.file("a");
    let (old, new) = (contents(1), contents(2));
    let size = write(&path, &new, plain()).unwrap().file.0;
    write(&path, &old, plain()).unwrap();
    let mut random = Random(1);
    for _ in 0..20 {
        let limit = random.below(size as usize) as u64;
        alone(|| {
            let rlimit = Rlimit { current: Some(limit), maximum: None };
            setrlimit(Resource::Fsize, rlimit).unwrap();
            let error = write(&path, &new, plain()).unwrap_err();
            assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
            assert_says(&error, &["write answered", "RLIMIT_FSIZE"]);
        });
        assert_eq!(folder.names(), ["a"], "{limit}");
        assert_eq!(all_of(&path).unwrap(), old, "{limit}");
    }
}
