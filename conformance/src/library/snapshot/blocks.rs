//! The contents of a snapshot file, and the blocks that it omits.

use super::{filled, restore_one, ring};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, PhysicalMemory, Placement, Region, StagingRing};
use gpu_vmm_snapshot::SnapshotError;
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotFile, SnapshotStats};
use gpu_vmm_testkit::TestKit;

cases! { "snapshot":
    /// Zeros take no room in the file, and are restored over whatever the memory holds.
    zeros_are_left_out,
    /// Compressible contents take less room, and are restored unchanged.
    compressed,
    /// Blocks that an earlier snapshot has are omitted, and restoring reads them from there.
    what_has_not_changed_is_left_out,
    /// If the earlier snapshot is missing, restoring reports that and leaves nothing behind.
    the_earlier_one_is_gone,
    /// A snapshot since an unrelated snapshot contains all of its blocks, and does not need the other file.
    since_another_one,
    /// Each piece of memory gets its own blocks back, whatever the chunk size of the ring.
    pieces_in_small_chunks,
    /// A new snapshot replaces the file with its name, and a failed one does not.
    takes_the_place_of_the_last,
}

/// Large, so that the size of the description does not matter.
const SIZE: Bytes = Bytes::mib(8);

/// A region with one piece of memory of [`SIZE`], rounded up to the granularity.
fn large<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let memory = PhysicalMemory::create(&subject.backend, SIZE, subject.properties()).unwrap();
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(memory.size());
    let mut region = builder.at(Placement::Exact(subject.hole(4))).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    region
}

fn write<B: TestKit>(
    folder: &Folder,
    name: &str,
    region: &Region<B>,
    since: Option<&SnapshotFile>,
) -> (SnapshotFile, SnapshotStats) {
    let ring = ring(region.backend());
    let snapshot = Snapshot::new(&ring).region(region);
    let snapshot = since.into_iter().fold(snapshot, Snapshot::since);
    let stats = snapshot.write(folder.file(name), idle()).unwrap();
    assert_eq!(stats.file.0, std::fs::metadata(folder.file(name)).unwrap().len());
    (SnapshotFile::open(folder.file(name)).unwrap(), stats)
}

fn zeros_are_left_out<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = large(subject);
    region.fill(Bytes(0), region.end(), 0).unwrap();
    let word = region.end() - Bytes(8);
    region.write(word, b"not zero").unwrap();
    let (file, stats) = write(&folder, "a", &region, None);
    assert_eq!((stats.zero, stats.stored), (stats.blocks - 1, 1));
    assert!(stats.file < Bytes::mib(2), "{stats:?}");
    // The memory is filled with other bytes, since some drivers hand out memory with its old contents.
    region.fill(Bytes(0), region.end(), 0xff).unwrap();
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    let mut bytes = vec![1; region.end().to_usize().unwrap()];
    region.read(Bytes(0), &mut bytes).unwrap();
    let (zeros, last) = bytes.split_at(bytes.len() - 8);
    assert!(zeros.iter().all(|byte| *byte == 0) && last == b"not zero");
}

fn compressed<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = large(subject);
    let end = region.end();
    region.fill(Bytes(0), end, 7).unwrap();
    subject.write(&mut region, Bytes(0), Bytes::mib(1), 1);
    let (_, plain) = write(&folder, "plain", &region, None);
    let ring = ring(&subject.backend);
    let small = Snapshot::new(&ring).region(&region).compress(true);
    let small = small.write(folder.file("small"), idle()).unwrap();
    let file = SnapshotFile::open(folder.file("small")).unwrap();
    assert!(plain.file >= end && plain.compressed == 0, "{plain:?}");
    assert!(small.file < Bytes::mib(2) && small.compressed > 0, "{small:?}");
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    subject.check(&region, Bytes(0), Bytes::mib(1), 1);
    let mut bytes = vec![0; (end - Bytes::mib(1)).to_usize().unwrap()];
    region.read(Bytes::mib(1), &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

fn what_has_not_changed_is_left_out<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = large(subject);
    let end = region.end();
    subject.write(&mut region, Bytes(0), end, 1);
    let (first, _) = write(&folder, "first", &region, None);
    region.write(Bytes::mib(3), b"changed").unwrap();
    let (second, stats) = write(&folder, "second", &region, Some(&first));
    assert_eq!((stats.stored, stats.unchanged), (1, stats.blocks - 1));
    region.write(Bytes::mib(5), b"changed as well").unwrap();
    let (third, stats) = write(&folder, "third", &region, Some(&second));
    assert_eq!((stats.stored, stats.unchanged), (1, stats.blocks - 1));
    for (file, five) in [(&third, true), (&second, false)] {
        drop(region);
        region = restore_one(&subject.backend, &Restore::new(), file).region;
        let mut changed = [[0; 7]; 2];
        region.read(Bytes::mib(3), &mut changed[0]).unwrap();
        region.read(Bytes::mib(5), &mut changed[1]).unwrap();
        assert_eq!((&changed[0], &changed[1] == b"changed"), (b"changed", five));
        subject.check(&region, Bytes(0), Bytes::mib(3), 1);
        subject.check(&region, Bytes::mib(6), end - Bytes::mib(6), 1 + Bytes::mib(6).0 / 8);
    }
}

