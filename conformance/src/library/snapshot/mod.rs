//! Regions in a file, and made again from it.
//!
//! | file | subject |
//! |---|---|
//! | `whole` | what comes back: addresses, mappings, access, contents |
//! | `blocks` | what is in the file, and what is left out |
//! | `elsewhere` | other addresses, other devices |
//! | `described` | memory that no region of this device could have been |
//! | `refused` | what cannot be written or restored leaves nothing behind |
//! | `processes` | written by one process, restored in another: a list of device addresses is walked there |

mod blocks;
mod described;
mod elsewhere;
mod processes;
mod refused;
mod whole;

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
        whole::cases(),
        blocks::cases(),
        elsewhere::cases(),
        described::cases(),
        refused::cases(),
        processes::cases(),
    ]
    .concat()
}

/// Buffers of less than most cases have to copy, and of another size than the file's blocks.
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

/// Makes the one region of a file again.
#[track_caller]
fn restore_one<B: Backend>(backend: &B, options: &Restore, file: &SnapshotFile) -> Restored<B> {
    let mut all = options.regions(file, &ring(backend)).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// A region of so many units at addresses that nothing else comes to, filled with a pattern.
fn filled<B: TestKit>(subject: &Subject<B>, units: u64, seed: u64) -> Region<B> {
    let place = Placement::Exact(subject.hole(units));
    let mut region =
        subject.region(units).at(place).tag("filled").access(subject.device, RW).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(units), seed);
    region
}
