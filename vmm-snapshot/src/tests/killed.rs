//! A process that is killed while it writes snapshots, repeatedly.

use super::*;
use gpu_vmm_testkit::forked::Child;
use std::time::{Duration, Instant};

/// The number of processes to kill.
const KILLED: usize = 100;

const BLOCKS: u64 = 64;

/// A description with its number in the time field.
fn numbered(number: u64) -> Description {
    let mut description = Description { created: number, ..description() };
    description.memories[0].size = Bytes(BLOCKS * BLOCK.0);
    description.regions.clear();
    description
}

/// Returns the contents of one of its blocks.
fn block_of(number: u64, block: u64) -> Vec<u8> {
    (0..BLOCK.0 / 8).flat_map(|word| (number << 32 | block << 16 | word).to_le_bytes()).collect()
}

fn write_numbered(path: &Path, number: u64) {
    let options = WriteOptions { compress: number.is_multiple_of(2), ..plain() };
    let writer = SnapshotWriter::create(path, &numbered(number), options).unwrap();
    for block in 0..BLOCKS {
        writer.write_block(0, block, &block_of(number, block)).unwrap();
    }
    for block in 0..2 {
        writer.write_block(1, block, &[0; 4096]).unwrap();
    }
    writer.finish().unwrap();
}

/// Returns the number of a complete snapshot.
fn whole(path: &Path) -> u64 {
    let file = SnapshotFile::open(path).unwrap();
    file.verify(&|_| {}).unwrap();
    let number = file.description().created;
    let mut found = vec![0; 4096];
    for block in 0..BLOCKS {
        file.read_block(0, block, &mut found).unwrap();
        assert_eq!(found, block_of(number, block), "block {block} of snapshot {number}");
    }
    number
}

#[test]
fn hundred_kills_leave_a_whole_snapshot() {
    // In a memory file system, if there is one: the state of the disk does not matter without a power loss, and most kills would
    // hit the wait for the disk.
    let folder = Folder::beneath(Path::new("/dev/shm"), "killed");
    let path = folder.file("a");
    let partial = folder.file(".a.partial");
    let began = Instant::now();
    write_numbered(&path, 1);
    let mut most = began.elapsed() * 5;
    let mut random = Random(std::process::id().into());
    let (mut last, mut halves) = (1, 0);
    for _ in 0..KILLED {
        let child = Child::fork(|| {
            let mut number = last;
            loop {
                number += 1;
                write_numbered(&path, number);
            }
        });
        std::thread::sleep(most.mul_f64(random.below(1000) as f64 / 1000.0));
        drop(child);
        halves += usize::from(partial.exists());
        let number = whole(&path);
        assert!(number >= last, "snapshot {number} has come back after {last}");
        // The limit adapts, since other tests use the machine during some of the runs.
        most = if number == last { most * 3 / 2 } else { most * 9 / 10 };
        most = most.clamp(Duration::from_millis(5), Duration::from_secs(1));
        last = number;
    }
    // Many kills were in the middle of a snapshot, and some snapshots were completed.
    assert!(halves > KILLED / 10 && last > 10, "{halves} halves, {last} snapshots");
    // The file that the last process has left does not prevent a new snapshot.
    write_numbered(&path, last + 1);
    assert_eq!((whole(&path), folder.names()), (last + 1, vec!["a".to_owned()]));
}
