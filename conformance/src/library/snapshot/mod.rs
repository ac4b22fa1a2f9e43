//! Regions that are written to a file and restored from it.

mod blocks;
mod described;
mod processes;
mod refused;
mod relocated;
mod restored;

use crate::case::Case;
use crate::library::folder::Folder;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Backend, Bytes, Placement, Region, StagingRing};
use gpu_vmm_snapshot::{Restore, Restored, Snapshot, SnapshotFile, SnapshotStats};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [
        restored::cases(),
        blocks::cases(),
        relocated::cases(),
        described::cases(),
        refused::cases(),
        processes::cases(),
    ]
    .concat()
}

/// A ring with smaller buffers than most cases copy, and with another chunk size than the file's blocks.
fn ring<B: Backend>(backend: &B) -> StagingRing<B> {
    StagingRing::new(backend, 2, Bytes::mib(3)).unwrap()
}

/// Writes regions to a file.
#[track_caller]
fn save<B: Backend>(folder: &Folder, name: &str, regions: &[&Region<B>]) -> (SnapshotFile, SnapshotStats) {
    let ring = ring(regions[0].backend());
    let snapshot = Snapshot::new(&ring).regions(regions.iter().copied());
    let stats = snapshot.write(folder.file(name), idle()).unwrap();
    (SnapshotFile::open(folder.file(name)).unwrap(), stats)
}

/// Restores the single region of a file.
#[track_caller]
fn restore_one<B: Backend>(backend: &B, options: &Restore, file: &SnapshotFile) -> Restored<B> {
    let mut all = options.regions(file, &ring(backend)).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// A region of `units` units at addresses that no other case uses, filled with a pattern.
fn filled<B: TestKit>(subject: &Subject<B>, units: u64, seed: u64) -> Region<B> {
    let place = Placement::Exact(subject.hole(units));
    let mut region =
        subject.region(units).at(place).tag("filled").access(subject.device, RW).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(units), seed);
    region
}