fn the_earlier_one_is_gone<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let region = filled(subject, 1, 1);
    let range = region.range();
    let (first, _) = write(&folder, "first", &region, None);
    let (second, _) = write(&folder, "second", &region, Some(&first));
    drop(region);
    std::fs::remove_file(first.path()).unwrap();
    let free = subject.free_here();
    let error = Restore::new().regions(&second, &ring(&subject.backend)).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
    assert!(error.to_string().contains("first"), "{error}");
    let place = Placement::Exact(range.base);
    drop(subject.region(1).at(place).build().unwrap());
    assert_eq!(subject.free_here(), free);
}

fn since_another_one<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = large(subject);
    let end = region.end();
    subject.write(&mut region, Bytes(0), end, 1);
    let (other, _) = write(&folder, "other", &region, None);
    subject.write(&mut region, Bytes(0), end, u64::from(u32::MAX));
    let (file, stats) = write(&folder, "file", &region, Some(&other));
    assert_eq!((stats.unchanged, stats.stored), (0, stats.blocks));
    std::fs::remove_file(other.path()).unwrap();
    drop(region);
    let region = restore_one(&subject.backend, &Restore::new(), &file).region;
    subject.check(&region, Bytes(0), end, u64::from(u32::MAX));
}

fn pieces_in_small_chunks<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let granule = subject.granularity();
    let mut region = subject.space(2).at(Placement::Exact(subject.hole(2))).build().unwrap();
    for place in [Bytes(0), granule] {
        subject.open(&mut region, place, &subject.piece(1));
    }
    let size = region.end();
    subject.write(&mut region, Bytes(0), size, 1);
    // With one thread the pieces come one after the other, and chunks end inside of blocks.
    let ring = StagingRing::new(&subject.backend, 1, Bytes(granule.0 / 24 * 8)).unwrap();
    Snapshot::new(&ring).region(&region).write(folder.file("a"), idle()).unwrap();
    drop(region);
    let file = SnapshotFile::open(folder.file("a")).unwrap();
    let region = Restore::new().regions(&file, &ring).unwrap().remove(0).region;
    subject.check(&region, Bytes(0), size, 1);
}

fn takes_the_place_of_the_last<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = filled(subject, 1, 1);
    let (first, _) = write(&folder, "same", &region, None);
    subject.write(&mut region, Bytes(0), subject.unit(), 2);
    // A snapshot cannot replace the file that it needs: it fails, and that file is unchanged.
    let ring = ring(&subject.backend);
    let error = Snapshot::new(&ring).region(&region).since(&first).write(first.path(), idle()).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
    assert_eq!(folder.names(), ["same"]);
    let restores = |region: Region<B>, seed| {
        drop(region);
        let file = SnapshotFile::open(folder.file("same")).unwrap();
        let mut region = restore_one(&subject.backend, &Restore::new(), &file).region;
        subject.check(&region, Bytes(0), subject.unit(), seed);
        subject.write(&mut region, Bytes(0), subject.unit(), 2);
        region
    };
    let region = restores(region, 1);
    write(&folder, "same", &region, None);
    drop(restores(region, 2));
    assert_eq!(folder.names(), ["same"]);
}
